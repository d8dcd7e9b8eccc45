"""Document identifiers: collections, hierarchical k-means and the docid tree (numpy only; no torch, no transformers)."""
