"""Constrained search with fused scores: encoded queries, the beam over the tree, the fast decoder, hits. Knows no rerankers."""
