"""Search: encoded queries, the walk down the tree, the scores of documents, hits, explanations. Knows no rerankers."""
