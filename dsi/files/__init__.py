"""Reads files of many kinds as documents, by libraries of the extra "files", in a process apart."""
