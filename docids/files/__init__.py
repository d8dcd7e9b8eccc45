"""Atomic files, files from strangers, checks of values, progress, processes."""
