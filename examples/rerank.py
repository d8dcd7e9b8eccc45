"""Rerank the answers of a search by a rule of your own: `python rerank.py [RUN]`."""

import sys

import numpy as np

import dsi


class TitleWords(dsi.Reranker):
    """Adds 0.1 to the score of a document for each word of the query in its title."""

    kind = "title words"

    def score(self, candidates: dsi.Candidates) -> np.ndarray:
        """Return new scores [queries, candidates]."""
        scores = candidates.scores.copy()
        for row, query in enumerate(candidates.queries):
            for column, title in enumerate(candidates.titles[row]):
                scores[row, column] += 0.1 * len(set(query.lower().split()) & set(title.lower().split()))
        return scores


run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
retriever = dsi.GenerativeRetriever.from_pretrained(run)
candidates = retriever.candidates(["where is the river danube"], k=20)
print("before:", [hit.title for hit in candidates.hits()[0][:3]])
print("after:", [hit.title for hit in dsi.rerank(candidates, TitleWords()).hits()[0][:3]])
