"""One search shared by processes gives what one process gives."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docids.processes import Processes
from dsi.sharding import own_documents, search_shards
from tests.conftest import random_tree
from tests.test_updates import QUERIES, small_index

PROGRAM = """
import json, sys
from dsi.launch import launch
from dsi.retriever import GenerativeRetriever
from dsi.sharding import search_shards

processes, retriever = launch("cpu"), GenerativeRetriever.from_pretrained(sys.argv[1], device="cpu")
found = search_shards(retriever, ["the danube", "noble gases"], 7, processes=processes, **json.loads(sys.argv[2]))
if processes.is_main:
    print(processes.count, json.dumps([[*own, own.exact] for own in found]))
"""


@settings(max_examples=40, deadline=None)
@given(documents=st.integers(3, 80), branching=st.integers(2, 5), leaf=st.integers(1, 90), count=st.integers(1, 7))
def test_every_document_belongs_to_one_process(documents, branching, leaf, count):
    tree = random_tree(max(documents, branching), branching=branching, leaf=leaf)
    shares = [own_documents(tree, Processes(rank, count, list)) for rank in range(count)]
    assert (np.sum(shares, axis=0) == 1).all()
    for share in shares:  # whole children of the root
        assert len({int(path[0]) for path in tree.paths(np.flatnonzero(share))[1]}) + len(
            {int(path[0]) for path in tree.paths(np.flatnonzero(~share))[1]}
        ) == int(tree.num_children[0])


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0.0}, {"exact": True}, {"where": "title > 'M'", "exact": True}, {"k": 60}]
)
def test_merged_answers_are_those_of_one_process(encoder, options):
    retriever, options = small_index(encoder), dict(options)
    k = options.pop("k", 7)
    retriever.remove(list(retriever.documents.rows)[:3])
    expected = retriever.search(QUERIES, k, beam_width=100, **options)
    parts: list[object] = []

    def first_half(own: object) -> list[object]:
        parts.append(own)
        return [own]

    for rank in range(3):
        search_shards(retriever, QUERIES, k, processes=Processes(rank, 3, first_half), beam_width=100, **options)
    found = search_shards(
        retriever, QUERIES, k, processes=Processes(1, 3, lambda own: parts), beam_width=100, **options
    )
    for own, other in zip(found, expected, strict=True):
        assert [hit.doc_id for hit in own] == [hit.doc_id for hit in other]
        np.testing.assert_allclose([hit.score for hit in own], [hit.score for hit in other], rtol=1e-4, atol=1e-4)
        assert own.exact == other.exact


def test_two_processes_search_as_one(encoder, tmp_path):
    retriever = small_index(encoder)
    retriever.save_pretrained(tmp_path / "index")
    options = {"exact": True}
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no", "--no_python"]  # fmt: skip
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "index"), json.dumps(options)]
    done = subprocess.run(
        [sys.executable, *launcher, *program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, found = done.stdout.strip().splitlines()[-1].split(" ", 1)
    assert count == "2"
    expected = retriever.search(["the danube", "noble gases"], 7, exact=True)
    for own, other in zip(json.loads(found), expected, strict=True):
        assert own.pop() is True
        assert [hit[2] for hit in own] == [hit.doc_id for hit in other]
        np.testing.assert_allclose([hit[1] for hit in own], [hit.score for hit in other], rtol=1e-4, atol=1e-4)
