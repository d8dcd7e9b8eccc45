"""Public data sets, written as collections (BEIR folders)."""
