"""Reads files of people as documents, by libraries of the extra "files", in a process of its own."""
