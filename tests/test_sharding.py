"""One search shared by processes gives what one process gives."""

import json
import sys

import numpy as np
import pytest
from accelerate.commands.launch import launch_command, launch_command_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from docids.processes import Processes
from dsi import GenerativeRetriever
from dsi.launch import launch
from dsi.sharding import own_documents, search_shards
from tests.conftest import random_tree
from tests.kills import fork, status_of
from tests.test_updates import QUERIES, small_index
from tests.together import together

PROGRAM = """
import pathlib, sys
from dsi.launch import launch

processes = launch("cpu")
pathlib.Path(sys.argv[1], str(processes.rank)).write_text(repr(processes.gather((processes.rank, processes.count))))
"""
"""For real processes, which import everything: no more than what a launcher decides."""


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
    retriever, queries = small_index(encoder), ["the danube", "noble gases"]
    retriever.save_pretrained(tmp_path / "index")

    def search() -> None:
        processes, own = launch("cpu"), GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")
        found = search_shards(own, queries, 7, processes=processes, exact=True)
        if processes.is_main:
            (tmp_path / "found.json").write_text(json.dumps([processes.count, [[*hits, hits.exact] for hits in found]]))

    together(2, search, tmp_path)
    count, found = json.loads((tmp_path / "found.json").read_text())
    assert count == 2
    expected = retriever.search(queries, 7, exact=True)
    for own, other in zip(found, expected, strict=True):
        assert own.pop() is True
        assert [hit[2] for hit in own] == [hit.doc_id for hit in other]
        np.testing.assert_allclose([hit[1] for hit in own], [hit.score for hit in other], rtol=1e-4, atol=1e-4)


def test_processes_of_a_launcher_know_each_other(tmp_path):
    launcher = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no", "--no_python"]  # fmt: skip
    asked = launch_command_parser().parse_args([*launcher, sys.executable, "-c", PROGRAM, str(tmp_path)])
    assert status_of(fork(lambda: launch_command(asked))) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["[(0, 2), (1, 2)]"] * 2
