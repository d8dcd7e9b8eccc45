"""Make docids by a scheme of your own, the signs of an embedding's first numbers: `python own_docids.py [INDEX]`.

CONTRIBUTING.md says how a package makes such a function available to `dsi train`.
"""

import sys

import dsi
from dsi.docids.clustering import assemble
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput


def make(documents: SchemeInput) -> Docids:
    """Return a path of six digits for each document; documents that share one get a last digit of their own."""
    return Docids.from_paths((documents.embeddings[:, :6] > 0).astype(int).tolist())


run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
retriever = dsi.load(run)
titles = retriever.snapshot.documents.column("title")[:]
embeddings = retriever.snapshot.encoder.encode(titles, "document")
tree = assemble(make(SchemeInput(embeddings, DocidsConfig())), embeddings)
print(len(titles), "documents,", tree.depth, "levels")
for row in range(3):
    print(titles[row], tree.digits(int(tree.positions[row])))
