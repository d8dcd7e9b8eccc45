"""Measures, baselines, fusion and reports over runs {query_id: {doc_id: score}}; knows nothing of models."""

if __name__ == "eval":  # imported from the root of a checkout, it would be a second copy of every module
    raise ImportError("eval is a part of dsi; import dsi.eval.")
