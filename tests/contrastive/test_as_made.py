"""An encoder is taken as its authors made it: prompts, similarity, truncation, lengths."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from transformers import PreTrainedTokenizerFast

import dsi
from dsi.config import Config, read_config, write_config
from dsi.contrastive.config import ContrastiveConfig, EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.training import contrastive_loss, contrastive_rows, train_encoder
from dsi.training.preflight import check_encoder

TEXTS = ["Neon is a noble gas.", "The Danube flows through Vienna, Budapest and Belgrade.", "Rubber"]
E5 = {"query": "query: ", "passage": "passage: "}


@pytest.fixture
def made(sentence_bert_folder, tmp_path):
    """A function that saves a tiny encoder with some settings, and returns its folder."""

    def make(*, normalises=True, longer=1.0, **settings):
        model = SentenceTransformer(str(sentence_bert_folder), device="cpu")
        with torch.no_grad():  # the last layer of BERT ends in this
            for weights in model[0].auto_model.encoder.layer[-1].output.LayerNorm.parameters():
                weights.mul_(longer)
        folder = tmp_path / f"made-{len(list(tmp_path.iterdir()))}"
        modules = [model[0], model[1], *([Normalize()] if normalises else [])]
        SentenceTransformer(modules=modules, device="cpu", **settings).save_pretrained(
            str(folder), create_model_card=False
        )
        return folder

    return make


def load(folder, **settings):
    return Encoder.load(EncoderConfig(name=str(folder), **settings), device="cpu")


def theirs(folder):
    return SentenceTransformer(str(folder), device="cpu")


def close(a, b):
    np.testing.assert_allclose(a, b, atol=1e-5)


# Prompts.


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_the_models_own_prompts_are_taken_by_any_of_their_names(name, made, tmp_path, caplog):
    folder = made(prompts={"query": "query: ", name: "passage: "})
    encoder, model = load(folder), theirs(folder)
    close(encoder.encode(TEXTS, "query"), model.encode(TEXTS, prompt="query: "))
    close(encoder.encode(TEXTS, "document"), model.encode(TEXTS, prompt="passage: "))
    assert np.abs(encoder.encode(TEXTS, "query") - encoder.encode(TEXTS, "document")).max() > 0.01
    assert not caplog.messages
    encoder.save(tmp_path / "stored")
    stored = Encoder.load(EncoderConfig(), tmp_path / "stored", "cpu")
    assert np.array_equal(stored.encode(TEXTS, "document"), encoder.encode(TEXTS, "document"))
    assert stored.fingerprint == encoder.fingerprint


def test_a_prompt_that_is_set_replaces_the_models_own(made, tmp_path):
    folder = made(prompts=E5)
    encoder = load(folder, query_prompt="", document_prompt="Text: ")
    close(encoder.encode(TEXTS, "query"), theirs(folder).encode(TEXTS, prompt=""))
    close(encoder.encode(TEXTS, "document"), theirs(folder).encode(TEXTS, prompt="Text: "))
    assert encoder.fingerprint != load(folder, query_prompt="query: ", document_prompt="passage: ").fingerprint
    encoder.save(tmp_path / "stored")
    stored = Encoder.load(encoder.config, tmp_path / "stored", "cpu")
    assert stored.model.prompts == {"query": "", "document": "Text: "}


def test_the_default_prompt_is_taken_where_none_has_the_name(made):
    prompts = load(made(prompts={"retrieval": "Find: "}, default_prompt_name="retrieval")).model.prompts
    assert prompts == {"query": "Find: ", "document": "Find: "}
    prompts = load(made(prompts={"query": "Ask: "}, default_prompt_name="query")).model.prompts
    assert prompts == {"query": "Ask: ", "document": ""}


def test_prompts_for_other_tasks_alone_are_named(made, caplog):
    assert load(made(prompts={"sts": "Same as: "})).model.prompts == {"query": "", "document": ""}
    assert caplog.messages == [
        "The encoder has prompts for other tasks alone (sts); set encoder.query_prompt to use one."
    ]


def test_a_prompt_comes_before_the_title_in_an_index_in_what_is_added_and_in_mteb(made, tmp_path):
    folder = made(prompts=E5)
    config = Config().without_training().with_changes({"encoder": {"name": str(folder)}, "dev_queries": 0})
    records = [{"doc_id": str(row), "title": "On Europe", "text": text} for row, text in enumerate(TEXTS)]
    retriever = dsi.train(dsi.Collection.from_records(records), tmp_path / "run", config=config, device="cpu")
    retriever.add([{"doc_id": "new", "title": "On Mars", "text": "It has two moons."}])
    retriever.save(tmp_path / "copy")
    loaded = dsi.load(tmp_path / "copy", device="cpu")
    texts = [f"On Europe {text}" for text in TEXTS] + ["On Mars It has two moons."]
    vectors = dict(zip(["0", "1", "2", "new"], theirs(folder).encode(texts, prompt="passage: "), strict=True))
    tree, doc_ids = loaded.snapshot.tree, list(loaded.snapshot.documents.rows)
    for place, row in enumerate(tree.doc_rows.tolist()):
        close(tree.embeddings[:][place], vectors[doc_ids[row]])
    own = pytest.importorskip("dsi.integrations.mteb").DocidEncoder(loaded)
    close(own.encode([{"text": TEXTS}], prompt_type="query"), theirs(folder).encode(TEXTS, prompt="query: "))
    batch = {"text": texts[:1], "title": ["On Europe"], "body": TEXTS[:1]}
    close(own.encode([batch], prompt_type="document"), vectors["0"][None])


def test_a_configuration_without_prompts_is_written_and_read(tmp_path):
    write_config(Config(), tmp_path / "config.toml")
    assert "query_prompt" not in (tmp_path / "config.toml").read_text()
    assert read_config(tmp_path / "config.toml") == Config()


# Similarity.


def test_cosines_do_not_depend_on_lengths(made):
    normalised, plain = load(made()), load(made(normalises=False, longer=7.0))
    close(np.linalg.norm(plain.encode(TEXTS, "document"), axis=1), 1)
    scaled = theirs(made(normalises=False, longer=7.0)).encode(TEXTS, normalize_embeddings=True)
    close(plain.encode(TEXTS, "document"), scaled)
    close(np.linalg.norm(normalised.encode(TEXTS, "document"), axis=1), 1)
    close(plain.for_search().encode(TEXTS, "query"), plain.encode(TEXTS, "query"))


def test_dot_products_keep_lengths_in_units_of_the_usual_one(made):
    folders = [made(normalises=False, longer=longer, similarity_fn_name="dot") for longer in (1.0, 40.0)]
    short, long = (load(folder) for folder in folders)
    own = theirs(folders[0]).encode(TEXTS)
    assert long.usual_length == pytest.approx(40 * short.usual_length, rel=1e-3)
    for encoder in (short, long, long.for_search(), long.for_search("bfloat16")):
        np.testing.assert_allclose(encoder.encode(TEXTS, "document"), own / short.usual_length, atol=0.1)
    close(long.encode(TEXTS, "document"), short.encode(TEXTS, "document"))
    assert 0.5 < np.median(np.linalg.norm(long.encode(TEXTS, "document"), axis=1)) < 2


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_distances_are_refused_with_the_remedy(similarity, made):
    message = rf"must compare embeddings by cosine or dot, got {similarity}; .*model.similarity_fn_name = \"cosine\""
    with pytest.raises(ValueError, match=message):
        load(made(similarity_fn_name=similarity))


def test_the_mean_is_compared_by_dot_products_as_it_is(made):
    folder = made(normalises=False, longer=7.0)
    encoder = load(folder, pooling="mean")
    assert encoder.model.similarity_fn_name == "dot"
    close(encoder.encode(TEXTS, "document"), theirs(folder).encode(TEXTS))


@pytest.mark.parametrize(("similarity", "normalises"), [("cosine", True), ("cosine", False), ("dot", False)])
def test_a_training_compares_as_a_search_does(similarity, normalises, made):
    encoder = load(
        made(normalises=normalises, longer=7.0, similarity_fn_name=similarity), query_prompt="", document_prompt=""
    )
    features = [encoder.model.preprocess(TEXTS) for _ in range(2)]
    labels = torch.tensor([[row, row] for row in range(3)])
    loss = contrastive_loss(encoder, ContrastiveConfig(loss="dpr", temperature=0.5, negatives=0))(features, labels)
    vectors = encoder.encode(TEXTS, "query")
    scores = vectors @ vectors.T / 0.5
    expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diag(scores))
    assert float(loss.detach()) == pytest.approx(float(expected), abs=1e-4)


# Dimensions and lengths.


@pytest.mark.parametrize("normalises", [True, False])
def test_truncated_dimensions_stay_truncated_and_have_length_1(normalises, made):
    folder = made(normalises=normalises, truncate_dim=16)
    encoder, model = load(folder), theirs(folder)
    assert encoder.embedding_dim == 16
    close(encoder.encode(TEXTS, "query"), model.encode(TEXTS, normalize_embeddings=True))
    assert encoder.fingerprint != load(made(normalises=normalises)).fingerprint


def test_a_model_reads_as_many_tokens_as_its_authors_say(sentence_bert_folder, tmp_path):
    model = theirs(sentence_bert_folder)
    model.max_seq_length = 5
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    encoder = load(tmp_path / "model")
    assert encoder.forward(["noble gas " * 9], "query").states.shape[1] == 5
    (cut,) = encoder.cut([""], ["noble gas " * 9], 1)
    assert not cut.is_whole


# A table of token vectors.


@pytest.fixture
def static(tokenizer_folder):
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder))
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu")
    return Encoder(model, EncoderConfig(query_prompt="", document_prompt=""))


def test_a_table_of_token_vectors_embeds_gives_states_and_knows_where_tokens_lie(static):
    encoded = static.forward(TEXTS, "document")
    assert encoded.states.shape[:2] == encoded.mask.shape == encoded.words.shape
    for states, own, vector in zip(encoded.states, encoded.mask, encoded.embeddings, strict=True):
        mean = states[own].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    spans = static.spans(TEXTS[1], "document")
    assert len(spans) == int(encoded.mask[1].sum())
    assert (spans[0].start, spans[0].end, spans[-1].end) == (0, 3, len(TEXTS[1]))
    assert len(static.spans(static.query_texts(["gas " * 300])[0], "query")) == static.config.query_length
    assert static.max_length is None
    (cut,) = static.cut([""], ["noble gas " * 300], 100)
    assert cut.is_whole


def test_a_table_of_token_vectors_is_trained(static, tmp_path):
    rows = contrastive_rows(TEXTS, {0: ["noble gas"], 1: ["river of Vienna"], 2: ["latex"]})
    config = ContrastiveConfig(
        loss="scl", batch_size=6, epochs=10.0, learning_rate=1e-3, negatives=0, interpolation=1.0
    )
    pairs = [TEXTS[1], "river of Vienna"]
    before = (static.encode(pairs[:1], "document") @ static.encode(pairs[1:], "query").T).item()
    train_encoder(static, rows, config, tmp_path / "work")
    assert (static.encode(pairs[:1], "document") @ static.encode(pairs[1:], "query").T).item() > before + 1e-3


def test_a_table_of_token_vectors_cannot_be_trained_with_a_decoder(static):
    config = Config.named("digits").with_changes({"training": {"train_encoder": True}})
    with pytest.raises(
        ValueError, match=r"training.train_encoder needs a transformer, and .* is a table of token vectors"
    ):
        check_encoder(config, static)
