"""Relevance judgements of Minipedia."""
