"""What an index is worth: rows of `evaluate`, beam widths, where a document was lost."""
