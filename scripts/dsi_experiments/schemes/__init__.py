"""Docid schemes by quantizers."""
