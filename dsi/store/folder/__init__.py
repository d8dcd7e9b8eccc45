"""The index on disk: its manifest, reading, writing, and whether one from elsewhere may be loaded."""
