"""Train an index on Minipedia, the collection that ships, and search it: `python index_and_search.py [INDEX]`.

Takes a few minutes the first time; after that the index in INDEX is up to date. The other examples use it.
"""

import sys

import dsi

run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
collection = dsi.read_collection("minipedia")
retriever = dsi.train(collection, run)
for query in ("which capitals are on the danube", "gas that glows in advertising signs"):
    print(query)
    for hit in retriever.search(query, k=3):
        print(f"  {hit.rank}. {hit.score:.3f}  {hit.title}  docid {hit.digits}")
