"""Training pairs of query, positive and negatives become judgements of train queries."""

import json
import re

import datasets
import pandas
import pytest

import dsi
from dsi.commands.main import main
from dsi.docids.data.collection import Collection

TEXTS = {"neon": "A gas that glows.", "argon": "A lazy gas.", "danube": "A long river.", "volga": "A longer river."}


def collection(**more):
    documents = [{"_id": doc_id, "title": doc_id.title(), "text": text} for doc_id, text in TEXTS.items()]
    return Collection.from_records(documents, **more)


def train(pairs, **more):
    read = collection(**more).with_pairs(pairs, dev_queries=0)
    return {read.queries[query_id]: judged for query_id, judged in read.qrels["train"].items()}


EXPECTED = {"glow": {"neon": 1, "argon": 0}, "river": {"volga": 1, "neon": 0, "argon": 0}}
FORMS = {
    "texts": [
        {"anchor": "glow", "positive": TEXTS["neon"], "negative": [TEXTS["argon"]]},
        {"anchor": "river", "positive": "Volga A longer RIVER.", "negative": [TEXTS["neon"], TEXTS["argon"]]},
    ],
    "ids": [
        {"query": "glow", "positives": ["neon"], "negatives": ["argon"]},
        {"query": "river", "positives": ["volga"], "negatives": ["neon", "argon"]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_pairs_of_every_form_are_judgements_of_train_queries(form, tmp_path):
    assert train(FORMS[form]) == EXPECTED
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in FORMS[form]))
    assert train(tmp_path / "pairs.jsonl") == EXPECTED
    pandas.DataFrame(FORMS[form]).to_parquet(tmp_path / "pairs.parquet")
    assert train(str(tmp_path / "pairs.parquet")) == EXPECTED


def test_tables_and_lines_of_texts_and_ids(tmp_path):
    rows = [("glow", "A gas that glows.", "A lazy gas."), ("river", "A longer river.", "A gas that glows.")]
    expected = {"glow": {"neon": 1, "argon": 0}, "river": {"volga": 1, "neon": 0}}
    frame = pandas.DataFrame(rows, columns=["query", "positive", "negative"])
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    frame.to_csv(tmp_path / "named.tsv", index=False, sep="\t")
    (tmp_path / "triples.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    for name in ("pairs.csv", "named.tsv", "triples.tsv"):
        assert train(tmp_path / name) == expected, name
    assert train(datasets.Dataset.from_pandas(frame)) == train(frame) == expected
    (tmp_path / "ids.tsv").write_text("7\tneon\targon\n8\tvolga\tneon\n")
    assert train(tmp_path / "ids.tsv", queries={"7": "glow", "8": "river", "9": "no pair"}) == expected
    numbered = pandas.DataFrame({"query": [7, 8], "id": ["neon", "volga"]})
    assert set(train(numbered, queries={"7": "glow", "8": "river"})) == {"glow", "river"}


def test_pairs_join_the_judgements_that_are_there_and_dev_and_test_stay_unseen(caplog):
    more = {
        "queries": {"a": "glow", "t": "Secret question"},
        "qrels": {"train": {"a": {"neon": 2, "argon": 0}}, "test": {"t": {"volga": 1}}},
    }
    read = collection(**more).with_pairs(
        [
            {"query": "glow", "positive": "argon"}, {"query": " secret  QUESTION", "positive": "volga"},
            {"query": "t", "positive": "volga"}, {"query": "new", "positive": "danube", "negative": "nowhere"},
            {"query": "lost", "positive": "not here"}, {"query": "only", "positive": "gone", "negative": "neon"},
            {"query": "new", "positive": "volga", "source": "clicks"},
        ],
        dev_queries=0,
    )  # fmt: skip
    assert read.qrels["train"] == {"a": {"neon": 2, "argon": 1}, "pair-4": {"danube": 1, "volga": 1}}
    assert read.qrels["test"] == {"t": {"volga": 1}}
    assert read.queries["pair-4"] == "new"
    assert read.digest != collection(**more).digest
    for line in (
        "pairs: pairs of dev or test queries: 2 (' secret  QUESTION', 't'); they are left out",
        "positives that are neither the id nor the text of a document of the collection: 2 ('not here', 'gone')",
        "negatives that are neither the id nor the text of a document of the collection: 1 ('nowhere')",
        "keys of pairs other than query, positive and negatives: 1 ('source'); they are not read",
        "queries without a positive in the collection: 1 ('only')",
    ):
        assert line in caplog.text


def test_dev_queries_are_cut_from_pairs_and_a_saved_collection_keeps_them(tmp_path):
    pairs = [{"query": f"{doc_id} {n}", "positive": doc_id} for n in range(20) for doc_id in TEXTS]
    read = collection().with_pairs(pairs)
    assert (len(read.qrels["train"]), len(read.qrels["dev"])) == (72, 8)
    read.save(tmp_path / "saved")
    again = dsi.read_collection(tmp_path / "saved")
    assert again.qrels == read.qrels
    assert again.queries == read.queries


def test_pairs_may_name_their_queries():
    read = collection(queries={"a": "glow"}).with_pairs(
        [
            {"query_id": "q1", "query": "gas", "positive": "neon"}, {"query_id": "q1", "query": "gas", "positive": "argon"},
            {"qid": 7, "query": "river", "positive": "volga"}, {"query_id": "q9", "query": "glow", "positive": "neon"},
            {"query": "long", "positive": "danube"},
        ],
        "test",
    )  # fmt: skip
    judged = {"q1": {"neon": 1, "argon": 1}, "7": {"volga": 1}, "a": {"neon": 1}, "pair-5": {"danube": 1}}
    assert read.qrels["test"] == judged
    assert read.queries == {"a": "glow", "q1": "gas", "7": "river", "pair-5": "long"}
    for first in ("glow", "river"):
        pairs = [{"query_id": "a", "query": text, "positive": "volga"} for text in (first, "flow")]
        with pytest.raises(ValueError, match=r"pairs\[\d\]: another query has the query_id 'a'; give each its own"):
            collection(queries={"a": "glow"} if first == "glow" else None).with_pairs(pairs)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([{"query": "a"}], "pairs[0] has no positive under one of the keys positive, positives, doc_id, id; its keys"),
        ([{"positive": "neon"}], "pairs[0] must have one query, a text or an id, under one of the keys query, anchor"),
        ([{"query": ["a", "b"], "positive": "neon"}], "pairs[0] must have one query"),
        ([{"query": "a", "positive": "neon", "label": 0}], "pairs[0] has the key 'label', but pairs cannot have scores"),
        ([{"query": "a", "positive": "neon", "scores": [1]}], "pairs[0] has the key 'scores', but pairs cannot have scores"),
        ([{"query": "a", "positive": "x"}], "pairs: no pair can be used, of 1; positives are ids or whole texts"),
        ("a\n", "line 1: expected query<TAB>document, and perhaps <TAB>negatives, with tabs between them, got 'a'"),
    ],
)  # fmt: skip
def test_pairs_that_cannot_be_understood_are_refused(pairs, message, tmp_path):
    if isinstance(pairs, str):
        (tmp_path / "pairs.tsv").write_text(pairs)
        pairs = tmp_path / "pairs.tsv"
    with pytest.raises(ValueError, match=re.escape(message)):
        collection().with_pairs(pairs)


