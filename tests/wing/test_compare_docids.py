"""`dsi compare-docids`: schemes beside each other on 40 documents, and its figures against slow, literal ones."""

import dataclasses
import json
from copy import copy

import numpy as np
import pytest
from dsi_experiments import docid_schemes as docids
from dsi_experiments.descents import descend, survivors
from dsi_experiments.docids_report import SYSTEMS
from dsi_experiments.laboratory import Laboratory, answer
from dsi_experiments.rows import Rows
from dsi_experiments.updates import hold_out, without

import dsi
from dsi.commands.main import main
from dsi.config import Config
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.schemes import SchemeInput, make_docids
from dsi.measuring.runs import generator_only
from dsi.search.request import SearchConfig
from dsi.search.results import LevelTrace, Trace
from tests.support.parts import from_parts
from tests.support.small import random_generator
from tests.support.tables import table_rows
from tests.support.tiny_settings import VECTORS, write_settings

PIECES = ("", "x", "0", "-1", "1.5", "65537")


@pytest.fixture
def command(beir, tmp_path, sentence_t5_folder, t5_folder):
    """The command on 40 documents."""
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder,
        contrastive={"loss": "none"},
        **VECTORS,
    )  # fmt: skip
    given = [str(beir()), "--config", str(config), "--output", str(tmp_path / "out"), "--device", "cpu"]
    return lambda *more: main(["compare-docids", *given, *more])


def base(folder) -> Config:
    """The configuration of `command`."""
    return Config.named(folder / "config.toml")


def keep_judgements(folder, split: str, wanted) -> None:
    """Remove the judgements of all documents but those that are wanted."""
    path = folder / "qrels" / f"{split}.tsv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(row for row in rows if wanted(row.split("\t")[1]))]))


def found_in(path) -> dict[tuple[str, int], dict]:
    return {(record["row"], record["seed"]): record["found"] for record in Rows(path).records()}


@pytest.mark.slow
def test_schemes_are_measured_beside_each_other_and_a_killed_command_continues(command, tmp_path, capsys):
    output, schemes = tmp_path / "out", ["kmeans", "title"]
    assert command("--schemes", *schemes) == 0
    printed, text = capsys.readouterr().out, (output / "vectors.md").read_text()
    assert text.strip() in printed
    assert len(list((output / "store" / "encoder").glob("[!.]*"))) == 1  # it is not trained
    assert len(list((output / "store" / "generator").glob("[!.]*"))) == 2 * len(schemes)
    rows, values = found_in(output / "vectors.json"), Rows(output / "vectors.json").values()
    assert list(rows) == [("dense, BM25", 0), *((name, 0) for name in schemes)]
    for name in schemes:
        found = rows[name, 0]
        tree = found["tree"]
        assert tree["documents"] == 40
        assert len(tree["documents a node"]) == len(found["beams"]["beam 10"]["survival"]) == tree["depth"]
        assert tree["documents a node"][0] == [40] * 5
        alone_hits = 100 * np.mean(list(values[name, 0]["alone, beam 10, Hit@10"].values()))
        assert found["systems"]["alone, beam 10"]["Total"]["Hit@10"] == pytest.approx(alone_hits, abs=0.01)
        assert found["beams"]["beam 10"]["survival"][-1] == pytest.approx(alone_hits, abs=0.01)  # one answer a query
        missed = sum(found["beams"]["beam 10"]["search errors"]) + found["beams"]["beam 10"]["model errors"]
        assert missed == round(found["queries"]["Total"] * (1 - alone_hits / 100))
        assert found["added"]["documents"] == 4
    sections = text.split("## ")
    assert [section.splitlines()[0] for section in sections[1:5]] == list(SYSTEMS.values())
    assert [cells[0] for cells in table_rows(sections[1])[2:]] == schemes
    assert (output / "vectors.svg").read_text().startswith("<?xml")

    before = (output / "vectors.json").read_bytes()
    records = [record for record in Rows(output / "vectors.json").records() if record["row"] != "title"]
    (output / "vectors.json").write_text(json.dumps({"rows": records}))
    assert command("--schemes", *schemes) == 0
    assert capsys.readouterr().out.count("vectors: ") == 1
    again = found_in(output / "vectors.json")
    assert json.loads(before)["rows"][0]["found"] == again["dense, BM25", 0]
    assert again["title", 0]["systems"] == rows["title", 0]["systems"]


