"""Documents like others: the answer is that of every document compared with the stored vectors and words, one at a time."""

import json
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.words.analyzer import Analyzer
from tests.support.small import MINIPEDIA
from tests.support.small_index import small_index

RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:120]]


@pytest.fixture(scope="module")
def index(sentence_bert_folder, tmp_path_factory):
    """Thirty documents of up to three pieces, of four articles each."""
    documents = [
        {"doc_id": f"d{at}", "title": own[0]["title"], "text": "\n\n".join(each["text"] for each in own), "even": at % 2 == 0}
        for at, own in enumerate(RECORDS[at : at + 4] for at in range(0, 120, 4))
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("similar") / "index"
    settings = {"encoder": {"piece_length": 60}, "docids": {"pieces": 3, "branching": 4, "max_leaf_size": 3}}
    config = dsi.Config().without_training().with_changes(settings)
    return dsi.index(documents, folder, config=config, encoder=str(sentence_bert_folder), device="cpu")


def of_one_by_one(index, doc_ids, weight):
    """{doc_id: score} of all other documents, best first, of one piece and one word after another."""
    tree, rows = index.snapshot.tree, {index.snapshot.documents.rows[doc_id] for doc_id in doc_ids}
    pieces = [[np.asarray(tree.embeddings[p]) for p in np.flatnonzero(tree.doc_rows == row)] for row in range(30)]
    assert max(map(len, pieces)) > 1
    central = [max(pieces[row], key=lambda own, all_=pieces[row]: float(own @ np.mean(all_, axis=0))) for row in rows]
    vector, words = np.mean(central, axis=0), telling(index, doc_ids)
    shares = index.snapshot.lexical.shares([words])[0]
    scores = {}
    for doc_id, row in index.snapshot.documents.rows.items():
        dense = max(float(own @ vector) for own in pieces[row]) - tree.piece_cost * np.log2(len(pieces[row]))
        if row not in rows:
            scores[doc_id] = dense + weight * float(shares[row])
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


def telling(index, doc_ids):
    """The 25 words of documents that BM25 weighs most in them, by their counts, of those that some other document has."""
    terms = Analyzer(index.snapshot.lexical.language).terms
    columns = (index.snapshot.documents.column(name) for name in ("title", "text"))
    texts = [f"{title}\n{text}" for title, text in zip(*columns, strict=True)]
    own, counts = {index.snapshot.documents.rows[doc_id] for doc_id in doc_ids}, [terms(text) for text in texts]
    mean = np.mean([len(each) for each in counts])
    weights = {}
    for row in own:
        for term in set(counts[row]):
            having, tf = sum(term in each for each in counts), counts[row].count(term)
            damping = index.snapshot.lexical.k1 * (
                1 - index.snapshot.lexical.b + index.snapshot.lexical.b * len(counts[row]) / mean
            )
            rarity = np.log1p((30 - having + 0.5) / (having + 0.5))
            weights[term] = weights.get(term, 0) + (having > 1) * rarity * tf / (tf + damping)
    found = index.similar(doc_ids, k=1).query.split()
    best, asked = sorted(weights.values(), reverse=True)[:25], [term for word in found for term in terms(word)]
    assert len(found) == len(asked) == 25
    assert [weights[term] for term in asked] == pytest.approx(best, rel=1e-4)
    return " ".join(found)


@pytest.mark.parametrize("doc_ids", [["d3"], ["d3", "d17"], ["d8", "d8", "d9", "d20"]])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_answer_is_that_of_all_documents_one_by_one(index, doc_ids, weight):
    expected = of_one_by_one(index, doc_ids, weight)
    hits = index.similar(doc_ids, k=40, method="exact", lexical_weight=weight, memory_weight=0.0)
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-4)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert not {*doc_ids} & {hit.doc_id for hit in hits}
    walked = index.similar(doc_ids, k=5, lexical_weight=weight, memory_weight=0.0, beam_width=20, candidates=40)
    assert walked.scores == pytest.approx(hits.scores[:5], abs=1e-4)
    assert index.similar("d3", k=3) == index.similar(["d3"], k=3)


