"""Multi-vector models in place of the encoder's states: against sentence-transformers, and the whole road of an index."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder

import dsi
from dsi import GenerativeRetriever
from dsi.config import Config
from dsi.contrastive.multi_vector import MultiVectorModel
from dsi.contrastive.tokens import TokenHead
from dsi.docids.files.processes import ALONE
from dsi.docids.files.reading import folder_sums, sha256
from dsi.docids.token_vectors import decode
from dsi.store.verify import remember
from dsi.training import embedding
from dsi.training.pipeline import TrainingRun
from tests.support.edits import edit_json, watch, write_sums
from tests.support.kills import fork, status_of
from tests.support.multi_vectors import FORMS, save_multi_vector
from tests.support.small import PROMPTS, write_collection

QUERIES = ["which capitals are on the danube, and which rivers flow there?", "a noble gas", "..."]
TEXTS = ["The Danube, a river; flows." + " past four capitals and on" * 20, "x", "Neon (a noble gas) glows."]
ROAD = ["modules", "pylate"]
SEARCH = {"lexical_weight": 0.1, "token_weight": 0.5, "beam_width": 3, "candidates": 8}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function from a form to the folder of a model; not to be changed."""
    root = tmp_path_factory.mktemp("models")
    return lambda form: root / form if (root / form).exists() else save_multi_vector(root / form, form)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """40 documents, some longer than the encoder reads, and one whose text is punctuation."""
    folder = write_collection(tmp_path_factory.mktemp("collection") / "beir")
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "corpus.jsonl").write_text("\n".join([*lines, json.dumps({"_id": "dots", "title": "", "text": "..."})]))
    return dsi.read_collection(folder)


@pytest.fixture(scope="module")
def config(sentence_bert_folder):
    """A function from the folder of a model to the configuration of an index with it, which trains nothing."""

    def make(model: Path | str, **changes) -> Config:
        sections = {
            "encoder": {"name": str(sentence_bert_folder), **PROMPTS, "document_length": 16},
            "docids": {"branching": 5, "max_leaf_size": 3, "pieces": 1},
            "tokens": {"model": str(model), "bits": 8},
            "search": SEARCH,
            "dev_queries": 0,
        }
        return Config().without_training().with_changes(sections).with_changes(changes)

    return make


@pytest.fixture(scope="module")
def run(tmp_path_factory, collection, config, models):
    """A function from a form to the folder of an index with its model; not to be changed."""
    root = tmp_path_factory.mktemp("runs")

    def make(form: str, **changes) -> Path:
        folder = root / "-".join([form, *changes])
        if not folder.exists():
            dsi.train(collection, folder, config=config(models(form), **changes), device="cpu")
        return folder

    return make


def load(folder: Path, **options) -> GenerativeRetriever:
    return GenerativeRetriever.from_pretrained(folder, device="cpu", **options)


def library(folder: Path) -> MultiVectorEncoder:
    return MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)


