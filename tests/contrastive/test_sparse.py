"""Learned sparse vectors in place of BM25: scores against a literal sum, updates, files, search and its certificate."""

import shutil

import numpy as np
import pytest
import torch
from dsi_experiments.rerankers.features import compute_features
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from transformers import PreTrainedTokenizerFast

import dsi
from dsi import GenerativeRetriever, SearchConfig
from dsi.commands.main import main
from dsi.contrastive import sparse
from dsi.contrastive.sparse import SparseIndex, SparseModel, build_lexical, load_lexical
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data.collection import read_collection
from dsi.docids.files.reading import folder_sums
from dsi.docids.words.bm25 import BM25, LexicalConfig
from tests.support.small import random_tied
from tests.support.sparse_models import save_model
from tests.support.tiny_settings import TINY

QUERIES = ["which capitals are on the danube", "a noble gas", "river"]
TEXTS = ["the danube in vienna", "neon is a noble gas", "rivers of europe", "a gas", "danube delta"]
IDS = [f"d{n}" for n in range(len(TEXTS))]


@pytest.fixture(scope="module")
def splade(tmp_path_factory, tokenizer_folder):
    return save_model(tmp_path_factory.mktemp("splade"), tokenizer_folder, inference_free=False)


@pytest.fixture(scope="module", params=["splade", "inference-free"])
def folder(request, tmp_path_factory, tokenizer_folder, splade):
    if request.param == "splade":
        return splade
    return save_model(tmp_path_factory.mktemp("free"), tokenizer_folder, inference_free=True)


def literal_scores(folder, queries, texts):
    """[queries, documents] one pair at a time: the sum over all terms of the product of the weights."""
    model = SparseEncoder(str(folder), device="cpu")
    vectors = [model.encode_document(text, convert_to_sparse_tensor=False) for text in texts]
    return np.array(
        [
            [float((model.encode_query(query, convert_to_sparse_tensor=False) * vector).sum()) for vector in vectors]
            for query in queries
        ]
    )