def test_no_text_is_encoded_and_the_options_of_a_search_work(index, monkeypatch):
    monkeypatch.setattr(TextEncoder, "forward", None)
    everything = index.similar("d3", k=40)
    for filters in ({"where": "even = true"}, {"deny": everything.ids[:4]}, {"allow": everything.ids[3:9]}):
        hits = index.similar("d3", k=40, **filters)
        assert all("even" not in str(filters) or hit.metadata["even"] for hit in hits)
        known = {hit.doc_id: hit.score for hit in everything}
        assert {hit.doc_id: hit.score for hit in hits} == pytest.approx({hit.doc_id: known[hit.doc_id] for hit in hits})
    assert len(index.similar("d3", k=40, allow=["d3", "d4"])) == 1
    assert len(index.similar("d3", k=40, min_score=everything[4].score)) == 5
    extra = np.zeros((1, 30), dtype=np.float32)
    extra[0, index.snapshot.documents.rows["d11"]] = 1000
    assert index.similar("d3", k=1, extra_scores=extra)[0].doc_id == "d11"
    monkeypatch.undo()
    explained = everything[0].explain()
    assert (explained.rank, {*explained.parts}) == (1, {"dense", "BM25"})
    assert any(match.spans for match in everything.matches()[0])


def test_without_texts_or_words_the_vectors_are_the_query(index, encoder):
    titles = small_index(encoder, vectors=True)
    first = titles.snapshot.documents.column("doc_id")[0]
    hits = titles.similar(first, k=50)
    (query,) = np.asarray(titles.snapshot.tree.embeddings[titles.snapshot.tree.positions[[0]]])
    dots = {doc_id: float(np.asarray(titles.snapshot.tree.embeddings[titles.snapshot.tree.positions[row]]) @ query)
            for doc_id, row in titles.snapshot.documents.rows.items() if row}  # fmt: skip
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(dots, abs=1e-4)
    assert (hits.query, len(hits)) == ("", 49)
    with pytest.raises(
        ValueError, match="lexical_weight weighs a part that reads the text of a query, and there is none"
    ):
        titles.similar(first, lexical_weight=0.5)
    with pytest.raises(ValueError, match="token_weight weighs a part that reads the text"):
        index.similar("d3", token_weight=0.5)


def test_an_index_with_a_generator_takes_its_vectors(encoder):
    index = small_index(encoder)
    first = index.snapshot.documents.column("doc_id")[0]
    expected = index.similar(first, k=5).ids.tolist()
    assert index.similar(first, k=5, alpha=0.0).ids.tolist() == expected
    index.search_config = replace(index.search_config, beta=1.0)
    assert index.similar(first, k=5).ids.tolist() == expected
    with pytest.raises(ValueError, match="alpha weighs a part that reads the text"):
        index.similar(first, alpha=0.5)


@pytest.mark.parametrize(
    ("doc_ids", "message"),
    [
        ("d33x", "doc_ids names the doc_id 'd33x', which is not in the index."),
        (["d3", "nobody's"], 'doc_ids names the doc_id "nobody\'s", which is not in the index.'),
        ([], "similar() takes one doc_id or more, got none. Name a document."),
        (None, "doc_ids must be a list or set of doc_ids, got None. Put it into a list."),
        (b"d3", "doc_ids must be a list or set of doc_ids, got b'd3'. Put it into a list."),
        ([1.5], "doc_ids must hold doc_ids, which are strings, got 1.5."),
    ],
)
def test_documents_that_are_not_there_are_one_line(index, doc_ids, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (compared below)
        index.similar(doc_ids)
    assert str(raised.value) == message


def test_a_number_is_one_id(encoder):
    own = small_index(encoder, vectors=True)
    own.add([{"doc_id": 10000, "title": "Neretva", "text": "A river in Bosnia."}])
    assert own.get(10000) == own.get([10000])[0]
    assert own.similar(10000).ids.tolist() == own.similar("10000").ids.tolist()


def test_the_command_prints_what_is_like_documents(index, tmp_path, capsys):
    index.save(tmp_path / "index")
    command = ["search", str(tmp_path / "index"), "--device", "cpu", "-k", "3"]
    assert main([*command, "--like", "d3", "d5"]) == 0
    assert capsys.readouterr().out == f"{index.similar(['d3', 'd5'], k=3)}\n"
    assert main([*command, "--like", "d3", "--json", "--where", "even = true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["like"] == ["d3"]
    assert [hit["doc_id"] for hit in found["hits"]] == list(index.similar("d3", k=3, where="even = true").ids)
    assert main([*command, "--like", "nobody"]) == 2
    assert "which is not in the index" in capsys.readouterr().err
    for more in (["a query"], ["--rerank", "x"]):
        assert main([*command, *more, "--like", "d3"]) == 2
        assert "--like takes documents as the query; leave out" in capsys.readouterr().err


def test_a_copy_of_a_document_is_most_like_it(index):
    changed = copy(index)
    changed.add([{"doc_id": "copy", "title": index.get("d3").title, "text": index.get("d3").text, "even": False}])
    assert changed.similar("d3", k=1)[0].doc_id == "copy"
    assert changed.similar(["d3", "copy"], k=40).ids.tolist().count("d3") == 0
