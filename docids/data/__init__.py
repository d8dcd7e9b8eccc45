"""Collections: reading, records, and public sources of them."""
