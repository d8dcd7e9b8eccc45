"""Where a score lies among the best scores of questions that the documents ask: by literal counts, and when it is not known."""

import json
from copy import copy
from dataclasses import asdict, replace

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.measuring.cloze import ask, best_scores, renew_best_scores
from dsi.search.best_scores import BestScores
from dsi.search.request import SearchRequest
from tests.support.files import needs_readers
from tests.support.small import MINIPEDIA

RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]]
DOCUMENTS = [{"doc_id": own["_id"], "title": own["title"], "text": own["text"]} for own in RECORDS]


@pytest.fixture(scope="module")
def folder(sentence_bert_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("percentiles") / "index"
    dsi.index(DOCUMENTS, folder, encoder=str(sentence_bert_folder), device="cpu")
    return folder


@pytest.fixture
def index(folder):
    return dsi.load(folder, device="cpu")


def test_it_is_the_share_of_questions_with_a_lower_best_score(index):
    scores = np.random.default_rng(0).normal(1, 0.3, 300).astype(np.float32)
    request = SearchRequest(1, index.search_config)
    best = BestScores.from_scores(scores, request, 60)
    for score in (-1.0, *scores[:50].tolist(), 9.0):
        assert best.percentile(score, request) == pytest.approx(100 * np.mean(scores < score), abs=2.5)
    assert best.percentile(-1.0, request) == 0
    assert best.percentile(9.0, request) == 100
    assert BestScores.from_scores(np.ones(300, np.float32), request, 60) is None


def test_the_best_score_of_a_question_is_the_highest_over_its_own_document_without_it_and_all_others(index):
    collection = dsi.docids.data.collection.Collection.from_records(DOCUMENTS)
    questions = ask(index, collection.documents)
    other, pairs, scores = copy(index), range(len(questions.rows)), []
    holes = [f"hole {pair}" for pair in pairs]
    texts = {row: own["text"] for row, own in enumerate(DOCUMENTS)}
    asked = questions.encoded.texts
    other.add(
        {"doc_id": hole, "title": DOCUMENTS[row]["title"], "text": texts[row].replace(asked[pair], "", 1)}
        for pair, (hole, row) in enumerate(zip(holes, questions.rows.tolist(), strict=True))
    )
    for pair, row in enumerate(questions.rows.tolist()):
        allowed = {own["doc_id"] for own in DOCUMENTS} - {DOCUMENTS[row]["doc_id"]} | {holes[pair]}
        (hit,) = other.search(asked[pair], k=1, allow=allowed, method="exact")
        scores.append(hit.score)
    # The weights of words are not quite the same: the holes, too, count as documents there.
    found = best_scores(index, questions)
    assert np.allclose(found.quantiles, np.quantile(scores, np.linspace(0, 1, 21)), atol=0.05)


def test_hits_have_it_wherever_the_index_goes(index, tmp_path, capsys):
    hits = index.search("which gas glows in signs", k=5)
    found = [hit.percentile for hit in hits]
    assert found == sorted(found, reverse=True)
    assert all(0 <= own <= 100 for own in found)
    assert hits[0].as_dict()["percentile"] == found[0]
    filtered = index.search("which gas glows in signs", k=5, deny=[hits[0].doc_id])
    assert filtered[0].percentile == found[1]  # of the whole collection, filter or not
    index.save(tmp_path / "index")
    assert dsi.load(tmp_path / "index", device="cpu").snapshot.best_scores == index.snapshot.best_scores
    main(["search", str(tmp_path / "index"), "which gas glows in signs", "--json"])
    assert json.loads(capsys.readouterr().out)["hits"][0]["percentile"] == found[0]


@pytest.mark.parametrize("options", [{"lexical_weight": 0.01}, {"token_weight": 0.0}, {"memory_weight": 1.0}])
def test_other_weights_have_none(index, options):
    (hit,) = index.search("gas", k=1, **options)
    assert hit.percentile is None
    assert "percentile" not in hit.as_dict()


def test_extra_scores_and_hits_without_their_search_have_none(index):
    extra = np.zeros((1, len(index)), dtype=np.float32)
    (hit,) = index.search("gas", k=1, extra_scores=extra)
    assert hit.percentile is None
    assert replace(hit).percentile is None


def test_a_collection_that_is_too_small_says_so(sentence_bert_folder, caplog):
    caplog.set_level("INFO")
    small = dsi.index(DOCUMENTS[:5], encoder=str(sentence_bert_folder), device="cpu")
    assert small.search("gas", k=1)[0].percentile is None
    assert caplog.text.count("no percentile") == 1


@needs_readers
def test_after_a_tenth_has_changed_it_is_measured_again(index, tmp_path):
    index.remove([own["doc_id"] for own in DOCUMENTS[:5]])
    assert index.search("gas", k=1)[0].percentile is not None
    assert not renew_best_scores(index)
    index.add([{**own, "doc_id": f"again {own['doc_id']}"} for own in DOCUMENTS[:5]])
    assert index.search("gas", k=1)[0].percentile is None
    assert renew_best_scores(index)
    assert index.search("gas", k=1)[0].percentile is not None
    index.add([{**DOCUMENTS[0], "doc_id": "once more"}])
    index.save(tmp_path / "index")
    assert dsi.load(tmp_path / "index", device="cpu").snapshot.best_scores.changed == 1
    new = tmp_path / "new.jsonl"
    new.write_text(
        "\n".join(json.dumps({**own, "doc_id": f"new {own['doc_id']}"}) for own in DOCUMENTS[:30]), encoding="utf-8"
    )
    main(["update", str(tmp_path / "index"), "--add", str(new)])
    loaded = dsi.load(tmp_path / "index", device="cpu")
    assert (loaded.snapshot.best_scores.documents, loaded.snapshot.best_scores.changed) == (91, 0)
    assert loaded.search("gas", k=1)[0].percentile is not None


def test_a_tuning_changes_no_snapshot_that_others_hold_and_is_saved(index, tmp_path):
    index.add([{**own, "doc_id": f"again {own['doc_id']}"} for own in DOCUMENTS[:10]])
    before, other = index.snapshot, copy(index)
    dsi.tune(index, dsi.Collection.from_records(DOCUMENTS))
    assert {before.best_scores.changed, other.snapshot.best_scores.changed} == {10}
    assert index.snapshot.best_scores.changed == 0
    index.save(tmp_path / "index")
    other.save(tmp_path / "other")
    dsi.tune(other, dsi.Collection.from_records(DOCUMENTS))
    other.save()
    for name in ("index", "other"):
        assert dsi.load(tmp_path / name, device="cpu").snapshot.best_scores == index.snapshot.best_scores


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        {"quantiles": [0.0] * 20},
        {"quantiles": [0.0] * 20 + [float("nan")]},
        {"weights": [1.0, "x", 2.0]},
        {"documents": -1},
    ],
)
def test_a_malformed_manifest_is_refused_in_a_line(index, wrong):
    entry = {**asdict(index.snapshot.best_scores), **wrong} if wrong else wrong
    with pytest.raises(ValueError, match=r"^manifest\.json: best_scores[^\n]*Run dsi tune\.$"):
        BestScores.from_manifest(entry)
    assert BestScores.from_manifest(None) is None
    assert (
        BestScores.from_manifest(json.loads(json.dumps(asdict(index.snapshot.best_scores))))
        == index.snapshot.best_scores
    )