def check_codes(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal, but where a vector lies between two codes: another batch has other last bits."""
    assert found.shape == expected.shape
    assert (found != expected).mean() < 0.01


def whole_texts(collection) -> list[str]:
    return [text.strip() for text in collection.full_texts()[:]]


# The model alone.


@pytest.mark.parametrize("form", FORMS)
def test_vectors_are_those_of_sentence_transformers_and_a_stored_model_gives_the_same(models, tmp_path, form):
    own, model = library(models(form)), MultiVectorModel.load(str(models(form)), device="cpu")
    for kind, texts, encode in (("query", QUERIES, own.encode_query), ("document", TEXTS, own.encode_document)):
        for found, expected in zip(model.vectors(texts, kind), encode(texts, convert_to_numpy=True), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)
            assert expected.shape[1] == model.dim == FORMS[form]
    model.save(tmp_path / "stored")
    stored = MultiVectorModel.load("", tmp_path / "stored", "cpu")
    assert stored.fingerprint == model.fingerprint
    for texts, kind in ((QUERIES, "query"), (TEXTS, "document")):
        for found, expected in zip(stored.vectors(texts, kind), model.vectors(texts, kind), strict=True):
            np.testing.assert_array_equal(found, expected)
    stored.save(tmp_path / "again")
    assert folder_sums(tmp_path / "again") == folder_sums(tmp_path / "stored")
    assert model.vectors([], "query") == []


@pytest.mark.parametrize("form", FORMS)
def test_a_span_is_where_a_vector_comes_from(models, form):
    model, own = MultiVectorModel.load(str(models(form)), device="cpu"), library(models(form))
    for text, kind in [(text, kind) for kind, texts in (("query", QUERIES), ("document", TEXTS)) for text in texts]:
        spans = model.spans(text, kind)
        assert len(spans) == len(model.vectors([text], kind)[0])
        if form == "pooled" and kind == "document":
            assert all(span.is_special and not span.end for span in spans)
            continue
        features = own(own.preprocess([text], prompt=own.prompts.get(kind), task=kind), task=kind)
        tokens = own.tokenizer.convert_ids_to_tokens(features["input_ids"][features["attention_mask"].bool()])
        pieces = [text[span.start : span.end].lower() for span in spans]
        assert sum(map(bool, pieces)) >= 1 or text == "..."
        for piece, token in zip(pieces, tokens, strict=True):
            assert piece in ("", token.removeprefix("##")) or token == "[UNK]"


@pytest.mark.parametrize("change", ["prompt", "length", "mask", "weights"])
def test_the_fingerprint_tells_models_that_give_other_vectors(models, tmp_path, change):
    folder = Path(shutil.copytree(models("modules"), tmp_path / "model"))
    changes = {
        "prompt": ("config_sentence_transformers.json", lambda it: it["prompts"].update(query="seek: ")),
        "length": ("sentence_bert_config.json", lambda it: it.update(document_length=30)),
        "mask": ("2_MultiVectorMask/config.json", lambda it: it.update(skiplist_words=["the"])),
    }
    if change == "weights":
        model = library(folder)
        with torch.no_grad():
            model[1].linear.weight[0, 0] += 1
        model.save_pretrained(str(folder), create_model_card=False)
    else:
        edit_json(folder / changes[change][0], changes[change][1])
    own, other = (MultiVectorModel.load(str(each), device="cpu") for each in (models("modules"), folder))
    assert own.fingerprint != other.fingerprint
    assert own.fingerprint == own.for_search().fingerprint


def test_a_model_is_pickled_as_its_folder(models, tmp_path):
    folder = Path(shutil.copytree(models("modules"), tmp_path / "model"))
    model = MultiVectorModel.load(str(folder), device="cpu")
    packed = pickle.dumps(model)
    np.testing.assert_array_equal(
        pickle.loads(packed).vectors(TEXTS, "document")[0], model.vectors(TEXTS, "document")[0]
    )
    with pytest.raises(ValueError, match="pickled as the folder or name"):
        pickle.dumps(model.for_search())
    model = MultiVectorModel.load(str(folder), device="cpu")
    edit_json(folder / "sentence_bert_config.json", lambda it: it.update(document_length=9))
    other = MultiVectorModel.load(str(folder), device="cpu")
    with pytest.raises(ValueError, match="is another model here than where the work was given out"):
        _unpickle_changed(other, folder, models("modules"))


def _unpickle_changed(model: MultiVectorModel, folder: Path, before: Path) -> None:
    packed = pickle.dumps(model)
    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    pickle.loads(packed)


# The whole road of an index.


@pytest.mark.parametrize("form", ROAD)
def test_late_interaction_is_maxsim_as_the_library_has_it(run, models, collection, form):
    """Of floats to 1e-5; of codes it is MaxSim over decoded vectors; both methods rank by it."""
    retriever, own, texts = load(run(form)), library(models(form)), whole_texts(collection)
    queries, documents = own.encode_query(QUERIES), own.encode_document(texts)
    counts = torch.tensor([[len(query)] for query in queries])
    expected = (own.similarity(queries, documents, length_normalize=False) / counts).numpy()  # [queries, documents]
    tokens = retriever.tree.tokens
    project = [[torch.from_numpy(tokens.project(each.numpy())) for each in own] for own in (queries, documents)]
    floats = (own.similarity(*project, length_normalize=False) / counts).numpy()
    np.testing.assert_allclose(floats, expected, atol=1e-5)
    decoded = _decoded(retriever, len(texts))
    of_codes = own.similarity(project[0], decoded, length_normalize=False).numpy() / counts.numpy()
    ids = list(collection.documents["doc_id"])
    followed = retriever.follow(QUERIES, [ids] * len(QUERIES), token_weight=1.0)
    np.testing.assert_allclose(followed.parts["tokens"], of_codes, atol=1e-5)
    np.testing.assert_allclose(of_codes, expected, atol=0.03)  # 8 bits
    parts = retriever.follow(QUERIES, [ids] * len(QUERIES)).parts
    np.testing.assert_allclose(parts["tokens"], 0.5 * of_codes, atol=1e-5)
    scores = sum(parts.values())
    for method in ("exact", "generate"):
        for hits, row in zip(retriever.search(QUERIES, 9, method=method), scores, strict=True):
            np.testing.assert_allclose(
                [hit.score for hit in hits], [row[ids.index(hit.doc_id)] for hit in hits], atol=1e-4
            )
            if hits.exact:
                np.testing.assert_allclose([hit.score for hit in hits], np.sort(row)[::-1][:9], atol=1e-4)
            assert hits.exact or method == "generate"


def _decoded(retriever: GenerativeRetriever, documents: int) -> list[torch.Tensor]:
    """The token vectors of every document, in collection order, from its codes as faiss decodes them."""
    tokens, tree = retriever.tree.tokens, retriever.tree
    whole = tokens.gather(tree.positions[:documents])
    vectors, norms = decode(whole.codes, tokens.dim, tokens.bits)
    return [torch.from_numpy(own) for own in np.split(vectors / norms[:, None], whole.starts[1:-1])]


@pytest.mark.parametrize("form", ROAD)
def test_words_are_marked_by_the_tokens_of_the_model(run, form):
    retriever = load(run(form))
    hits = retriever.search(QUERIES[0], k=8)
    (batch,) = retriever.encode_queries([QUERIES[0]]).batches
    of_words = [span.end > span.start for span in retriever.encoder.token_model.spans(QUERIES[0], "query")]
    for hit, matches in zip(hits, hits.matches(), strict=True):
        parts = retriever.follow([QUERIES[0]], [[hit.doc_id]]).parts
        part, words = float(parts["tokens"][0, 0]), float(parts["BM25"][0, 0])
        position = retriever.tree.node(hit.digits) - retriever.tree.num_inner
        ((_, shares),) = retriever.engine.token_shares(batch, retriever.request("search", 8, {}), [position])
        assert shares.sum() == pytest.approx(part, abs=1e-5)
        assert sum(match.share for match in matches) == pytest.approx(shares[of_words].sum() + words, abs=1e-5)
        assert all(match.word for match in matches)
        for match in matches:
            for span in match.spans:
                assert (hit.title if span.field == "title" else hit.text)[span.start : span.end] == span.text
    assert any(match.spans for matches in hits.matches() for match in matches)
    assert hits.explain(hits[0].doc_id).matches


@pytest.mark.parametrize("form", ROAD)
def test_an_added_document_has_the_tokens_of_a_trained_one_and_all_is_saved(run, collection, tmp_path, form):
    retriever, records = load(run(form)), collection.documents[:5]
    ids, titles, texts = (list(records[name]) for name in ("doc_id", "title", "text"))
    before = [retriever.tree.tokens.gather(np.array([retriever.tree.positions[row]])).codes for row in range(5)]
    retriever.remove(ids)
    new = [{"doc_id": own, "title": title, "text": text} for own, title, text in zip(ids, titles, texts, strict=True)]
    retriever.add(new)
    retriever.add([{**new[0], "text": "replaced"}], replace=True)
    retriever.add([new[0]], replace=True)
    rows = retriever.documents.rows_of(ids, "ids")
    for row, codes in zip(rows, before, strict=True):
        check_codes(retriever.tree.tokens.gather(np.array([retriever.tree.positions[row]])).codes, codes)
    query, allow = QUERIES[0], ids[:3]
    expected = retriever.search(query, k=9)
    assert {hit.doc_id for hit in retriever.search(query, k=9, allow=allow)} == set(allow)
    assert len(retriever.search(query, k=9, where=f"doc_id = '{ids[0]}'")) == 1
    retriever.save_pretrained(tmp_path / "copy")
    shutil.copytree(run(form), tmp_path / "updated")
    update = load(tmp_path / "updated")
    update.remove(ids)
    update.add(new)
    assert update.save_update(tmp_path / "updated") == 2
    for folder in (tmp_path / "copy", tmp_path / "updated"):
        again = load(folder).search(query, k=9)
        assert [(hit.doc_id, hit.score) for hit in again] == [
            (hit.doc_id, pytest.approx(hit.score)) for hit in expected
        ]
    assert folder_sums(tmp_path / "copy" / "token_model").items() <= folder_sums(run(form) / "token_model").items()


def test_several_docids_have_the_tokens_of_their_pieces(run, models, collection):
    retriever, own = load(run("modules", docids={"pieces": 3})), library(models("modules"))
    tree = retriever.tree
    assert tree.most_places > 1
    pieces = retriever.encoder.piece_texts(collection.documents["title"], collection.documents["text"], 3)
    for row in (0, 7, 40):
        places = np.sort(np.flatnonzero(tree.doc_rows == row))
        counts = sorted(len(vectors) for vectors in own.encode_document(pieces[row]))
        assert sorted(tree.tokens.counts[places].tolist()) == counts
    hits = retriever.search(QUERIES[0], k=5)
    for hit, matches in zip(hits, hits.matches(), strict=True):
        for span in (span for match in matches for span in match.spans):
            assert (hit.title if span.field == "title" else hit.text)[span.start : span.end] == span.text
    retriever.add([{"doc_id": "long", "title": "Danube", "text": " ".join(collection.documents["text"][:2])}])
    assert retriever.tree.num_places > tree.num_places


def test_bfloat16_answers_alike_and_a_pickled_index_answers_the_same(run):
    retriever, rounded = load(run("modules")), load(run("modules"), dtype="bfloat16")
    assert next(rounded.encoder.token_model.model.parameters()).dtype == torch.bfloat16
    for query in QUERIES:
        expected = {hit.doc_id: hit.score for hit in retriever.search(query, k=41, method="exact")}
        found = {hit.doc_id: hit.score for hit in rounded.search(query, k=41, method="exact")}
        assert all(abs(found[doc_id] - score) < 0.15 for doc_id, score in expected.items())
        assert [(hit.doc_id, hit.score) for hit in pickle.loads(pickle.dumps(retriever)).search(query, k=5)] == [
            (hit.doc_id, hit.score) for hit in retriever.search(query, k=5)
        ]


def test_a_batch_of_queries_takes_one_pass_of_the_model_and_none_where_it_has_no_weight(run, monkeypatch):
    retriever, passes, vectors = load(run("modules")), [], MultiVectorModel.vectors
    monkeypatch.setattr(
        MultiVectorModel,
        "vectors",
        lambda own, texts, kind: passes.append((kind, len(texts))) or vectors(own, texts, kind),
    )
    retriever.search(QUERIES, token_weight=0)
    assert passes == []
    encoded = retriever.encode_queries(QUERIES)
    expected = [[(hit.doc_id, hit.score) for hit in hits] for hits in retriever.search(encoded)]
    retriever.search(encoded, method="exact")
    assert passes == [("query", 3)]
    assert [(hit.doc_id, pytest.approx(hit.score)) for hit in retriever.search(encoded.each()[1])[0]] == expected[1]
    assert passes == [("query", 3)]


def test_a_text_of_which_the_mask_keeps_nothing_scores_0_and_is_told(models, collection, config, tmp_path, caplog):
    folder = Path(shutil.copytree(models("modules"), tmp_path / "model"))
    path = folder / "2_MultiVectorMask" / "config.json"
    skipped = ["[CLS]", "[SEP]", ".", "text", "t", "##ext", ":", "[UNK]", "find", "f", "##ind"]
    edit_json(path, lambda it: it.update(skiplist_words=skipped, skiplist_tasks=["query", "document"]))
    edit_json(folder / "config_sentence_transformers.json", lambda it: it.update(prompts={"query": "", "document": ""}))
    retriever = dsi.train(collection, tmp_path / "run", config=config(folder), device="cpu")
    told = "The multi-vector model keeps no token of 1 of {} texts: late interaction gives them 0."
    assert caplog.text.count(told.format(41)) == 1
    retriever.add([{"doc_id": "more-dots", "title": "", "text": ". . ."}])
    assert told.format(1) in caplog.text
    retriever.remove(["more-dots"])
    ids = list(collection.documents["doc_id"])
    parts = retriever.follow(["...", "danube"], [ids, ids]).parts["tokens"]
    assert not parts[0].any()  # a query without a token
    assert parts[1, -1] == 0
    assert parts[1, :-1].all()
    assert retriever.search("...", k=3).matches() == [[], [], []]


# Training.


def test_the_model_is_a_stage_that_goes_with_its_setting(run, models, collection, config, tmp_path):
    chosen, folder = config(models("modules")), Path(shutil.copytree(run("modules"), tmp_path / "run"))
    again = TrainingRun(folder, collection, chosen, "cpu")
    again.train()
    assert again.seconds == {}
    dsi.train(collection, folder, config=config(""), device="cpu")
    assert not (folder / "token_model").exists()
    assert load(folder).encoder.token_model is None


def test_a_killed_pass_of_the_model_goes_on_where_it_was(run, models, collection, config, tmp_path, monkeypatch):
    made, encode, folder = [], TokenHead.encode_with, tmp_path / "run"
    expected = load(run("modules")).tree.tokens

    def dies(own, model, texts, **more):
        if made.count(8) == 3 and "killed" not in made:
            made.append("killed")
            raise KeyboardInterrupt
        made.append(len(texts))
        return encode(own, model, texts, **more)

    monkeypatch.setattr("dsi.contrastive.blocks.BLOCK", 8)
    monkeypatch.setattr(TokenHead, "encode_with", dies)
    with pytest.raises(KeyboardInterrupt):
        dsi.train(collection, folder, config=config(models("modules")), device="cpu")
    assert not (folder / "manifest.json").exists()
    dsi.train(collection, folder, config=config(models("modules")), device="cpu")
    assert made == [8, 8, 8, "killed", 8, 8, 1]
    found = load(folder).tree.tokens
    np.testing.assert_array_equal(found.counts, expected.counts)
    check_codes(found.in_order().codes, expected.in_order().codes)


@pytest.mark.slow
def test_a_training_killed_at_writes_ends_as_if_not(models, collection, config, tmp_path):
    def train(folder: Path) -> None:
        dsi.train(collection, folder, config=config(models("modules")), device="cpu")

    train(tmp_path / "whole")
    for writes in range(3, 10_000, 17):
        status = status_of(fork(lambda: train(tmp_path / "killed"), dies_at_write=writes))
        if status != 9:
            break
    assert status == 0
    for part in ("token_model", "docids"):
        sums = [folder_sums(tmp_path / name / part) for name in ("whole", "killed")]
        assert {**sums[0], "stage.json": ""} == {**sums[1], "stage.json": ""}
    assert [hit.doc_id for hit in load(tmp_path / "killed").search(QUERIES[0])] == [
        hit.doc_id for hit in load(tmp_path / "whole").search(QUERIES[0])
    ]


def test_a_model_that_was_pickled_makes_the_same_codes(run, models, collection, config, tmp_path, monkeypatch):
    expected = folder_sums(run("pylate") / "docids")
    monkeypatch.setattr(embedding, "encode_token_blocks", _in_another_process(embedding.encode_token_blocks))
    dsi.train(collection, tmp_path / "run", config=config(models("pylate")), device="cpu")
    assert folder_sums(tmp_path / "run" / "docids")["tokens.safetensors"] == expected["tokens.safetensors"]


def _in_another_process(encode):
    """As `encode`, with a model and a head that were pickled."""
    return lambda model, head, *others: encode(*pickle.loads(pickle.dumps((model, head))), *others)


# What is refused, in one line, before anything is written.


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        ("plain", ValueError, r"tokens.model '.*' cannot be loaded as a multi-vector model \(no file says that it is one, "),
        ("bare", ValueError, r"cannot be loaded as a multi-vector model \(no file says that it is one, and its"),
        ("no record", ValueError, r"\(no file says that it is one, .*\); name a folder or Hub name"),
        ("missing", FileNotFoundError, r"tokens.model names the folder .*/missing, which does not exist"),
        ("missing name", FileNotFoundError, r"tokens.model 'nobody/nothing' cannot be loaded as a multi-vector model \("),
        ("no length 1", ValueError, r"model '.*' cannot be used, because its token vectors do not have length 1; add a Norm"),
        ("not finite", ValueError, r"The multi-vector model '.*' cannot be used, because its token vectors are not finite"),
        ("damaged", ValueError, r"tokens.model '.*' cannot be loaded as a multi-vector model \("),
        ("long expansion", ValueError, r"cannot be used, because it expands queries to 100 tokens and reads 66"),
        ("unknown module", ValueError, r"\(.*references the module class 'lambda_like.LambdaLike', which is not part of Sent"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_serve_is_refused(
    models, collection, config, tmp_path, sentence_bert_folder, monkeypatch, make, error, message
):
    folder = Path(shutil.copytree(models("modules"), tmp_path / "model"))
    name: Path | str = folder
    if make == "plain":
        name = sentence_bert_folder
    elif make == "bare":
        name = folder / "base"
    elif make.startswith("missing"):
        name = "nobody/nothing" if make == "missing name" else tmp_path / "missing"
    elif make == "no record":
        edit_json(folder / "config_sentence_transformers.json", lambda record: record.pop("model_type"))
    elif make == "no length 1":
        edit_json(folder / "modules.json", lambda modules: modules.pop())
    elif make == "not finite":
        model = library(folder)
        with torch.no_grad():
            model[1].linear.weight[0, 0] = float("nan")
        model.save_pretrained(str(folder), create_model_card=False)
    elif make == "damaged":
        (folder / "1_Dense" / "model.safetensors").write_bytes(b"x")
    elif make == "long expansion":
        changes = {"query_length": None, "query_expansion": {"strategy": "fixed", "attend": False, "length": 100}}
        edit_json(folder / "sentence_bert_config.json", lambda it: it.update(changes))
    else:
        (tmp_path / "lambda_like.py").write_text(
            "from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask\n\n\n"
            "class LambdaLike(MultiVectorMask):\n    pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        edit_json(folder / "modules.json", lambda modules: modules[2].update(type="lambda_like.LambdaLike"))
    with pytest.raises(error, match=message) as caught:
        dsi.train(collection, tmp_path / "run", config=config(name), device="cpu")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("*.json"))


def test_a_model_needs_token_vectors(config):
    with pytest.raises(
        ValueError, match=r"tokens.model needs tokens.bits above 0 and .*, got 0 and 'none'; leave the model"
    ):
        config("user/model", tokens={"bits": 0})
    with pytest.raises(
        ValueError, match=r"tokens.model needs tokens.bits above 0 and .*, got 2 and 'digits'; leave the mod"
    ):
        Config.named("digits").with_changes({"tokens": {"model": "user/model"}})
    with pytest.raises(ValueError, match=r"tokens\.model must name a multi-vector model"):
        config(" ")


def test_a_text_that_gives_nan_is_refused(models, monkeypatch):
    model = MultiVectorModel.load(str(models("modules")), device="cpu")
    forward = model._forward

    def broken(texts, kind):
        states, mask, features = forward(texts, kind)
        return states * float("nan"), mask, features

    monkeypatch.setattr(model, "_forward", broken)
    with pytest.raises(ValueError, match=r"gives vectors that are not finite for 'The Danube, a river"):
        model.vectors(TEXTS, "document")


# Files of a stranger.


@pytest.fixture
def stranger(run, tmp_path):
    return Path(shutil.copytree(run("modules"), tmp_path / "stranger"))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config_sentence_transformers.json", lambda it: it["prompts"].update(query="other: ")),
        ("sentence_bert_config.json", lambda it: it.update(document_length=33)),
    ],
)
def test_another_model_than_that_of_the_codes_is_named(stranger, file, change):
    edit_json(stranger / "token_model" / file, change)
    write_sums(stranger)
    remember(sha256(stranger / "manifest.json"))
    with pytest.raises(ValueError, match=r"manifest.json and token_model do not belong together"):
        load(stranger)


def test_a_model_of_another_width_or_none_does_not_belong_to_the_codes(stranger, models, tmp_path):
    MultiVectorModel.load(str(models("pylate")), device="cpu").save(tmp_path / "other")
    shutil.rmtree(stranger / "token_model")
    write_sums(stranger)
    remember(sha256(stranger / "manifest.json"))
    with pytest.raises(
        ValueError, match=r"manifest.json and token_model do not belong together: .* token_model is none"
    ):
        load(stranger)
    edit_json(stranger / "manifest.json", lambda it: it["fingerprints"].pop("token_model"))
    remember(sha256(stranger / "manifest.json"))
    with pytest.raises(
        ValueError, match="and the encoder do not belong together: token vectors are made of states 24 wide"
    ):
        load(stranger)
    shutil.copytree(tmp_path / "other", stranger / "token_model")
    write_sums(stranger)
    other = MultiVectorModel.load("", stranger / "token_model", "cpu").fingerprint
    edit_json(stranger / "manifest.json", lambda it: it["fingerprints"].update(token_model=other))
    remember(sha256(stranger / "manifest.json"))
    with pytest.raises(
        ValueError, match=r"and the multi-vector model do not belong together: .* 24 wide, those of .* are 20"
    ):
        load(stranger)


def test_an_update_is_not_written_to_an_index_with_another_model(run, stranger):
    edit_json(stranger / "manifest.json", lambda it: it["fingerprints"].update(token_model="0" * 64))
    retriever = load(run("modules"))
    retriever.add([{"doc_id": "new", "title": "New", "text": "a text"}])
    with pytest.raises(ValueError, match="is not the index that was updated"):
        retriever.save_update(stranger)


def test_loading_the_model_opens_no_connection_and_no_file_outside_it(run, tmp_path, monkeypatch):
    folder = run("modules")
    load(folder).search(QUERIES)  # imports
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def work():
        watch(tmp_path / "outside", [str(folder)])
        MultiVectorModel.load("", folder / "token_model", "cpu").vectors(QUERIES, "query")

    status = status_of(fork(work))
    assert (status, (tmp_path / "outside").read_text()) == (0, "")


def test_processes_share_the_pass(models, tmp_path):
    """One process alone is all of them."""
    from dsi.contrastive.blocks import encode_token_blocks, read_token_blocks

    model = MultiVectorModel.load(str(models("modules")), device="cpu")
    head = TokenHead(np.eye(24, dtype=np.float32), 8)
    encode_token_blocks(model, head, TEXTS, tmp_path, ALONE)
    found, expected = read_token_blocks(tmp_path), head.encode_with(model, TEXTS)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.starts, expected.starts)
