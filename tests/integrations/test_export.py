"""An index as files for other programs: what they read is what the index holds."""

from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow.parquet as pq
import pytest

from dsi import GenerativeRetriever
from dsi.commands.main import main
from dsi.integrations.export import Exported, export_index
from tests.support.bridged import folder, retriever  # noqa: F401 (fixtures)

ROOT = Path(__file__).parent


def test_files_hold_documents_docids_vectors_and_the_tree(folder, tmp_path):
    index = GenerativeRetriever.from_pretrained(folder, device="cpu")
    gone = index.documents.dataset["doc_id"][3]
    index.remove([gone])
    index.add([{"doc_id": "new", "title": "a\vb", "text": "A noble gas.", "metadata": {"year": 1}}])
    written = export_index(index, tmp_path / "out")
    tree = index.tree
    assert written == Exported(40, 40, tree.num_inner, tree.embeddings.shape[1])
    documents, docids, nodes = (
        pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in ("documents", "docids", "nodes")
    )
    assert [row["doc_id"] for row in documents] == list(index.documents.rows)
    assert documents[-1] == {
        "doc_id": "new",
        "title": "a\vb",
        "text": "A noble gas.",
        "lang": None,
        "year": 1,
        "weight": None,
    }
    embeddings, centroids = (np.load(tmp_path / "out" / name) for name in ("embeddings.npy", "centroids.npy"))
    assert embeddings.dtype == centroids.dtype == np.float32
    for row, docid in enumerate(docids):
        assert tuple(docid["digits"]) == index.get(docid["doc_id"]).digits
        node = tree.node(docid["digits"])
        assert np.array_equal(embeddings[row], tree.embeddings[node - tree.num_inner])
    assert [node["node"] for node in nodes] == list(range(tree.num_inner))
    for node in nodes:
        assert tree.node(node["digits"]) == node["node"]
        assert node["documents"] == len(tree.rows_below(node["node"]))
        assert node["parent"] == (None if not node["digits"] else tree.node(node["digits"][:-1]))
    assert np.array_equal(centroids, tree.centroids[:])
    graph = nx.read_graphml(tmp_path / "out" / "tree.graphml")
    assert nx.is_arborescence(graph)
    assert len(graph) == 40 + tree.num_inner
    shown = {values["doc_id"]: (name, values["title"]) for name, values in graph.nodes(data=True) if "doc_id" in values}
    assert shown.keys() == index.documents.rows.keys()
    assert shown["new"] == (".".join(map(str, index.get("new").digits)), "a\ufffdb")


def test_a_document_with_several_docids_has_a_row_for_each(retriever, tmp_path):
    from dataclasses import replace

    rows = retriever.tree.doc_rows.copy()
    rows[-1] = rows[0]  # the last place goes to the first document
    tree = replace(retriever.tree, doc_rows=np.unique(rows, return_inverse=True)[1].astype(np.int32))
    documents = retriever.documents.dataset.select(range(39))
    index = GenerativeRetriever(retriever.encoder, retriever.tree, retriever.generator, retriever.documents.dataset)
    index._state = replace(
        index._state,
        documents=type(index.documents)(documents),
        engine=index.engine.with_content(tree, None, index.memory),
    )
    assert export_index(index, tmp_path / "out")[:2] == (39, 40)
    docids = pq.read_table(tmp_path / "out" / "docids.parquet").to_pylist()
    ids = [row["doc_id"] for row in docids]
    assert ids == sorted(ids, key=list(documents["doc_id"]).index)
    assert len(set(ids)) == 39
    assert len({tuple(row["digits"]) for row in docids}) == 40


def test_the_command_exports_and_never_overwrites(folder, tmp_path, capsys):
    assert main(["export", str(folder), "--output", str(tmp_path / "out")]) == 0
    assert "40 documents, 40 docids with embeddings of 32 dimensions" in capsys.readouterr().out
    assert main(["export", str(folder), "--output", str(tmp_path / "out")]) == 2
    assert "which would be lost; name a new folder" in capsys.readouterr().err
    with pytest.raises(FileExistsError, match="which would be lost"):
        export_index(folder, folder)
    (tmp_path / "file").touch()
    assert main(["export", str(folder), "--output", str(tmp_path / "file")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "none"), "--output", str(tmp_path / "new")]) == 2
    assert "holds no finished index" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


WRONG = {
    "a number": (
        lambda index, out: (3, out),
        TypeError,
        "retriever must be a GenerativeRetriever or the folder of an index",
    ),
    "nothing": (lambda index, out: (None, out), TypeError, "retriever must be a GenerativeRetriever .*, got None"),
    "a list": (lambda index, out: ([index], out), TypeError, r"retriever must be .*, got \["),
    "no index": (lambda index, out: (out / "none", out), FileNotFoundError, "holds no finished index"),
    "a file": (
        lambda index, out: (__file__, out),
        FileNotFoundError,
        "holds no finished index .* name the folder that",
    ),
    "a configuration": (
        lambda index, out: ("paper", out),
        FileNotFoundError,
        "paper does not exist, so it holds no",
    ),
    "to a number": (lambda index, out: (index, 3), TypeError, "folder must be the path of a folder, got 3; name one"),
    "to nothing": (lambda index, out: (index, None), TypeError, "folder must be the path of a folder, got None"),
    "to no name": (
        lambda index, out: (index, ""),
        ValueError,
        "folder must name a folder, got ''; use . for the current",
    ),
    "to a file": (lambda index, out: (index, __file__), NotADirectoryError, "is a file; name a folder to write into"),
    "below a file": (
        lambda index, out: (index, f"{__file__}/x"),
        NotADirectoryError,
        "test_export.py is a file; name a",
    ),
    "over files": (lambda index, out: (index, ROOT), FileExistsError, "which would be lost; name a new folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_exported_is_one_clear_error(case, retriever, tmp_path):
    arguments, kind, message = WRONG[case]
    with pytest.raises(kind, match=message) as raised:
        export_index(*arguments(retriever, tmp_path / "out"))
    assert "\n" not in str(raised.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: RUN, --output"),
        (["RUN"], "the following arguments are required: --output"),
        (["RUN", "--output"], "argument --output: expected one argument"),
        (["RUN", "--output", ""], "argument --output: the argument must name a folder, got ''; use . for the current"),
        (["RUN", "--format", "npy", "--output", "out"], "unrecognized arguments: --format npy"),
        (["RUN", "out"], "the following arguments are required: --output"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, message, folder, capsys):
    assert main(["export", *(str(folder) if word == "RUN" else word for word in arguments)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
