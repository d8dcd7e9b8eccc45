"""BM25 and what any score of words needs: posting lists, top lists, term scores."""