@pytest.mark.slow
def test_without_documents_added_later_half_is_trained(command, tmp_path, capsys):
    assert command("--schemes", "kmeans", "--without-added") == 0
    assert "Documents added after training" not in capsys.readouterr().out
    output = tmp_path / "out"
    assert "added" not in found_in(output / "vectors-trained.json")["kmeans", 0]
    assert [len(list((output / "store" / stage).glob("[!.]*"))) for stage in ("encoder", "generator")] == [1, 1]


@pytest.mark.slow
def test_digits_and_names_of_schemes(command, tmp_path, capsys, monkeypatch):
    own = {**docids.DIGITS, "generator": {"docid_tokens": "digits", "num_layers": 1}}
    monkeypatch.setattr(docids, "DIGITS", {**own, "training": {"epochs": 1.0}})
    with (tmp_path / "collection" / "qrels" / "test.tsv").open("a") as judgements:
        judgements.write("\nargon.1\targon\t0")  # the only judgement of its query
    assert command("--schemes", "pq", "--digits", "--seeds", "0", "1", "0") == 0
    assert {seed for name, seed in found_in(tmp_path / "out" / "digits.json") if name == "pq"} == {0, 1}
    assert "over 2 seeds" in capsys.readouterr().out
    assert command("--schemes", "words") == 2
    assert "'words' is not a docid scheme; use one of kmeans" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *((["kmeans", f"kmeans+{own}"], f"from 1 to 65,536 pieces a document, got 'kmeans+{own}'") for own in PIECES),
        (["+2"], "'' is not a docid scheme; use one of kmeans"),
        (["kmeans", "title+2"], 'The scheme "title" makes a docid a document, got \'title+2\'; leave "+2" out'),
        (["kmeans", "file"], 'The scheme "file" reads docids and makes none, so it cannot be compared; leave it out'),
        (["kmeans", "--seeds", "0", "9999999999"], "seed must be at most 1000000000, got 9999999999"),
        (["kmeans", "title"], "document 'helium' (and 0 more) has none"),
    ],
)
def test_a_row_that_cannot_be_measured_is_refused_before_training(command, tmp_path, capsys, given, message):
    corpus = tmp_path / "collection" / "corpus.jsonl"
    first, *others = corpus.read_text().splitlines()
    corpus.write_text("\n".join([json.dumps({**json.loads(first), "title": " "}), *others]))
    assert command("--schemes", *given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "store").exists()


@pytest.mark.parametrize("among", [True, False])
def test_queries_must_ask_for_documents_added_later_and_for_others(command, tmp_path, capsys, among):
    collection = dsi.read_collection(tmp_path / "collection")
    added = {collection.documents[row]["doc_id"] for row in hold_out(collection, docids.HELD_OUT_SEED)}
    keep_judgements(tmp_path / "collection", "test", lambda doc_id: (doc_id in added) == among)
    assert command("--schemes", "kmeans") == 2
    asked = (4, 4) if among else (36, 0)
    assert (
        "Test queries ask for {} documents, of which {} are among the 4 that".format(*asked) in capsys.readouterr().err
    )
    assert not (tmp_path / "out" / "store").exists()
    laboratory = Laboratory(dsi.read_collection(tmp_path / "collection"), base(tmp_path), tmp_path / "out", "cpu")
    docids.Comparison(laboratory, digits=False, add=False).check([])


def test_what_is_missing_without_the_documents_added_later_is_refused_before_training(command, tmp_path, monkeypatch):
    monkeypatch.setattr(docids, "shape", lambda method, branching: {"branching": 38})  # of 40 documents 36 are trained
    laboratory = Laboratory(dsi.read_collection(tmp_path / "collection"), base(tmp_path), tmp_path / "out", "cpu")
    with pytest.raises(
        ValueError, match=r"^Without the documents that are added .* branching .* Or give --without-added\.$"
    ):
        docids.compare(laboratory, ["kmeans"], [0])
    assert not (tmp_path / "out" / "store").exists()


