"""Rerankers: candidates with features and scores in, a new order and scores out."""
