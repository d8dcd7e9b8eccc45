"""The index benchmark at a small size: every system answers, exact ones exactly, and the results are written."""

import json

import numpy as np
import pytest
from dsi_experiments.benchmarks.index_data import Clouds, Searched, Words, hardness, write, write_index, write_synthetic
from dsi_experiments.benchmarks.index_faiss import K, Lists, code_bytes
from dsi_experiments.benchmarks.index_measure import FUSED, _encoder, measure, shared
from dsi_experiments.benchmarks.index_report import report
from dsi_experiments.benchmarks.index_systems import (
    WORDS_ONLY,
    Exact,
    ExactSmall,
    Generate,
    GenerateSmall,
    TreeSearch,
    systems,
)

from dsi.commands.main import main
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.store.retriever import load
from tests.support.small import random_tree
from tests.support.tables import table_rows
from tests.support.tiny_index import QUERIES, TinyIndex

SIZE, DIM = 1200, 16
LEFT_OUT = ["exact, int8", "faiss IVF-SQ8", "faiss IVF-PQ", "faiss IVF-PQ fast scan, int8 refined", "faiss HNSW"]


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


def test_every_system_nears_the_exact_answer_as_its_knob_grows(data):
    flat, *others = systems()
    true = flat.load(data)(data.queries, 0).documents
    exact = (data.queries @ data.tree.embeddings[:].T).argsort(axis=1)[:, ::-1][:, :K]
    assert shared(true, exact) == 1
    assert [type(other).__name__ for other in others] == [
        "Exact", "Generate", "ExactSmall", "GenerateSmall", "Lists", "ScalarCodes", "Codes", "RefinedCodes", "Graph"
    ]  # fmt: skip
    for system in others:
        search, knobs = system.load(data), system.knobs(SIZE)
        reached = [shared(search(data.queries, knob).documents, true) for knob in knobs]
        assert reached[-1] >= max(reached) - 0.02, system.name
        assert reached[-1] > 0.8, system.name
        assert reached[-1] > 0.99 or "float32" not in system.name, system.name
    assert [type(own).__name__ for own in systems(LEFT_OUT)] == ["Flat", "Exact", "Generate", "GenerateSmall", "Lists"]


def test_a_wider_beam_reads_more_vectors_and_the_exact_answer_reads_all(data):
    generate = Generate()
    search, knobs = generate.load(data), generate.knobs(SIZE)
    assert (knobs, generate.knobs(10**7)[-1]) == ([5, 10, 20, 40, 80], 2560)
    reads = [search(data.queries, knob).read.mean() for knob in knobs]
    assert reads == sorted(set(reads))
    assert 0 < reads[0] < reads[-1] < SIZE + data.tree.num_inner
    assert (Exact().load(data)(data.queries, 0).read == SIZE).all()
    assert Lists().load(data)(data.queries, 1).read is None


def test_an_index_in_few_bytes_agrees_with_its_own_exact_answer(data):
    small = GenerateSmall().search(data)
    assert DocidTree.load(data.folder / GenerateSmall.files[0]).codes is not None
    assert data.tree.codes is None
    exact = ExactSmall().load(data)(data.queries, 0).documents
    agreed = [shared(small(data.queries, beam).documents, exact) for beam in (5, 80)]
    assert agreed[0] < agreed[1]
    assert agreed[1] > 0.9


def test_words_find_what_the_walk_does_not(data):
    exact, generate = (system.search(data, data.lexical) for system in (Exact(), Generate()))
    true = exact(data.queries, 0, data.texts).documents
    alone = TreeSearch(data.tree, WORDS_ONLY, data.lexical, data.lexical_weight)
    words = alone(data.queries, 0, data.texts)
    both = generate(data.queries, 5, data.texts)
    walk = Generate().load(data)(data.queries, 5)
    assert shared(both.documents, true) > shared(walk.documents, true)
    assert shared(both.documents, true) >= shared(words.documents, true) > 0
    assert words.read.mean() < 100 + K
    assert (both.read >= walk.read).all()


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