def test_the_command_trains_on_pairs(tmp_path, sentence_bert_folder, capsys):
    lines = [{"_id": doc_id, "title": doc_id, "text": text} for doc_id, text in TEXTS.items()] + [
        {"_id": f"d{n}", "title": "", "text": f"document number {n}"} for n in range(16)
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in FORMS["ids"]))
    command = ["train", str(tmp_path / "data"), str(tmp_path / "run"), "--device", "cpu"]
    command += ["--set", f"encoder.name={sentence_bert_folder}", "--set", "contrastive.negatives=2"]
    command += ["--set", "contrastive.loss=scl", "--set", "contrastive.epochs=1"]
    assert main([*command, "--pairs", str(tmp_path / "pairs.jsonl")]) == 0
    output = capsys.readouterr()
    assert "2 train queries" in output.err or "2 train pairs" in output.err or "20 documents" in output.err
    # The commands that measure take such questions too.
    questions = [f"q{n}\tdocument number {n}\td{n}\n" for n in range(16)]
    (tmp_path / "questions.tsv").write_text("query_id\tquery\tdoc_id\n" + "".join(questions))
    asked = [str(tmp_path / "data"), "--device", "cpu", "--pairs", str(tmp_path / "questions.tsv")]
    runs = tmp_path / "runs"
    assert main(["evaluate", str(tmp_path / "run"), *asked, "--trec-runs", str(runs)]) == 0
    assert "| BM25" in capsys.readouterr().out
    assert {line.split()[0] for line in (runs / "test.qrels").read_text().splitlines()} == {f"q{n}" for n in range(16)}
    assert main(["compare", str(tmp_path / "run"), str(runs / "bm25.run"), *asked]) == 0
    assert "16 queries" in capsys.readouterr().out
    assert (tmp_path / "run" / "manifest.json").exists()


def test_pairs_are_measured_on_without_ids(caplog):
    clicks = collection().with_pairs([{"query": "glow", "positive": "neon"}], dev_queries=0)
    frame = pandas.DataFrame(
        [("long river", "danube"), ("long river", "volga"), ("Glow", "argon")], columns=["query", "positive"]
    )
    both = clicks.with_pairs(frame, "test")
    measured = {both.queries[query_id]: judged for query_id, judged in both.qrels["test"].items()}
    assert measured == {"long river": {"danube": 1, "volga": 1}, "glow": {"argon": 1}}
    assert both.qrels["train"] == clicks.qrels["train"]
    assert both.overlap_documents("test") == {"neon"}
    many = [{"query": f"query {number}", "positive": "volga"} for number in range(40)]
    uncut = clicks.with_pairs(many, dev_queries=0)
    assert uncut.with_pairs(frame, "test").qrels["train"] == uncut.qrels["train"]  # no dev queries are cut from them
    assert "is in both train and test: scores would be too high" in caplog.text
    assert both.digest != clicks.with_pairs(frame, "dev").digest
    with pytest.raises(ValueError, match="split must be one of train, dev, test, got 'valid'"):
        clicks.with_pairs(frame, "valid")
