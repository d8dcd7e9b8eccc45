"""`dsi compare-docids`: schemes beside each other on 40 documents, and its figures against slow, literal ones."""

import json
import re
from collections import Counter

import numpy as np
import pytest

import dsi
from docids.clustering import DocidsConfig, build_tree
from docids.schemes import SCHEMES
from dsi.diagnosis import diagnose, errors_by_level
from dsi.search.request import SearchConfig
from dsi.systems import alone
from scripts.experiments import docids
from scripts.experiments.descents import descend
from scripts.experiments.docids_report import SYSTEMS
from scripts.experiments.rows import Rows
from scripts.experiments.typos import with_typos
from scripts.main import main
from tests.conftest import random_generator, random_tied
from tests.test_pipeline import TIED, write_settings
from tests.test_tree_models import table_rows


@pytest.fixture
def command(beir, tmp_path, sentence_t5_folder, t5_folder):
    """The command on 40 documents."""
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, pseudo_queries={"method": "none"},
        contrastive={"loss": "none", "fill_with_pseudo_queries": False}, training={"epochs": 1.0},
        examples={"pseudo_queries_per_document": 0}, **{**TIED, "ranking": {"epochs": 0.0}},
    )  # fmt: skip
    given = ["--data", str(beir()), "--config", str(config), "--output", str(tmp_path / "out"), "--device", "cpu"]
    return lambda *more: main(["compare-docids", *given, *more])


def found_in(path) -> dict[tuple[str, int], dict]:
    return {(record["row"], record["seed"]): record["found"] for record in Rows(path).records()}


def test_schemes_are_measured_beside_each_other_and_a_killed_command_continues(command, tmp_path, capsys):
    output, schemes = tmp_path / "out", ["kmeans", "title"]
    assert command("--schemes", *schemes) == 0
    printed, text = capsys.readouterr().out, (output / "tied.md").read_text()
    assert text.strip() in printed
    assert len(list((output / "store" / "encoder").iterdir())) == 2  # one for all, one without what is added later
    assert len(list((output / "store" / "generator").iterdir())) == 2 * len(schemes)
    rows, values = found_in(output / "tied.json"), Rows(output / "tied.json").values()
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
    assert (output / "tied.svg").read_text().startswith("<?xml")

    before = (output / "tied.json").read_bytes()
    records = [record for record in Rows(output / "tied.json").records() if record["row"] != "title"]
    (output / "tied.json").write_text(json.dumps({"rows": records}))
    assert command("--schemes", *schemes) == 0
    assert capsys.readouterr().out.count("tied: ") == 1
    again = found_in(output / "tied.json")
    assert json.loads(before)["rows"][0]["found"] == again["dense, BM25", 0]
    assert again["title", 0]["systems"] == rows["title", 0]["systems"]


def test_without_documents_added_later_half_is_trained(command, tmp_path, capsys):
    assert command("--schemes", "kmeans", "--without-added") == 0
    assert "Documents added after training" not in capsys.readouterr().out
    output = tmp_path / "out"
    assert "added" not in found_in(output / "tied-trained.json")["kmeans", 0]
    assert [len(list((output / "store" / stage).iterdir())) for stage in ("encoder", "generator")] == [1, 1]


def test_digits_and_names_of_schemes(command, tmp_path, capsys, monkeypatch):
    own = {**docids.DIGITS, "generator": {"docid_tokens": "digits", "num_layers": 1, "num_heads": 4}}
    monkeypatch.setattr(docids, "DIGITS", {**own, "examples": {}, "training": {"epochs": 1.0}})
    assert command("--schemes", "pq", "--digits", "--seeds", "0", "1") == 0
    assert {seed for name, seed in found_in(tmp_path / "out" / "digits.json") if name == "pq"} == {0, 1}
    assert "over 2 seeds" in capsys.readouterr().out
    assert command("--schemes", "words") == 2
    assert "There is no docid scheme 'words'; use one of kmeans" in capsys.readouterr().err


