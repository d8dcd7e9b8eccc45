"""The docid generator: the model, what it is trained on, its training. Knows trees, not search."""
