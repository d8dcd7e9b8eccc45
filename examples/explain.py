"""Show why documents were found: the walk down the tree, and the parts of a score: `python explain.py [INDEX]`."""

import sys

import dsi

run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
retriever = dsi.load(run)
query = "which capitals are on the danube"
explanation = retriever.explain(query, k=3, beam_width=3)
print(explanation)
kept = [node for node in explanation.levels[0] if node.kept]
print(f"{len(kept)} of {len(explanation.levels[0])} nodes of the first level were kept")
followed = retriever.snapshot.follow([query], [["venice"]])  # of any document, found or not
for name, values in followed.parts.items():
    print(f"venice, {name}: {values[0, 0]:.3f}")
