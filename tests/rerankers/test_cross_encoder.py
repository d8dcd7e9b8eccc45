"""A cross-encoder after the beam: its scores against one pair at a time, the texts it reads, its names and its errors."""

import json

import numpy as np
import pytest
import torch
from dsi_experiments.rerankers.learned import LinearReranker
from sentence_transformers import CrossEncoder

import dsi
from dsi import GenerativeRetriever, SearchConfig
from dsi.commands.main import main
from dsi.config import Config, write_config
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data.collection import read_collection
from dsi.docids.words.bm25 import BM25
from dsi.rerankers.cross_encoder import CrossEncoderReranker
from dsi.rerankers.reranking import save_reranker
from dsi.search.candidates import load_reranker
from tests.support.edits import edit_json
from tests.support.small import random_generator, save_cross_encoder

QUERIES = ["which capitals are on the danube", "a city", "the river in the north of the country"]
NEW = {"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia and Croatia."}


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer_folder):
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"), tokenizer_folder)


@pytest.fixture
def collection(beir):
    return read_collection(beir())


@pytest.fixture
def index(collection, encoder, tmp_path):
    """An index on disk that keeps no texts, as a training leaves it."""
    documents = collection.documents
    texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    lexical = BM25(documents["doc_id"], collection.full_texts())
    settings = SearchConfig(alpha=0.4, beam_width=20, ann_temperature=0.1, lexical_weight=0.1)
    without = documents.remove_columns(["text"])
    GenerativeRetriever(encoder, tree, random_generator(tree), without, settings, lexical).save_pretrained(
        tmp_path / "index"
    )
    write_config(Config(), tmp_path / "index" / "config.toml")
    return tmp_path / "index"


@pytest.fixture
def retriever(index):
    return GenerativeRetriever.from_pretrained(index, device="cpu")


def full_text(collection, doc_id):
    row = collection.documents[collection.rows[doc_id]]
    return f"{row['title']} {row['text']}"


def test_candidates_are_ordered_by_the_model_one_pair_at_a_time(retriever, collection, model):
    candidates = retriever.candidates(QUERIES, k=8)
    retriever.keep_texts(collection.documents)
    assert candidates.texts_of is None  # a snapshot is what it was
    candidates = retriever.candidates(QUERIES, k=8)
    found = dsi.rerank(candidates, CrossEncoderReranker(model, device="cpu", batch_size=3))
    literal = CrossEncoder(str(model), device="cpu")
    for query, before, hits in zip(QUERIES, candidates.doc_ids, found.hits(), strict=True):
        scores = {
            doc_id: float(literal.predict((query, full_text(collection, doc_id)), activation_fn=torch.nn.Identity()))
            for doc_id in before
        }
        assert [hit.doc_id for hit in hits] == sorted(before, key=lambda doc_id: -scores[doc_id])
        assert [hit.score for hit in hits] == pytest.approx([scores[hit.doc_id] for hit in hits], abs=1e-4)
        assert max(scores.values()) - min(scores.values()) > 0.1
    assert found.texts() == [[full_text(collection, doc_id) for doc_id in own] for own in found.doc_ids]
    order = np.array([2, 0])
    again = dsi.rerank(candidates.select(order), CrossEncoderReranker(model, device="cpu"))
    assert again.doc_ids == [found.doc_ids[row] for row in order]


def test_short_lists_and_chains(retriever, collection, model):
    retriever.keep_texts(collection.documents)
    reranker = CrossEncoderReranker(model, device="cpu")
    few = retriever.documents.dataset["doc_id"][:3]
    candidates = retriever.candidates(QUERIES, k=10, features=LinearReranker.features, allow=few)
    found = dsi.rerank(candidates, [reranker, LinearReranker({"similarity": 1.0})])
    assert all(sorted(own) == sorted(few) for own in found.doc_ids)
    scores = reranker.score(candidates)
    assert scores.shape == candidates.scores.shape
    assert (scores[~candidates.valid] == 0).all()