def test_trees_are_of_one_size_and_titles_need_titles(beir):
    collection = dsi.read_collection(beir())
    assert docids.schemes_for(collection) == [name for name in SCHEMES if name != "file"]
    for documents in (500, 2000, 100_000):
        for branching in (8, 10, 15):
            shapes = {name: docids.shape(name, documents, branching) for name in docids.schemes_for(collection)}
            assert {own["branching"] for name, own in shapes.items() if name != "title"} == {8}
            assert 8**-0.5 <= 8 ** shapes["rq"]["levels"] / documents <= 8**0.5
            assert all(DocidsConfig(method=name, **own) for name, own in shapes.items())
    untitled = json.dumps({"_id": "a", "title": " ", "text": "a text"})
    judged = "query-id\tcorpus-id\tscore\nq\ta\t1"
    qrels = dict.fromkeys(("train", "dev", "test"), judged)
    collection = dsi.read_collection(beir(untitled, '{"_id": "q", "text": "a"}', **qrels))
    assert "title" not in docids.schemes_for(collection)


@pytest.mark.parametrize("kind", ["tied", "digits"])
def test_survival_and_search_errors_are_those_of_single_traced_searches(kind, beir, encoder):
    collection = dsi.read_collection(beir())
    documents = collection.documents
    vectors = encoder.encode(encoder.document_texts(documents["title"], documents["text"]), "document")
    tree = build_tree(vectors, DocidsConfig(branching=3, max_leaf_size=3))
    generator = random_tied(tree) if kind == "tied" else random_generator(tree)
    config = SearchConfig(fusion="estimate" if kind == "tied" else "bound", lexical_weight=0.0)
    retriever = dsi.GenerativeRetriever(encoder, tree, generator, documents, config, None)
    pairs = list(reversed(collection.pairs("test")))[::10]
    answers = {query_id: documents[row]["doc_id"] for query_id, row in pairs}
    queries = {query_id: collection.queries[query_id] for query_id in answers}
    encoded = retriever.encode_queries(queries)
    lost = 0
    for beam_width, k in ((1, 1), (2, 2), (4, 3)):
        options = {**alone(retriever), "beam_width": beam_width}
        found = descend(retriever, encoded, list(answers.values()), k, **options)
        assert {q: set(run) for q, run in found.run.items()} == {
            q: set(run) for q, run in retriever.run(encoded, k, **options).items()
        }
        for row, (query_id, text) in enumerate(queries.items()):
            digits = tree.digits(int(tree.positions[collection.rows[answers[query_id]]]))
            trace, _ = retriever.trace(text, k, **options)
            expected, alive = [], True
            for level in range(tree.depth):
                if level < len(digits) - 1:  # an inner node
                    own = trace[level] if level < len(trace) else None
                    node = tree.node(digits[: level + 1])
                    alive &= own is not None and node in own.nodes[own.kept].tolist()
                else:
                    alive &= answers[query_id] in found.run[query_id]
                expected.append(alive)
            assert found.alive[row].tolist() == expected
        errors = errors_by_level(diagnose(retriever, queries, answers, k, **options))
        assert dict(enumerate(found.search_errors)) == {
            level: errors["search errors"].get(level, 0) for level in range(tree.depth)
        }
        assert found.model_errors == sum(errors["model errors"].values())
        assert found.survival == [round(100 * share, 2) for share in found.alive.mean(axis=0)]
        lost += sum(found.search_errors)
    assert (
        lost > 0 or kind == "digits"
    )  # a random tied generator loses many; paths of a random decoder are another matter
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


def test_a_typo_is_one_letter_swapped_dropped_doubled_or_replaced():
    queries = {f"q{n}": "Which rivers flow to the sea?" for n in range(400)} | {"short": "ox or elk", "number": "1984"}
    found = with_typos(queries)
    assert found == with_typos(queries) != with_typos(queries, seed=1)
    assert (found["short"], found["number"]) == ("ox or elk", "1984")
    lengths = Counter(len(text) - len(queries["q0"]) for q, text in found.items() if q not in ("short", "number"))
    assert set(lengths) == {-1, 0, 1}
    assert min(lengths.values()) > 50
    for query_id in list(queries)[:400]:
        words = [re.findall(r"\w+", text) for text in (queries[query_id], found[query_id])]
        changed = [before for before, after in zip(*words, strict=True) if before != after]
        assert len(changed) == 1
        assert len(changed[0]) >= 4
