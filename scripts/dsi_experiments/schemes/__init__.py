"""Docid schemes: quantizers, balanced clusters, titles, and a control."""
