"""Add, filter and remove documents without training, in memory: `python update.py [INDEX]`."""

import sys

import dsi

run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
retriever = dsi.load(run)
neretva = {
    "doc_id": "neretva",
    "title": "Neretva",
    "text": "The Neretva is a river in Bosnia that flows into the Adriatic.",
}
retriever.add([neretva])
query = "river in bosnia that flows into the adriatic"
print("found:", [hit.title for hit in retriever.search(query, k=3)])
print("filtered:", [hit.title for hit in retriever.search(query, k=3, where="title like 'n%' and doc_id <> 'neretva'")])
print("denied:", [hit.title for hit in retriever.search(query, k=3, deny=["neretva"])])
retriever.remove(["neretva"])
print("removed:", [hit.title for hit in retriever.search(query, k=3)])
print(len(retriever), "documents")  # retriever.save() would write what was changed
