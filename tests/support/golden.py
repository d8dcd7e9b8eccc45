"""Writes the golden index of the current format and its answers, a few hundred KB: python -m tests.support.golden

Twenty-four documents of Minipedia with metadata, an encoder with random weights, BM25, token vectors, and an update. A format
that was released is never written again; a new one gets a folder of its own.
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import dsi
from dsi.docids.files.storage import write_json
from dsi.store.folder.manifest import FORMAT_VERSION, read_manifest

FOLDER = Path(__file__).parents[1] / "golden"
SOURCE = Path(__file__).parents[2] / "docids" / "data" / "minipedia"
CALLS: list[dict[str, Any]] = [
    {},
    {"method": "exact"},
    {"beam_width": 2, "candidates": 4},
    {"where": "topic = 'places' or row >= 20"},
    {"lexical_weight": 0.0, "token_weight": 0.5},
]
"""Options of the searches whose answers are recorded."""
QUERIES = ("how high is the mountain", "added after training", "electric current")
_WIDTH = 16


def answers(retriever: dsi.Retriever) -> list[list[list[dict[str, Any]]]]:
    """Of every call, of every query: doc_id, docid and score of the best five."""
    return [
        [
            [{"doc_id": hit.doc_id, "digits": list(hit.digits), "score": hit.score} for hit in hits]
            for hits in retriever.search(list(QUERIES), 5, **options)
        ]
        for options in CALLS
    ]


def load_golden(folder: Path) -> dsi.Retriever:
    """Load the index of a golden folder on the CPU."""
    return dsi.load(folder / "index", device="cpu")


def write_golden(folder: Path) -> None:
    """Train, update, copy what the manifest lists, and record the answers."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):  # the manifest names the encoder's folder
        run = Path("run")
        retriever = dsi.train(_collection(), run, config=_config(_write_encoder(Path("encoder"))), device="cpu")
        text = "A document that was added after training."
        retriever.add([{"doc_id": "added", "title": "Added", "text": text, "metadata": {"row": 24}}])
        retriever.remove([_records()[3]["_id"]])
        retriever.save(run)
        for name in ("manifest.json", *read_manifest(run)["files"]):
            (folder / "index" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / name, folder / "index" / name)
    write_json(folder / "answers.json", answers(load_golden(folder)))


def _records() -> list[dict[str, Any]]:
    lines = (SOURCE / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines[::25]]
    return [{**record, "metadata": {"topic": record.pop("topic"), "row": n}} for n, record in enumerate(records)]


def _collection() -> dsi.Collection:
    records, whole = _records(), dsi.read_collection("minipedia")
    ids = {record["_id"] for record in records}
    qrels = {
        split: {query_id: judged for query_id, judged in whole.qrels[split].items() if ids.issuperset(judged)}
        for split in ("train", "dev")
    }
    return dsi.Collection.from_records(records, queries=whole.queries, qrels=qrels)


def _write_encoder(folder: Path) -> Path:
    """A sentence encoder of one layer whose vocabulary is words of the documents."""
    texts = " ".join(record["text"].lower() for record in _records())
    words = sorted({word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(texts)})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    shape = {"hidden_size": _WIDTH, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=48, **shape))
    model.save_pretrained(str(folder / "base"))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=48
    )
    fast.save_pretrained(str(folder / "base"))
    modules = [Transformer(str(folder / "base")), Pooling(_WIDTH, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules).save_pretrained(str(folder / "whole"), create_model_card=False)
    return folder / "whole"


def _config(encoder: Path) -> dsi.Config:
    changes = {
        "seed": 7,
        "encoder": {"name": str(encoder), "document_length": 48, "query_length": 16},
        "contrastive": {"loss": "scl", "epochs": 1.0, "batch_size": 8},
        "docids": {"branching": 4, "max_leaf_size": 3},
        "tokens": {"dim": 8},
        "search": {"token_weight": 0.05},
    }
    return dsi.Config().with_changes(changes)


if __name__ == "__main__":
    write_golden(FOLDER / str(FORMAT_VERSION))
