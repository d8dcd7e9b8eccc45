"""The index benchmark at a small size: every system answers, exact ones exactly, and the results are written."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from docids.lexical import BM25
from dsi.retriever import GenerativeRetriever
from scripts.benchmarks.index_data import Clouds, Searched, Words, hardness, write, write_index, write_synthetic
from scripts.benchmarks.index_faiss import K, code_bytes
from scripts.benchmarks.index_measure import FUSED
from scripts.benchmarks.index_report import report
from scripts.benchmarks.index_router import routed, trained_router
from scripts.benchmarks.index_systems import RoutedTree, TreeSearch, systems
from scripts.main import main
from tests.conftest import random_tree
from tests.test_tree_models import table_rows
from tests.tiny_index import QUERIES, TinyIndex

SIZE, DIM = 1200, 16
LEFT_OUT = ["cells by a linear router", "faiss IVF-PQ", "faiss IVF-PQ fast scan, int8 refined", "faiss HNSW"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    write_synthetic(SIZE, DIM, folder / f"{SIZE}x{DIM}")
    data = Searched.load(folder / f"{SIZE}x{DIM}")
    for system in systems():
        system.prepare(data)
    return folder


@pytest.fixture(scope="module")
def data(work):
    return Searched.load(work / f"{SIZE}x{DIM}")


def recall(found, true):
    return (found[:, :, None] == true[:, None]).any(axis=2).mean()


def test_every_system_nears_the_exact_answer_as_its_knob_grows(data):
    flat, *others = systems()
    true = flat.load(data)(data.queries, 0)
    exact = (data.queries @ data.tree.embeddings[:].T).argsort(axis=1)[:, ::-1][:, :K]
    assert recall(true, exact) == 1
    assert [type(other).__name__ for other in others] == [
        "Tree", "SmallTree", "Descent", "RoutedTree", "Lists", "Codes", "RefinedCodes", "Graph"
    ]  # fmt: skip
    for system in others:
        search, knobs = system.load(data), system.knobs(SIZE)
        reached = [recall(search(data.queries, knob), true) for knob in knobs]
        assert reached[-1] >= max(reached) - 0.02, system.name
        assert reached[-1] > 0.8, system.name
        if system.knob == "probed" and "int8" not in system.name:
            assert reached[-1] == 1
    assert [type(own).__name__ for own in systems(LEFT_OUT)] == ["Flat", "Tree", "SmallTree", "Descent", "Lists"]


def test_an_untrained_router_is_the_index_and_a_trained_one_finds_more(data):
    search, flat = TreeSearch(data.tree), systems()[0].load(data)
    true, few = flat(data.queries, 0), 150
    same = TreeSearch(data.tree)
    same.use(routed(search.near.cells, np.eye(DIM, dtype=np.float32), np.ones(1, dtype=np.float32)))
    assert (same(data.queries, few) == search(data.queries, few)).all()
    learned = trained_router(search.near.cells, data.train, flat)
    same.use(routed(search.near.cells, learned["map"], learned["size_weight"]))
    assert recall(same(data.queries, few), true) >= recall(search(data.queries, few), true)


def test_clouds_and_words_are_as_described(data):
    clouds = Clouds(SIZE, DIM, seed=0)
    np.testing.assert_allclose(np.linalg.norm(clouds.documents, axis=1), 1, rtol=1e-5)
    queries, rows = clouds.queries(200)
    assert np.einsum("nd,nd->n", queries, clouds.documents[rows]).mean() == pytest.approx(0.715, abs=0.05)
    sizes = np.bincount(clouds.clusters)
    assert sizes.max() > 3 * sizes.mean()
    words = Words(clouds.clusters, seed=0)
    assert set(words.query(3).split()) <= set(words[3].split())
    assert words[:2] == [words[0], words[1]]
    figures = hardness(data.tree, data.queries)
    assert figures["recall@10 in 1%"] < figures["recall@10 in 4%"] < figures["recall@10 in 16%"] <= 1


def test_the_command_writes_figures_tables_and_pictures(work, tmp_path, capsys):
    options = ["--sizes", str(SIZE), "--dim", str(DIM), "--rounds", "1", "--work", str(work), "--output", str(tmp_path)]
    assert main(["benchmark-index", *options, "--leave-out", *LEFT_OUT]) == 0
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / f"index-{SIZE}x{DIM}.json").read_text())
    assert (record["collection"], record["documents"], record["dim"]) == ("synthetic", SIZE, DIM)
    assert record["left out"] == LEFT_OUT
    assert "Left out: cells by a linear router; faiss" in printed
    exact = {row["scores"]: row["recall@10"] for row in reversed(record["rows"])}  # the first of each kind
    assert exact == {"dense": 1, FUSED: 1}
    for row in record["rows"]:
        assert row["ms at batch 1"] > 0
        assert row["clock ms at batch 64"] > 0
        assert "Hit@10" not in row
    for name, sizes in record["systems"].items():
        assert sizes["disk bytes"] > 0, name
        assert sizes["build seconds"] >= 0
    assert any(row[0] == "ours, float32 (dense)" for row in table_rows(printed))
    for picture in ("batch-1", "batch-64", "bytes"):
        assert (tmp_path / f"index-{SIZE}x{DIM}-{picture}.svg").stat().st_size > 5_000


def test_judgements_give_hits(tmp_path):
    tree = random_tree(1200, branching=8)
    queries = np.array(tree.embeddings[:70])
    words = BM25([""] * 1200, Words(np.arange(1200), 0))
    write(tmp_path, tree, words, (queries, queries), ["w1"] * 70, [[row] for row in range(70)])
    data = Searched.load(tmp_path)
    assert data.seconds is None
    assert data.relevant[3] == [3]
    for system in systems(LEFT_OUT):
        system.prepare(data)
    from scripts.benchmarks.index_measure import measure

    record = measure(tmp_path, 1, LEFT_OUT)
    rows = [row for row in record["rows"] if row["scores"] == "dense" and row["value"] in (0, math.inf)]
    assert all(row["Hit@10"] == 1 for row in rows)
    assert record["systems"]["ours, float32"]["build seconds"] is None
    assert "Hit@10" in report({**record, "collection": "own"})


def test_an_index_brings_its_queries_judgements_and_words(encoder, tmp_path):
    tiny = TinyIndex(encoder, tmp_path)
    write_index(tiny.index, tiny.collection_read, tmp_path / "work", 40)
    data = Searched.load(tmp_path / "work")
    assert data.texts == QUERIES
    judged = [tiny.ids[data.tree.doc_rows[position]] for (position,) in data.relevant]
    assert judged == tiny.ids[: len(QUERIES)]
    np.testing.assert_allclose(data.queries, tiny.retriever.encode_queries(QUERIES).embeddings, atol=1e-5)
    np.testing.assert_array_equal(data.lexical.scores(QUERIES), tiny.retriever.lexical.scores(QUERIES))
    assert (data.lexical_weight, data.seconds) == (0.05, None)
    with pytest.raises(ValueError, match="'cells by a linear router' needs train queries"):
        RoutedTree().build(replace(data, train=data.train[:0]))
    with pytest.raises(ValueError, match="must have at least 41 documents, got 40"):
        write_index(tiny.index, tiny.collection_read, tmp_path / "work", 41)
    small = GenerativeRetriever.from_pretrained(tiny.index, device="cpu")
    small.keep_vectors("int8", 8)
    small.save_pretrained(tmp_path / "small")
    with pytest.raises(ValueError, match="must have a lexical part, vectors of kind float32"):
        write_index(tmp_path / "small", tiny.collection_read, tmp_path / "work", 40)


def test_code_bytes_divide_the_dimension():
    assert [code_bytes(dim) for dim in (8, 16, 64, 384, 768)] == [4, 8, 16, 24, 48]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "100"], "at least 1024"),
        (["--dim", "66"], "--dim must be a multiple of 16, so that codes have whole bytes, got 66"),
        (["--data", "minipedia"], "--run and --data go together"),
        (["--leave-out", "faiss Flat"], "--leave-out takes 'ours, float32',"),
    ],
)
def test_wrong_arguments_are_refused(options, message, capsys):
    assert main(["benchmark-index", *options]) == 2
    assert message in capsys.readouterr().err