def test_pairs_are_scored_in_any_order_and_number(model):
    reranker = CrossEncoderReranker(model, device="cpu", batch_size=2)
    pairs = [("neon", "a noble gas"), ("neon", "the longest river of europe, by far"), ("volga", "river"), ("a", "b")]
    scores = reranker.score_pairs(pairs * 3, show_progress=True)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, np.tile(scores[:4], 3), atol=1e-5)
    np.testing.assert_allclose(reranker.score_pairs(pairs[::-1]), scores[:4][::-1], atol=1e-5)
    assert reranker.score_pairs([]).shape == (0,)


def test_texts_stay_with_the_index_through_updates(retriever, collection, index, model):
    reranker = CrossEncoderReranker(model, device="cpu")
    with pytest.raises(ValueError, match=r"this index keeps titles only; .*`dsi update RUN --texts DIR`"):
        dsi.rerank(retriever.candidates(QUERIES), reranker)
    retriever.keep_texts(collection.documents)
    retriever.add([NEW])
    retriever.remove([collection.documents["doc_id"][0]])
    retriever.save_update(index)
    loaded = GenerativeRetriever.from_pretrained(index, device="cpu")
    candidates = loaded.candidates(["rivers of bosnia"], k=40)
    texts = dict(zip(candidates.doc_ids[0], candidates.texts()[0], strict=True))
    assert texts.pop("new") == "Neretva A river in Bosnia and Croatia."
    assert texts == {doc_id: full_text(collection, doc_id) for doc_id in collection.documents["doc_id"][1:]}
    assert dsi.rerank(candidates, reranker).doc_ids != candidates.doc_ids
    with pytest.raises(ValueError, match="metadata must not have the key 'text'"):
        loaded.add([{"doc_id": "x", "title": "x", "text": "x", "metadata": {"text": "y"}}])
    with pytest.raises(ValueError, match=r"where .* does not work"):
        loaded.search("river", where="text = 'y'")  # no filter reads whole texts


def test_texts_that_do_not_fit_are_refused(retriever, collection):
    with pytest.raises(ValueError, match=r"no text of document '.*'; give the texts of all documents"):
        retriever.keep_texts(collection.documents.select(range(10)))
    with pytest.raises(ValueError, match="has no column text"):
        retriever.keep_texts(collection.documents.remove_columns(["text"]))
    assert not retriever.documents.has_texts


def test_a_cross_encoder_has_a_name_and_can_be_saved_under_another(retriever, collection, index, model):
    retriever.keep_texts(collection.documents)
    candidates = retriever.candidates(QUERIES, k=5)
    (named,) = dsi.load_rerankers(index, f"cross-encoder:{model}", device="cpu")
    folder = save_reranker(named, index, "ce")
    assert sorted(path.name for path in folder.iterdir()) == ["model", "reranker.json"]
    (saved,) = dsi.load_rerankers(index, ["ce"], device="cpu")
    assert saved.name == str(folder / "model")
    np.testing.assert_array_equal(saved.score(candidates), named.score(candidates))


def test_models_that_cannot_score_pairs_are_refused(index, model, tmp_path, tokenizer_folder, sentence_bert_folder):
    with pytest.raises(FileNotFoundError, match=r"cross-encoder 'no/such' cannot be loaded \(.*\); give the Hub name"):
        dsi.load_rerankers(index, ["cross-encoder:no/such"])
    with pytest.raises(ValueError, match="cross-encoder needs a name; give the Hub name"):
        dsi.load_rerankers(index, ["cross-encoder:"])
    with pytest.raises(FileNotFoundError, match="cannot be loaded"):
        CrossEncoderReranker(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"must have one label, its score; .* has 3"):
        CrossEncoderReranker(save_cross_encoder(tmp_path / "three", tokenizer_folder, labels=3))
    with pytest.raises(ValueError, match="has no trained head that scores pairs"):
        CrossEncoderReranker(sentence_bert_folder)
    with pytest.raises(ValueError, match="device 'cuda:99' cannot be used here"):
        CrossEncoderReranker(model, device="cuda:99")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        CrossEncoderReranker(model, batch_size=0)


