"""Tiny encoders of many types, made from their configs, with tokenizers as transformers writes them."""

import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedTokenizerFast, T5EncoderModel
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from tests.support.small import MINIPEDIA, WIDTH

TEXTS = [
    json.loads(line)["text"] for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:40]
]
SIZES = {
    "vocab_size": 700, "d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4,
    "hidden_size": WIDTH, "embedding_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8,
    "num_attention_heads": 4, "dim": WIDTH, "hidden_dim": 64, "n_layers": 1, "n_heads": 4, "max_position_embeddings": 66,
    "num_key_value_heads": 2, "use_bidirectional_attention": True,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1,
}  # fmt: skip
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BYTE_PAIRS = {
    "RobertaTokenizer": ROBERTA,
    "Qwen2Tokenizer": ["<|endoftext|>"],
    "GemmaTokenizer": ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"],
}
KINDS = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "nomic_bert": "BertTokenizer",
    "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "albert": "AlbertTokenizer", "t5": "T5Tokenizer", "mt5": "T5Tokenizer",
    "umt5": "", "modernbert": "",
    "deberta-v2": "DebertaV2Tokenizer", "qwen3": "Qwen2Tokenizer", "gemma3_text": "GemmaTokenizer",
    "deberta": "RobertaTokenizer", "qwen2": "Qwen2Tokenizer", "gemma": "GemmaTokenizer", "llama": "", "mistral": "",
    "eurobert": "",
}  # fmt: skip
"""{model type: class of its tokenizer, "" for one that tokenizer.json defines alone}."""


def charsmap(replacements: dict[str, str]) -> bytes:
    """SentencePiece's table of replacements, as a double array with 256 units for each node of the trie."""
    trie: dict = {}
    texts, places = b"", {}
    for source, target in replacements.items():
        places[source], node = len(texts), trie
        texts += target.encode() + b"\0"
        for byte in source.encode():
            node = node.setdefault(byte, {})
        node[None] = places[source]
    nodes, units = [(0, 0, trie)], {0: 0}
    block = 1
    while nodes:
        place, label, children = nodes.pop()
        base = 256 * block
        block += 1
        units[place] = label | (0x100 if None in children else 0) | ((place ^ base) << 10)
        for byte, below in children.items():
            if byte is None:
                units[base] = 2**31 | below
            else:
                nodes.append((base ^ byte, byte, below))
    array = np.zeros(256 * block, dtype="<u4")
    array[list(units)] = list(units.values())
    return (4 * len(array)).to_bytes(4, "little") + array.tobytes() + texts


CHARSMAP = charsmap({"ﬁ": "fi", "①": "1", "\u00a0": " "})


def save_encoder(folder: Path, kind: str) -> Path:
    """Save a sentence-transformers model of a type in `KINDS`; returns its folder."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind]()
    config = CONFIG_MAPPING[kind](**{name: value for name, value in SIZES.items() if name in config.to_dict()})
    if KINDS[kind] in ("MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"):
        config.pad_token_id = 1
    model = T5EncoderModel(config) if kind == "t5" else AutoModel.from_config(config)
    model.save_pretrained(str(folder / "base"))
    tokenizer = _tokenizer(kind)
    tokenizer.model_max_length = 60
    if kind == "qwen3":
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(str(folder / "base"))
    modules = [Transformer(str(folder / "base")), Pooling(WIDTH, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "whole"), create_model_card=False)
    return folder / "whole"


def _tokenizer(kind: str) -> PreTrainedTokenizerFast:
    name = KINDS[kind]
    if name in ("BertTokenizer", "MPNetTokenizer"):
        tokens = BERT if name == "BertTokenizer" else ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
        trained = _train(
            models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, pre_tokenizers.BertPreTokenizer(), tokens
        )
        return tokenizer_class_from_name(name)(vocab=trained["vocab"])
    if name in BYTE_PAIRS:
        trained = _train(models.BPE(), trainers.BpeTrainer, pre_tokenizers.ByteLevel(), BYTE_PAIRS[name])
        return tokenizer_class_from_name(name)(vocab=trained["vocab"], merges=[tuple(m) for m in trained["merges"]])
    if name:
        tokens = {
            "AlbertTokenizer": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
            "T5Tokenizer": ["<pad>", "</s>", "<unk>"],
            "DebertaV2Tokenizer": BERT,
        }
        trained = _train(
            models.Unigram(), trainers.UnigramTrainer, pre_tokenizers.Metaspace(), tokens.get(name, ROBERTA)
        )
        vocab = [tuple(piece) for piece in trained["vocab"]]
        more = {} if name == "DebertaV2Tokenizer" else {"_spm_precompiled_charsmap": CHARSMAP}
        return tokenizer_class_from_name(name)(vocab=vocab, **more)
    return _from_parts(kind)


def _train(model, trainer, pre_tokenizer, tokens, size=480) -> dict:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    more = (
        {"unk_token": next(token for token in tokens if "unk" in token.lower())}
        if trainer is trainers.UnigramTrainer
        else {}
    )
    tokenizer.train_from_iterator(TEXTS, trainer(vocab_size=size, special_tokens=tokens, show_progress=False, **more))
    return json.loads(tokenizer.to_str())["model"]


def _from_parts(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer as a converter of transformers composes it."""
    if kind == "modernbert":
        trained = _train(models.BPE(), trainers.BpeTrainer, pre_tokenizers.ByteLevel(), BERT)
        tokenizer = Tokenizer(models.BPE(trained["vocab"], [tuple(m) for m in trained["merges"]]))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special = [("[CLS]", 2), ("[SEP]", 3)]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", special)
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    else:
        trained = _train(
            models.Unigram(), trainers.UnigramTrainer, pre_tokenizers.Metaspace(), ["<pad>", "</s>", "<unk>"]
        )
        tokenizer = Tokenizer(models.Unigram([tuple(piece) for piece in trained["vocab"]], 2, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.Precompiled(CHARSMAP),
                normalizers.Strip(left=False),
                normalizers.Replace(Regex(" {2,}"), "▁"),
                normalizers.Replace(" ", "▁"),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
        names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)
