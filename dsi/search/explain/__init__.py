"""How an answer came about: the walk as a tree, why a document is missing, where a text matches a query."""
