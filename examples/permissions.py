"""Answer each reader from the documents that they may read: `python permissions.py`.

The filter acts inside the walk: a reader gets k answers whenever k documents are theirs, with the scores that all readers see.
"""

import dsi

documents = [
    {"_id": "menu", "text": "The canteen serves goulash on Monday.", "readers": ["anna", "bert", "clara"]},
    {"_id": "salaries", "text": "Salaries rise by four percent in May.", "readers": ["clara"]},
    {"_id": "merger", "text": "The merger with the Danube company is planned for May.", "readers": ["bert", "clara"]},
    {"_id": "holidays", "text": "The office is closed on the first of May.", "readers": ["anna", "bert", "clara"]},
]
retriever = dsi.index(documents)
for reader in ("anna", "bert", "clara"):
    name = reader.replace("'", "''")  # as in SQL
    hits = retriever.search("what happens in may", k=3, where=f"readers contains '{name}'")
    print(f"{reader}: {', '.join(hit.doc_id for hit in hits)}")
secret = retriever.search("salaries", k=1, where="readers contains 'anna'").explain("salaries")
print(secret.reason)
