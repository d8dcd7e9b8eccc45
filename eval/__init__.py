"""Measures, baselines, fusion and reports over runs {query_id: {doc_id: score}}; knows nothing of models."""
