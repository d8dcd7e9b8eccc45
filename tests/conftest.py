"""What all tests share: sentence encoders and a T5 built from a config and saved; nothing is fetched, one thread each.

The libraries are imported by what uses them: the process that deals the tests out needs none.
"""

import copy
import functools
import gc
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side, and start processes of their own
# Workers share the folder of the process that started them, which removes it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="dsi-tests-", ignore_cleanup_errors=True)
    os.environ["HF_DATASETS_CACHE"] = f"{_CACHE.name}/datasets"
    os.environ["XDG_CACHE_HOME"] = f"{_CACHE.name}/cache"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest

gc.disable()  # while the tests are collected, which imports everything

# It refuses the same files. Killed processes lose nothing without it, and the tests of lost power watch the calls.
os.fsync = os.fstat


class _Kept(dict[str, bytes]):
    def clear(self) -> None:
        """A process keeps the graph of one encoder; the tests go from one to the other and back."""


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()
    if export := sys.modules.get("dsi.graph.export"):
        export._LAST = _Kept()


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest looks for garbage five times when it ends


@pytest.hookimpl(trylast=True)  # of those that are chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with whole programs and clusters come first, so that no worker begins a long one when the others end.

    Workers begin with equal shares of the list: the first with clusters, which wait much, the second with pages, which train.
    """
    long = {item.path for item in items if any(map(item.get_closest_marker, ("programs", "cluster", "browser")))}
    pages = [item for item in items if item.path.name == "test_docs.py"]
    others = sorted(
        (item for item in items if item.path.name != "test_docs.py"), key=lambda item: item.path not in long
    )
    second = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [*others[:second], *pages, *others[second:]]


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    """Every training collects garbage; that passes over all that was there before, such as the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_t5_config():
    from transformers import T5Config

    return T5Config(
        vocab_size=2000, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.support.small import MINIPEDIA

    folder = tmp_path_factory.mktemp("tokenizer")
    texts = " ".join(json.loads(line)["text"] for line in (MINIPEDIA / "corpus.jsonl").open(encoding="utf-8"))
    words = Counter(word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(texts))
    characters = sorted(set(texts) - {" "})
    pieces = ["<pad>", "</s>", "<unk>", *characters, *(f"##{character}" for character in characters)]
    pieces += sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
    vocabulary = {piece: number for number, piece in enumerate(pieces[:2000])}  # the same in every run
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    ).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def sentence_t5_folder(tmp_path_factory, tiny_t5_config, tokenizer_folder: Path) -> Path:
    """A tiny Sentence-T5 on disk: T5 encoder, mean pooling, normalisation."""
    import torch
    from transformers import T5EncoderModel

    from tests.support.small import save_sentence_encoder

    torch.manual_seed(0)
    model = T5EncoderModel(copy.deepcopy(tiny_t5_config))
    return save_sentence_encoder(tmp_path_factory.mktemp("sentence-t5"), model, tokenizer_folder)


@pytest.fixture(scope="session")
def sentence_bert_folder(tmp_path_factory, tokenizer_folder: Path) -> Path:
    """A tiny Sentence-BERT on disk; like most, with a pooler whose weights no embedding depends on."""
    import torch
    from transformers import BertConfig, BertModel

    from tests.support.small import WIDTH, save_sentence_encoder

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=2000, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    return save_sentence_encoder(tmp_path_factory.mktemp("sentence-bert"), model, tokenizer_folder)


@pytest.fixture
def tiny_default(sentence_bert_folder: Path, monkeypatch):
    """The tiny Sentence-BERT in place of all-MiniLM-L6-v2, for what does not depend on how well it reads."""
    monkeypatch.setattr("dsi.contrastive.encoder.packaged_encoder", lambda: sentence_bert_folder)


@pytest.fixture(scope="session")
def t5_folder(tmp_path_factory, tiny_t5_config, tokenizer_folder: Path) -> Path:
    """A tiny T5 on disk with its tokenizer."""
    import torch
    from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(1)
    T5ForConditionalGeneration(copy.deepcopy(tiny_t5_config)).save_pretrained(str(folder))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder)).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def loaded_encoder(sentence_t5_folder: Path):
    from dsi.contrastive.config import EncoderConfig
    from dsi.contrastive.encoder import Encoder
    from tests.support.small import PROMPTS

    return Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")


@pytest.fixture
def encoder(loaded_encoder):
    """A tiny encoder that a test may train; loading it takes ten times as long as a copy."""
    copied = type(loaded_encoder)(copy.deepcopy(loaded_encoder.model), loaded_encoder.config)
    copied._source = loaded_encoder._source
    return copied


@pytest.fixture(params=["t5", "bert"])
def whole(request, sentence_t5_folder: Path, sentence_bert_folder: Path) -> Path:
    """A folder with a sentence encoder of either kind."""
    return {"t5": sentence_t5_folder, "bert": sentence_bert_folder}[request.param]


@pytest.fixture(
    params=[
        "float16-t5",
        "bfloat16-bert",
        *(pytest.param(pair, marks=pytest.mark.slow) for pair in ("float16-bert", "bfloat16-t5")),
    ]
)
def half(request, sentence_t5_folder: Path, sentence_bert_folder: Path, tmp_path: Path):
    """A folder with a sentence encoder of either kind in half precision, and that precision."""
    import torch

    from tests.support.half import save_encoder_in

    precision, kind = request.param.split("-")
    dtype, whole = getattr(torch, precision), {"t5": sentence_t5_folder, "bert": sentence_bert_folder}[kind]
    return save_encoder_in(dtype, whole, tmp_path / "half"), dtype


@pytest.fixture
def beir(tmp_path: Path) -> Callable[..., Path]:
    """`write_collection` in a folder of the test."""
    from tests.support.small import write_collection

    return functools.partial(write_collection, tmp_path / "collection")
