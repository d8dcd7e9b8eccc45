"""Document identifiers: collections, docid schemes and the docid tree, without torch or transformers."""
