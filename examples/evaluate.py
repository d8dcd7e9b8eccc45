"""Measure an index beside BM25, dense search and their fusion: `python evaluate.py [INDEX]`."""

import sys

import dsi

run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
collection = dsi.read_collection("minipedia")
retriever = dsi.load(run)
evaluation = dsi.evaluate(retriever, collection)
print(evaluation)
for name in ("BM25", "generate", "exact"):
    hits = evaluation.row(name).values["Hit@1"]  # {query_id: 1 if the first document is relevant, else 0}
    print(f"{name}: the first document is right for {sum(hits.values()):.0f} of {len(hits)} queries")