@pytest.mark.slow
def test_the_command_writes_figures_tables_and_a_picture(work, tmp_path, capsys):
    options = ["--sizes", str(SIZE), "--dim", str(DIM), "--rounds", "1", "--work", str(work), "--output", str(tmp_path)]
    assert main(["benchmark-index", *options, "--leave-out", *LEFT_OUT]) == 0
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / f"index-{SIZE}x{DIM}.json").read_text())
    assert (record["collection"], record["documents"], record["dim"]) == ("synthetic", SIZE, DIM)
    assert record["left out"] == LEFT_OUT
    assert record["encoder"] is None
    assert "Left out: exact, int8; faiss" in printed
    exact = {row["scores"]: row["recall@10"] for row in reversed(record["rows"])}  # the first of each kind
    assert exact == {"dense": 1, FUSED: 1}
    for row in record["rows"]:
        assert row["ms at batch 1"] > 0
        assert row["clock ms at batch 64"] > 0
        assert "Hit@10" not in row
        assert ("vectors read" in row) == ("faiss" not in row["system"])
        assert "exact" not in row
    agreed = {(row["scores"], row["system"]): row.get("agree@10") for row in record["rows"]}  # at the widest beam
    assert agreed["dense", "generate, float32"] > 0.99
    assert agreed[FUSED, "generate, float32"] > 0.99
    assert agreed[FUSED, WORDS_ONLY] < 0.99
    assert agreed["dense", "generate, int8 and codes"] is None  # its exact answer was left out
    assert agreed["dense", "faiss IVF-Flat"] is None
    for name, sizes in record["systems"].items():
        assert sizes["disk bytes"] > 0, name
        assert sizes["build seconds"] >= 0
    assert any(row[0] == "generate, float32 (dense)" for row in table_rows(printed))
    (whole,) = (row for row in table_rows(printed) if row[:3] == ["dense", "exact, float32", ""])
    assert whole[3:6] == ["1.000", "", f"{SIZE:,}"]
    assert (tmp_path / f"index-{SIZE}x{DIM}-batch-64.svg").stat().st_size > 5_000


@pytest.mark.programs
def test_judgements_give_hits(tmp_path):
    tree = random_tree(1200, branching=8)
    queries = np.array(tree.embeddings[:70])
    words = BM25([""] * 1200, Words(np.arange(1200), 0))
    write(tmp_path, tree, words, queries, ["w1"] * 70, [[row] for row in range(70)])
    data = Searched.load(tmp_path)
    assert data.seconds is None
    assert data.relevant[3] == [3]
    for system in systems(LEFT_OUT):
        system.prepare(data)

    record = measure(tmp_path, 1, LEFT_OUT)
    rows = [row for row in record["rows"] if row["scores"] == "dense" and row["value"] == 0]
    assert [row["Hit@10"] for row in rows] == [1, 1]
    assert record["systems"]["exact, float32"]["build seconds"] is None
    text = report({**record, "collection": "own", "encoder": {"ms at batch 1": 3.21, "ms at batch 64": 1.5}})
    assert "Encoding a query takes 3.21 / 1.5 more." in text
    assert "Hit@10" in text


def test_an_index_brings_its_queries_judgements_and_words(encoder, tmp_path):
    tiny = TinyIndex(encoder, tmp_path)
    write_index(tiny.index, tiny.collection_read, tmp_path / "work", 40)
    data = Searched.load(tmp_path / "work")
    assert data.texts == QUERIES
    judged = [tiny.ids[data.tree.doc_rows[position]] for (position,) in data.relevant]
    assert judged == tiny.ids[: len(QUERIES)]
    np.testing.assert_allclose(data.queries, tiny.retriever.encode_queries(QUERIES).embeddings, atol=1e-5)
    np.testing.assert_array_equal(data.lexical.scores(QUERIES), tiny.retriever.snapshot.lexical.scores(QUERIES))
    assert (data.lexical_weight, data.seconds) == (0.05, None)
    ((_, encode),) = _encoder(data)
    np.testing.assert_allclose(encode(slice(1, 3)), data.queries[1:], atol=1e-5)
    with pytest.raises(ValueError, match="must have at least 41 documents, got 40"):
        write_index(tiny.index, tiny.collection_read, tmp_path / "work", 41)
    small = load(tiny.index, device="cpu")
    small.update(vectors="int8")
    small.save(tmp_path / "small")
    with pytest.raises(ValueError, match="must have a lexical part, vectors of kind float32"):
        write_index(tmp_path / "small", tiny.collection_read, tmp_path / "work", 40)


def test_code_bytes_divide_the_dimension():
    assert [code_bytes(dim) for dim in (8, 16, 64, 384, 768)] == [4, 8, 16, 48, 96]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "100"], "at least 1024"),
        (["--dim", "66"], "--dim must be a multiple of 16, so that codes have whole bytes, got 66"),
        (["--data", "minipedia"], "--run and --data go together"),
        (["--vectors", "missing.npy", "missing.npy"], "missing.npy"),
        (["--leave-out", "faiss Flat"], "--leave-out takes 'generate, float32',"),
        (["--leave-out", "exact, float32"], "got 'exact, float32'"),
    ],
)
def test_wrong_arguments_are_refused(options, message, capsys):
    assert main(["benchmark-index", *options]) == 2
    assert message in capsys.readouterr().err
