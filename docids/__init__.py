"""Document identifiers: collections, docid schemes and the docid tree, without torch or transformers."""

if __name__ == "docids":  # imported from the root of a checkout, it would be a second copy of every module
    raise ImportError("docids is a part of dsi; import dsi.docids.")