def test_the_part_without_some_documents_is_of_this_collection_with_its_own_dev_queries(command, tmp_path):
    folder, kept = tmp_path / "collection", []
    (folder / "qrels" / "dev.tsv").unlink()
    for documents in (40, 38):
        lines = (folder / "corpus.jsonl").read_text().splitlines()[:documents]
        (folder / "corpus.jsonl").write_text("\n".join(lines))
        doc_ids = [json.loads(line)["_id"] for line in lines]
        for split in ("train", "test"):
            keep_judgements(folder, split, doc_ids.__contains__)
        whole = dsi.read_collection(folder, dev_queries=0)
        part = without(Laboratory(whole, base(tmp_path), tmp_path / "out", "cpu"), [0, 1]).collection
        assert list(part.rows) == doc_ids[2:]
        assert part.qrels["dev"] == {}
        assert part.qrels["train"] == {
            q: own for q, own in whole.qrels["train"].items() if own.keys() <= part.rows.keys()
        }
        kept.append(part.name)
    assert kept[0] != kept[1]


def test_dense_search_is_that_of_whole_documents_and_all_have_the_seed(command, tmp_path):
    collection, config = dsi.read_collection(tmp_path / "collection"), base(tmp_path)

    def comparison(docids_config):
        laboratory = Laboratory(collection, config.with_changes({"docids": docids_config}), tmp_path / "out", "cpu")
        return docids.Comparison(laboratory, digits=False, add=False)

    whole = config.with_changes({"docids": {"pieces": 1}})
    for pieces in (0, 1, 3):  # rows that were measured before are found by it
        assert comparison({"pieces": pieces}).base == whole
    assert comparison({}).config("kmeans").docids.pieces == 1
    titles = comparison({"method": "title", "branching": 0, "max_leaf_size": 20})
    assert titles.base.docids == titles.config("title").docids == DocidsConfig(method="title")
    lines = (f"{doc_id}\t{row} {piece}\n" for row, doc_id in enumerate(collection.rows) for piece in range(3))
    (tmp_path / "docids.tsv").write_text("".join(lines))
    of_file = {"method": str(tmp_path / "docids.tsv"), "branching": 0, "max_leaf_size": 20}
    made = comparison({**of_file, "pieces": 3})
    made.check([])
    assert made.base.docids == DocidsConfig(method=of_file["method"], pieces=1)
    seventh = docids.Comparison(made.laboratory, 7, digits=False, add=False)
    assert (seventh.base.seed, seventh.config("kmeans").seed) == (7, 7)


def test_trees_are_of_one_size_and_titles_need_titles(beir):
    collection = dsi.read_collection(beir())
    names = docids.schemes_for(collection)
    assert names == ["kmeans", "balanced", "pq", "random", "rkmeans", "rq", "title"]
    for branching in (8, 10, 15):
        shapes = {name: docids.shape(name, branching) for name in names}
        assert {shape["branching"] for name, shape in shapes.items() if name != "title"} == {8}
        assert all(DocidsConfig(method=name, **shape) for name, shape in shapes.items())
    for documents in (500, 2000):
        points = np.random.default_rng(0).normal(size=(documents, 16)).astype(np.float32)
        paths = make_docids(SchemeInput(points, DocidsConfig(method="rkmeans", **docids.shape("rkmeans", 10)))).paths
        levels = next(n for n in range(1, 9) if 8**-0.5 <= 8**n / documents <= 8**0.5)
        assert paths[:, :levels].min() >= 0
        assert (paths[:, levels:] < 0).any()  # only documents that share all codes have another digit
    untitled = json.dumps({"_id": "a", "title": " ", "text": "a text"})
    judged = "query-id\tcorpus-id\tscore\nq\ta\t1"
    qrels = dict.fromkeys(("train", "dev", "test"), judged)
    collection = dsi.read_collection(beir(untitled, '{"_id": "q", "text": "a"}', **qrels))
    assert "title" not in docids.schemes_for(collection)