def test_a_saved_one_whose_tokenizer_cannot_pad_is_refused(tmp_path, model):
    """Alone each pair is read; several of unequal lengths are not."""
    CrossEncoderReranker(model, device="cpu").save(tmp_path / "pairs")
    edit_json(tmp_path / "pairs" / "model" / "tokenizer_config.json", lambda config: config.update(pad_token=None))
    with pytest.raises(ValueError, match=r"pairs/model cannot be read \(its tokenizer has no padding token"):
        load_reranker(tmp_path / "pairs")


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("sentence_bert_config.json", lambda config: config.pop("transformer_task")),
        (
            "modules.json",
            lambda modules: modules[0].update(type="sentence_transformers.base.modules.other.Transformer"),
        ),
    ],
)
def test_a_saved_one_that_scores_nothing_is_refused(tmp_path, model, file, change):
    CrossEncoderReranker(model, device="cpu").save(tmp_path / "pairs")
    edit_json(tmp_path / "pairs" / "model" / file, change)
    with pytest.raises(ValueError, match=r"pairs/model"):
        load_reranker(tmp_path / "pairs")


def test_evaluate_reads_the_texts_of_the_collection(index, collection, model, capsys, retriever):
    name, results = f"cross-encoder:{model}", index / "results.json"
    common = [str(index), "--data", str(collection.name), "--device", "cpu", "--rerank", name, "--rerank-depth", "6"]
    assert main(["evaluate", *common, "--results", str(results)]) == 0
    assert f"| + {name} " in capsys.readouterr().out
    found = json.loads(results.read_text())["systems"][f"+ {name}"]
    assert found["settings"]["rerank depth"] == 6
    retriever.keep_texts(collection.documents)
    evaluation = dsi.evaluate(retriever, collection, rerankers={"x": [CrossEncoderReranker(model)]}, rerank_depth=6)
    assert np.mean([*evaluation.row("+ x").values["Hit@1"].values()]) == pytest.approx(
        found["Total"]["Hit@1"] / 100, abs=1e-3
    )


def test_search_reranks(index, collection, model, capsys, retriever):
    common = [str(index), "--query", QUERIES[0], "--device", "cpu", "--json", "-k", "3"]
    name = f"cross-encoder:{model}"
    assert main(["search", *common, "--rerank", name]) == 2
    assert "this index keeps titles only" in capsys.readouterr().err
    assert main(["update", str(index), "--texts", str(collection.name), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["search", *common, "--rerank", name, "--rerank-depth", "7"]) == 0
    printed = json.loads(capsys.readouterr().out)
    retriever.keep_texts(collection.documents)
    (best,) = dsi.rerank(retriever.candidates([QUERIES[0]], k=7), CrossEncoderReranker(model)).hits()
    assert [hit["doc_id"] for hit in printed["hits"]] == [hit.doc_id for hit in best[:3]]
    assert main(["search", *common, "--rerank-depth", "7"]) == 2
    assert "give --rerank too" in capsys.readouterr().err
    save_reranker(LinearReranker({"similarity": -1.0}), index, "far")
    assert main(["search", *common, "--rerank", f"{name}+far"]) == 0
    printed = json.loads(capsys.readouterr().out)
    far_first = LinearReranker({"similarity": -1.0})
    candidates = retriever.candidates([QUERIES[0]], k=50, features=far_first.features)
    (far,) = dsi.rerank(candidates, far_first).hits()
    assert [hit["doc_id"] for hit in printed["hits"]] == [hit.doc_id for hit in far[:3]]


def test_a_panic_of_the_tokenizer_is_an_error(model, monkeypatch):
    class Panic(BaseException):
        """What a library in Rust raises."""

    def panic(*arguments, **options):
        raise Panic("index out of bounds")

    reranker = CrossEncoderReranker(model, device="cpu")
    monkeypatch.setattr(reranker._model, "predict", panic)
    with pytest.raises(RuntimeError, match=r"A library failed on this text \(Panic\('index out of bounds'\)\)"):
        reranker.score_pairs([("a", "b")])