def test_scores_are_sums_of_products_of_weights(folder, monkeypatch):
    monkeypatch.setattr(sparse, "_BLOCK", 2)
    index = SparseIndex.from_texts(IDS, TEXTS, SparseModel.load(str(folder), "cpu"), progress=True)
    expected = literal_scores(folder, QUERIES, TEXTS)
    found = index.scores(QUERIES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (found > 0).any()
    lists = index.postings.merge()
    assert (lists.data > 0).all()
    assert 0 < lists.nnz < 0.5 * np.prod(lists.shape)  # the vectors are sparse
    np.testing.assert_array_equal(index.lengths, np.diff(lists.tocsc().indptr))
    run = index.run(dict(zip("abc", QUERIES, strict=True)), 3)
    for own, scores in zip(run.values(), expected, strict=True):
        best = [n for n in np.argsort(-scores, kind="stable")[:3] if scores[n] > 0]
        assert [*own] == [IDS[n] for n in best]
        assert [*own.values()] == pytest.approx(scores[best], rel=1e-4)
    assert index.scores([]).shape == (0, 5)


def test_the_best_have_their_scores_and_no_other_has_more(folder):
    index = SparseIndex.from_texts(IDS, TEXTS, SparseModel.load(str(folder), "cpu"))
    for own, terms in zip(index.scores(QUERIES), index.query_terms(QUERIES), strict=True):
        rows, few, rest, _ = index.scorer.top(terms, 2, allowed=np.arange(5) != 1)
        assert len(rows) <= 2
        np.testing.assert_allclose(few, own[rows], rtol=1e-5)
        assert (np.delete(own, [1, *rows]) <= rest).all()
        some = np.array([3, 0, 3])
        np.testing.assert_allclose(index.scorer.contributions(terms, some).sum(axis=0), own[some], rtol=1e-5)


def test_weights_below_0_are_refused(folder, monkeypatch):
    model = SparseModel.load(str(folder), "cpu")
    monkeypatch.setattr(model.encoder, "encode_document", lambda texts, **_: torch.full((len(texts), 3), -0.5))
    with pytest.raises(ValueError, match="must give terms weights of at least 0"):
        SparseIndex.from_texts(IDS, TEXTS, model)


def test_changed_is_as_if_made_anew_and_encodes_new_documents_alone(folder, monkeypatch):
    model = SparseModel.load(str(folder), "cpu")
    index, encoded = SparseIndex.from_texts(IDS, TEXTS, model), []
    encode = SparseModel.encode

    def spy(self, texts, kind, **options):
        encoded.extend((kind, text) for text in texts)
        return encode(self, texts, kind, **options)

    monkeypatch.setattr(SparseModel, "encode", spy)
    changed = index.update([1, 4], ["d0", "d2", "d3", "x", "y"], ["helium", "noble river"])
    assert encoded == [("document", "helium"), ("document", "noble river")]
    fresh = SparseIndex.from_texts(
        ["d0", "d2", "d3", "x", "y"], [*np.array(TEXTS)[[0, 2, 3]], "helium", "noble river"], model
    )
    assert changed.doc_ids == fresh.doc_ids
    np.testing.assert_allclose(changed.scores(QUERIES), fresh.scores(QUERIES), rtol=1e-5)
    np.testing.assert_array_equal(changed.lengths, fresh.lengths)
    fewer = changed.update([0], ["d2", "d3", "x", "y"], ())
    np.testing.assert_array_equal(fewer.scores(QUERIES), changed.scores(QUERIES)[:, 1:])


def test_saved_is_the_same_and_mapped_and_needs_no_other_folder(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    config = LexicalConfig(model=str(tmp_path / "model"))
    index = build_lexical(config, IDS, TEXTS, "cpu")
    index.save(tmp_path / "lexical")
    shutil.rmtree(tmp_path / "model")
    loaded = load_lexical(tmp_path / "lexical", IDS, "cpu")
    assert isinstance(loaded, SparseIndex)
    np.testing.assert_array_equal(loaded.scores(QUERIES), index.scores(QUERIES))
    mapped = loaded.postings.merge().data
    while not isinstance(mapped, np.memmap):
        mapped = mapped.base
        assert mapped is not None, "the weights were read into memory"
    changed = loaded.update([0], [*IDS[1:], "x"], ["neon"])
    changed.save(tmp_path / "lexical-2")
    again = load_lexical(tmp_path / "lexical-2", changed.doc_ids, "cpu")
    np.testing.assert_array_equal(again.scores(QUERIES), changed.scores(QUERIES))
    with pytest.raises(ValueError, match="covers 5 documents, the document table has 4"):
        load_lexical(tmp_path / "lexical", IDS[1:])
    assert not list((tmp_path / "lexical").rglob("*.bin"))
    assert load_lexical(tmp_path / "nothing", IDS) is None


@pytest.mark.parametrize("longest", [512, 10**12])
def test_the_same_model_gives_the_same_files_whatever_it_read_last(folder, tmp_path, longest):
    """A call leaves its truncation in the tokenizer, which an index may not hold if it is beyond all texts."""
    model, sums = SparseModel.load(str(folder), "cpu"), []
    model.encode(TEXTS, "document")  # the first call tells the library how many terms there are
    for module in model.encoder.modules():
        if hasattr(module, "tokenizer"):
            module.tokenizer.model_max_length = longest
    for kind in ("document", "query"):
        model.save(tmp_path / kind)
        sums.append(folder_sums(tmp_path / kind))
        model.encode(QUERIES, kind)
        model.save(tmp_path / f"{kind} after a call")
        sums.append(folder_sums(tmp_path / f"{kind} after a call"))
    assert sums[1:] == sums[:-1]


def test_the_configuration_chooses(tmp_path, sentence_bert_folder, splade):
    assert isinstance(build_lexical(LexicalConfig(), IDS, TEXTS), BM25)
    with pytest.raises(ValueError, match=r'lexical\.model must name "bm25", "none" or a'):
        LexicalConfig(model="")
    with pytest.raises(FileNotFoundError, match=r"sparse encoder 'no/such' cannot be loaded \(.*\); give the Hub name"):
        build_lexical(LexicalConfig(model="no/such"), IDS, TEXTS, "cpu")
    with pytest.raises(ValueError, match="gives dense vectors; give the Hub name or the folder"):
        SparseModel.load(str(sentence_bert_folder), "cpu")
    with pytest.raises(ValueError, match="gives dense vectors"):
        SparseModel.load(str(sentence_bert_folder.parent / "base"), "cpu")
    with pytest.raises(ValueError, match="device 'cuda:99' cannot be used here"):
        SparseModel.load(str(splade), "cuda:99")
    by_cosine = SparseEncoder(str(splade), device="cpu", similarity_fn_name="cosine")
    by_cosine.save_pretrained(str(tmp_path / "cosine"), create_model_card=False)
    with pytest.raises(ValueError, match="compares vectors by cosine, and must by their dot product"):
        SparseModel.load(str(tmp_path / "cosine"), "cpu")


@pytest.fixture
def retriever(beir, encoder, folder):
    collection = read_collection(beir())
    documents = collection.documents
    texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    lexical = SparseIndex.from_texts(documents["doc_id"], collection.full_texts(), SparseModel.load(str(folder), "cpu"))
    config = SearchConfig(alpha=0.2, beam_width=3, lexical_weight=0.05)
    return GenerativeRetriever(encoder, tree, random_tied(tree), documents, config, lexical)


def test_it_joins_the_scores_of_documents_and_finds_some(retriever):
    encoded, lexical = retriever.encode_queries(QUERIES), retriever.lexical.shares(QUERIES)
    dense = encoded.embeddings.numpy() @ retriever.tree.embeddings[retriever.tree.positions].T
    rows = retriever.documents.rows
    everything = retriever.search(encoded, k=40, method="exact")
    for hits, own in zip(everything, dense + np.float32(0.05) * lexical, strict=True):
        assert hits.exact
        assert [hit.score for hit in hits] == pytest.approx(np.sort(own)[::-1], rel=1e-5)
        assert [hit.score for hit in hits] == pytest.approx([own[rows[hit.doc_id]] for hit in hits], rel=1e-5)
    for hits, words in zip(retriever.search(encoded, k=3, beam_width=1, lexical_weight=1e6), lexical, strict=True):
        assert words[rows[hits[0].doc_id]] == words.max()  # wherever it lies
    by_words = retriever.explain(QUERIES[0], k=3, beam_width=1, lexical_weight=1e6)
    assert "of a document = dense + 1e+06 learned sparse" in str(by_words)
    assert "words" in next(node for level in by_words.levels for node in level if node.rank == 1).found_by
    encoded, titles = (
        retriever.encode_queries(QUERIES),
        [[hit.title for hit in hits] for hits in retriever.search(QUERIES, 3)],
    )
    _, names = compute_features(retriever.engine, encoded, retriever.search_encoded(encoded, 3), titles)
    assert names[-5:-1] == (
        "learned sparse", "learned sparse, share of the best", "learned sparse, 1 / rank", "words of the document"
    )  # fmt: skip


def test_updates_reach_the_disk(retriever, tmp_path):
    retriever.save_pretrained(tmp_path / "index")
    loaded = GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")
    assert loaded.search(QUERIES, k=5) == retriever.search(QUERIES, k=5)
    first = loaded.documents.dataset["doc_id"][0]
    loaded.remove([first])
    loaded.add([{"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia and Croatia."}])
    loaded.save_update(tmp_path / "index")
    again = GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")
    np.testing.assert_array_equal(again.lexical.scores(QUERIES), loaded.lexical.scores(QUERIES))
    assert again.lexical.scores(["river"]).shape == (1, 40)
    assert {"lexical-2"} == {path.name for path in (tmp_path / "index").glob("lexical*")}
    config = next((tmp_path / "index" / "lexical-2" / "model").rglob("*SpladePooling/config.json"))
    config.write_text(config.read_text().replace("max", "sum"))
    with pytest.raises(ValueError, match="was altered or truncated"):
        GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")


def test_a_run_is_trained_tuned_and_measured_with_it(beir, sentence_bert_folder, tokenizer_folder, tmp_path, capsys):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder))
    words = SparseEncoder(modules=[SparseStaticEmbedding(tokenizer)], device="cpu")  # every word counts 1
    words.save_pretrained(str(tmp_path / "words"), create_model_card=False)
    collection, run, tiny = read_collection(beir(), dev_queries=20), tmp_path / "run", tmp_path / "tiny.toml"
    tiny.write_text(
        TINY.format(encoder=sentence_bert_folder.as_posix())
        + f'[lexical]\nmodel = "{(tmp_path / "words").as_posix()}"\n'
    )
    retriever = dsi.train(collection, run, config=tiny, device="cpu")
    assert isinstance(retriever.lexical, SparseIndex)
    written = (run / "lexical" / "stage.json").stat().st_mtime_ns
    dsi.train(collection, run, config=run / "config.toml", device="cpu")
    assert (run / "lexical" / "stage.json").stat().st_mtime_ns == written  # up to date
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(collection.name), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "\n| generate " in printed
    assert "\n  dense + learned sparse: " in printed
    assert "\n| BM25 " in printed  # the baseline stays what it was