def test_a_trace_says_which_paths_were_pruned():
    first = LevelTrace(np.array([[1, 2, 3]]), np.float32([[0.5, 0.75, 0.25]]), np.array([[True, True, False]]))
    second = LevelTrace(np.array([[4, 5, -1]]), np.float32([[2.0, 3.0, -np.inf]]), np.array([[False, True, False]]))
    paths = np.array([[1, 5, 9], [3, 7, 8], [2, 4, -1]])
    assert survivors(Trace([first, second]), paths).tolist() == [
        [True, True, True], [False, True, True], [True, False, True]
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["vectors", pytest.param("digits", marks=pytest.mark.slow)])
def test_survival_and_search_errors_are_those_of_single_traced_searches(kind, beir, encoder):
    collection = dsi.read_collection(beir())
    documents = collection.documents
    vectors = encoder.encode(encoder.document_texts(documents["title"], documents["text"]), "document")
    tree = build_tree(vectors, DocidsConfig(branching=3, max_leaf_size=3))
    generator = None if kind == "vectors" else random_generator(tree)
    config = SearchConfig()
    retriever = from_parts(encoder, tree, generator, documents, config, None)
    pairs = list(reversed(collection.pairs("test")))[::10]
    answers = {query_id: documents[row]["doc_id"] for query_id, row in pairs}
    queries = {query_id: collection.queries[query_id] for query_id in answers}
    encoded = retriever.encode_queries(queries)
    lost = 0
    for beam_width, k in ((1, 1), (2, 2), (4, 3)):
        options = {**generator_only(retriever), "beam_width": beam_width}
        found = descend(retriever, encoded, list(answers.values()), k, **options)
        assert {q: set(run) for q, run in found.run.items()} == {
            q: set(run) for q, run in answer(retriever, encoded, k, **options).items()
        }
        errors: list[int] = []  # the level of each search error, 0 of a model error
        for row, (query_id, text) in enumerate(queries.items()):
            digits = tree.digits(int(tree.positions[collection.rows[answers[query_id]]]))
            at_options = copy(retriever)
            at_options.search_config = dataclasses.replace(config, **options)
            explained = at_options.explain(text, k)
            kept = {node.digits for level in explained.levels for node in level if node.kept}
            expected, alive, pruned = [], True, len(digits)
            for level in range(tree.depth):
                if level < len(digits) - 1:  # an inner node
                    alive &= digits[: level + 1] in kept
                    pruned = pruned if alive else min(pruned, level + 1)
                else:
                    alive &= answers[query_id] in found.run[query_id]
                expected.append(alive)
            assert found.alive[row].tolist() == expected
            if (doc_id := answers[query_id]) not in (hits := found.run[query_id]):
                (score,) = at_options.snapshot.follow([text], [[doc_id]]).scores[0]
                errors.append(pruned if score > min(hits.values()) else 0)
        assert list(found.search_errors) == [errors.count(level + 1) for level in range(tree.depth)]
        assert found.model_errors == errors.count(0)
        assert found.survival == [round(100 * share, 2) for share in found.alive.mean(axis=0)]
        lost += sum(found.search_errors)
    assert lost > 0 or kind == "digits"  # the walk loses many; paths of a random decoder are another matter
    assert not found.alive.all()


def test_bytes_and_documents_of_a_tree_are_counted_as_they_are():
    points = np.random.default_rng(0).normal(size=(90, 16)).astype(np.float32)
    tree = build_tree(points, DocidsConfig(branching=4, max_leaf_size=4))
    found = docids.measure_tree(tree)
    assert found["bytes a document"]["vectors"] == round((90 + tree.num_inner) * 16 * 4 / 90, 1)
    assert found["bytes a document"]["tree"] == round((4 * 4 * tree.num_inner + 4 * 90) / 90, 1)
    for level, nodes in enumerate(tree.levels):
        sizes = [len(tree.rows_below(node)) for node in range(nodes.start, nodes.stop)]
        assert found["documents a node"][level] == [*np.percentile(sizes, [0, 25, 50, 75, 100])]
