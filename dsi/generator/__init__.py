"""The docid generator: its model and config, cached encoder states, and pseudo-queries. Knows trees, not search."""
