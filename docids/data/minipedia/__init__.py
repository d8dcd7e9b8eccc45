"""Data of the collection that ships; see README.md."""
