"""Rerank the answers of a search by a rule of your own: `python rerank.py [INDEX]`."""

import sys

import dsi
from dsi.rerankers import rerank


def title_words(hits: dsi.Hits) -> list[float]:
    """Return the scores of hits, with 0.1 more for each word of the query in the title."""
    words = set(hits.query.lower().split())
    return [hit.score + 0.1 * len(words & set(hit.title.lower().split())) for hit in hits]


run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
retriever = dsi.load(run)
hits = retriever.search("where is the river danube", k=20)
print("before:", [hit.title for hit in hits[:3]])
print("after:", [hit.title for hit in rerank(hits, title_words)[:3]])
