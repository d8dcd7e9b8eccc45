"""Collections: their files, their records, and public sources."""
