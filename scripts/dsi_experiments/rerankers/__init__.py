"""Rerankers of the papers: learning to rank, diversification, parsing."""
