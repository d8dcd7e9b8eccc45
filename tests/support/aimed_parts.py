"""Changes to the parts of an index by somebody who knows what each part means, and what reads it."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import load_file, save_file

from tests.support.hostile import Edit, edit_json

MANIFEST: dict[str, dict[str, Any]] = {
    "parts in the encoder": {"parts": {"docids": "encoder", "lexical": "lexical"}},
    "parts that swap": {"parts": {"docids": "lexical", "lexical": "docids"}},
    "one folder twice": {"parts": {"docids": "docids", "lexical": "docids"}},
    "an encoder elsewhere": {"parts": {"docids": "docids", "lexical": "lexical", "encoder": "docids", "generator": "docids"}},
    "a later generation's parts": {"generation": 2, "parts": {"docids": "docids-3", "lexical": "lexical-3"}},
    "a generation without end": {"generation": 10**300},
    "a generation below 0": {"generation": -5},
    "texts without end": {"encoder": {"query_length": 10**9, "document_length": 10**9}},
    "no texts": {"encoder": {"query_length": 1, "document_length": 1}},
    "long prompts": {"encoder": {"query_prompt": "gas " * 500, "document_prompt": "\x00" * 2000}},
    "prompts of surrogates": {"encoder": {"query_prompt": "\ud800"}},
    "a walk without end": {"search": {"beam_width": 10**9, "candidates": 10**9}},
    "weights without end": {"search": {"lexical_weight": 1e6, "token_weight": 1e6}},
    "a tiny temperature": {"search": {"ann_temperature": 1e-6, "alpha": 0.5, "beta": 1.0}},
    "a threshold of levels": {"search": {"beta": 1e308}},
    "many parts": {"parts": {f"docids-{n}": "docids" for n in range(10**5)}},
    "versions of anything": {"versions": {"python": {"a": [1] * 10**5}}},
    "threads": {"threads": 10**9, "seed": "x" * 10**6},
}  # fmt: skip
"""{what: entries of the manifest}; tables are updated, all else is replaced."""
ENCODER: dict[str, dict[str, Any]] = {
    **{
        f"{name} {value}": {name: value}
        for value in (0, 1, 5, 255, 10**7)
        for name in (
            "vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers", "num_decoder_layers", "hidden_size",
            "num_attention_heads", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "pad_token_id",
            "type_vocab_size", "relative_attention_num_buckets", "relative_attention_max_distance", "bos_token_id",
            "decoder_start_token_id", "chunk_size_feed_forward",
        )
    },
    **{f"{name} {value}": {name: value} for value in ("float16", "bfloat16", "float64", "int8", "complex64", "x", "")
       for name in ("dtype", "torch_dtype")},
    **{f"{name} {value}": {name: value} for value in (0, -1.0, 1e-300, 1e7, 0.5)
       for name in ("layer_norm_eps", "layer_norm_epsilon", "initializer_range", "initializer_factor", "hidden_dropout_prob",
                    "dropout_rate", "attention_probs_dropout_prob", "classifier_dropout")},
    **{f"{name} {value}": {name: value} for value in ("gelu_new", "x", "torch.hub.load", "linear", "")
       for name in ("hidden_act", "feed_forward_proj", "dense_act_fn", "position_embedding_type", "problem_type")},
    "labels": {"id2label": {str(n): "x" for n in range(255)}, "label2id": {}},
    "architectures": {"architectures": ["x" * 100] * 256},
    "tied": {"tie_word_embeddings": False, "is_encoder_decoder": True, "use_cache": True},
    "gated": {"is_gated_act": True, "feed_forward_proj": "gated-gelu"},
}  # fmt: skip
"""{what: settings of a transformer}; those that its config does not have are refused by name."""
TOKENIZER: dict[str, dict[str, Any]] = {
    "left": {"padding_side": "left", "truncation_side": "left"},
    "no length": {"model_max_length": 10**31},
    "length 1": {"model_max_length": 1},
    "a multiple": {"pad_to_multiple_of": 64, "max_length": 10**6},
    "another class": {"tokenizer_class": "T5Tokenizer", "extra_ids": 1000},
    "a third class": {"tokenizer_class": "AlbertTokenizer", "keep_accents": True},
    "a fourth class": {"tokenizer_class": "RobertaTokenizer", "errors": "strict"},
    "a fifth class": {"tokenizer_class": "CamembertTokenizer"},
    "a sixth class": {"tokenizer_class": "BertTokenizer"},
    "a seventh class": {"tokenizer_class": "MPNetTokenizer"},
    "special tokens as words": {"pad_token": "the", "eos_token": "the", "unk_token": "the", "cls_token": "a"},
    "no padding": {"pad_token": None},
    "long special tokens": {"additional_special_tokens": ["x" * 512 + str(n) for n in range(1000)]},
    "unknown special tokens": {"extra_special_tokens": ["y" * 512 + str(n) for n in range(1000)]},
    "added tokens": {"added_tokens_decoder": {str(n): {"content": f"added{n}"} for n in range(10**6, 10**6 + 2000)}},
    "added tokens over others": {"added_tokens_decoder": {str(n): {"content": f"added{n}"} for n in range(2000)}},
    "no inputs": {"model_input_names": []},
    "inputs of anything": {"model_input_names": ["x", "y", "z", "input_ids"]},
    "pieces": {"split_special_tokens": True, "add_prefix_space": True, "clean_up_tokenization_spaces": True},
}
"""{what: settings of a tokenizer}."""
PIECES: dict[str, dict[str, Any]] = {
    "many added tokens": {"added_tokens": [{"id": n, "content": f"{n}" + "a" * 500} for n in range(2000)]},
    "added letters": {"added_tokens": [{"id": n, "content": chr(97 + n)} for n in range(26)]},
    "an added token of spaces": {"added_tokens": [{"id": 0, "content": " ", "lstrip": True, "rstrip": True}]},
    "a table of nothing": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}},
    "normalizers": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 7 + [{"type": "ByteLevel"}]}},
    "bytes in front": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}, {"type": "NFKD"}] * 1}},
    "all is removed": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Removed", "invert": True}},
    "isolated": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}] * 8}},
    "words of letters": {"pre_tokenizer": {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated"}},
    "bert": {"post_processor": {"type": "BertProcessing", "sep": ["x", 10**7], "cls": ["y", 10**7]}},
    "roberta": {"post_processor": {"type": "RobertaProcessing", "sep": ["x", 0], "cls": ["y", 0], "trim_offsets": True}},
    "a template of 9": {"post_processor": {
        "type": "TemplateProcessing",
        "single": [*[{"SpecialToken": {"id": "x", "type_id": 1}}] * 8, {"Sequence": {"id": "A", "type_id": 1}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"x": {"id": "x", "ids": [0], "tokens": ["x"]}}}},
    "a template without a token": {"post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}}},
    "cut": {"truncation": {"max_length": 1, "strategy": "OnlySecond", "stride": 0}},
    "padded": {"padding": {"strategy": {"Fixed": 8192}, "pad_to_multiple_of": 64, "pad_id": 10**7}},
    "words": {"model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}},
    "no unknown word": {"model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "y"}},
    "bytes": {"model": {"type": "BPE", "vocab": {"x": 0}, "merges": [], "byte_fallback": True, "unk_token": "x"}},
    "merges of nothing": {"model": {"type": "BPE", "vocab": {"x": 0}, "merges": ["x y"]}},
    "merges in a circle": {"model": {"type": "BPE", "vocab": {"x": 0, "xx": 1}, "merges": [["x", "x"], ["xx", "x"]]}},
    "one piece": {"model": {"type": "Unigram", "vocab": [["x", 0.0]], "unk_id": None, "byte_fallback": True}},
    "heavy pieces": {"model": {"type": "Unigram", "vocab": [["x", 1e308], ["y", -1e308]], "unk_id": 0}},
    "empty pieces": {"model": {"type": "Unigram", "vocab": [["", 0.0], ["", 1.0]], "unk_id": 0}},
    "no vocabulary": {"model": {"type": "WordPiece", "vocab": {}, "unk_token": "x"}},
    "numbers twice": {"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 0, "b": 0}}},
}  # fmt: skip
"""{what: entries of tokenizer.json}."""
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "1e30": lambda array: _filled(array, 1e30),
    "-1e30": lambda array: _filled(array, -1e30),
    "1e19": lambda array: _filled(array, 1e19),
    "1e-45": lambda array: _filled(array, 1e-45),
    "1e30 and -1e30": lambda array: _filled(array, 1e30) * np.resize([1, -1], array.shape).astype(array.dtype),
    "one 3e38": lambda array: _one(array, 3e38),
    "one infinity": lambda array: _one(array, np.inf),
    "infinity and -infinity": lambda array: _one(_one(array[::-1], -np.inf)[::-1], np.inf),
    "float64": lambda array: array.astype(np.float64),
    "float16": lambda array: array.astype(np.float16),
    "int64": lambda array: array.astype(np.int64),
    "int8": lambda array: array.astype(np.int8),
    "bool": lambda array: array.astype(bool),
    "flat": lambda array: array.ravel(),
    "one more dimension": lambda array: array[None],
    "transposed": lambda array: np.ascontiguousarray(array.T),
    "a permutation": lambda array: array[np.random.default_rng(0).permutation(len(array))],
    "one off by one": lambda array: _one(array, array.ravel()[0] + 1) if array.size else array,
    "sorted": lambda array: np.sort(array, axis=0),
}


def _filled(array: Any, value: float) -> Any:
    return np.full_like(array, value) if array.dtype.kind == "f" else np.full_like(array, np.sign(value))


def _one(array: Any, value: Any) -> Any:
    changed = array.copy()
    if array.size:
        changed.ravel()[-1] = value if array.dtype.kind == "f" else np.clip(value, -100, 100)
    return changed


def part_edits(source: Path) -> Iterator[Edit]:
    """Every change that fits a part of an index."""
    for what, entries in MANIFEST.items():
        yield Edit("manifest.json", what, partial(_update, entries))
    for what, change in FOLDERS.items():
        yield Edit(".", what, change)
    for path in sorted(filter(Path.is_file, source.rglob("*"))):
        name = path.relative_to(source).as_posix()
        settings = {"tokenizer_config.json": TOKENIZER, "tokenizer.json": PIECES}.get(path.name, {})
        if path.name == "config.json" and "model_type" in (known := json.loads(path.read_text())):
            settings = {what: own for what, own in ENCODER.items() if own.keys() <= {*known, "dtype"}}
        if path.name == "modules.json":
            settings = {}
            yield from (Edit(name, what, partial(edit_json, change=change)) for what, change in MODULES.items())
        yield from (Edit(name, what, partial(_update, own)) for what, own in settings.items())
        if path.suffix == ".safetensors":
            yield from _number_edits(name, path)
        elif path.suffix == ".arrow":
            yield from (Edit(name, what, partial(_write_table, change)) for what, change in TABLES.items())


def _update(entries: dict[str, Any], path: Path) -> None:
    value = json.loads(path.read_text())
    for name, own in entries.items():
        value[name] = {**value[name], **own} if isinstance(own, dict) and name in ("encoder", "search") else own
    path.write_text(json.dumps(value))


def _number_edits(name: str, path: Path) -> Iterator[Edit]:
    arrays = load_file(path)
    for array in [*arrays][:: max(1, len(arrays) // (2 if path.name == "model.safetensors" else 12))]:
        for what, change in NUMBERS.items():
            yield Edit(name, f"{array}: {what}", partial(_write_array, array, change))
    yield Edit(name, "all 1e30", partial(_write_all, NUMBERS["1e30"]))
    yield Edit(name, "all float64", partial(_write_all, NUMBERS["float64"]))
    yield Edit(name, "all int8", partial(_write_all, NUMBERS["int8"]))
    for what, change in HEADERS.items():
        yield Edit(name, f"header: {what}", partial(_rewrite_header, change))


def _write_array(name: str, change: Callable[[Any], Any], path: Path) -> None:
    arrays = load_file(path)
    with np.errstate(all="ignore"):
        save_file(
            {**arrays, name: np.ascontiguousarray(change(np.atleast_1d(arrays[name])))}, path, metadata={"format": "pt"}
        )


def _write_all(change: Callable[[Any], Any], path: Path) -> None:
    with np.errstate(all="ignore"):
        save_file({name: change(array) for name, array in load_file(path).items()}, path, metadata={"format": "pt"})


def _rewrite_header(change: Callable[[str], str], path: Path) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change(data[8 : 8 + length].decode()).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


HEADERS: dict[str, Callable[[str], str]] = {
    "one space more": lambda text: text + " ",
    "seven spaces less": lambda text: text.rstrip() + " ",
    "much space": lambda text: text + " " * 10**6,
    "an entry twice": lambda text: text.replace("{", '{"__metadata__": {}, ', 1),
    "metadata of numbers": lambda text: json.dumps({**json.loads(text), "__metadata__": {"format": 3}}),
    "metadata without end": lambda text: json.dumps({**json.loads(text), "__metadata__": {"format": "x" * 10**6}}),
    "a name with a path": lambda text: text.replace('"', '"../../', 1),
    "no names": lambda text: "{}",
    "a list": lambda text: f"[{text}]",
    "1e0": lambda text: text.replace('"shape":[1', '"shape":[1e0').replace('"shape": [1', '"shape": [1e0'),
    "depth": lambda text: text.replace("{", '{"__metadata__": ' + '{"a":' * 9999 + "1" + "}" * 9999 + ", ", 1),
}


# Modules of sentence-transformers.


def _more(module: dict[str, Any], count: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(modules: list[dict[str, Any]]) -> None:
        modules += [{**module, "idx": len(modules) + n, "name": str(len(modules) + n)} for n in range(count)]

    return change


def _first_again(count: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(modules: list[dict[str, Any]]) -> None:
        modules[1:1] = [{**modules[0], "idx": n + 1, "name": str(n + 1)} for n in range(count)]

    return change


MODULES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "the first again": _first_again(1),
    "the first fifteen times": _first_again(13),
    "the last again": lambda modules: modules.append({**modules[-1], "name": "9"}),
    "reversed": lambda modules: modules.reverse(),
    "the first alone": lambda modules: modules.__delitem__(slice(1, None)),
    "the first is gone": lambda modules: modules.pop(0),
    "none": lambda modules: modules.clear(),
    "a dropout": _more({"path": "", "type": "sentence_transformers.models.Dropout"}, 3),
    "a normalisation elsewhere": _more({"path": "encoder", "type": "sentence_transformers.models.Normalize"}, 1),
    "the transformer pools": lambda modules: modules[0].update(type="sentence_transformers.models.Pooling"),
    "a masked model": lambda modules: modules[0].update(
        type="sentence_transformers.sparse_encoder.models.MLMTransformer"
    ),
    "a splade": _more({"path": "", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"}, 1),
    "a static embedding": lambda modules: modules[0].update(
        type="sentence_transformers.sparse_encoder.models.SparseStaticEmbedding"
    ),
    "one name": lambda modules: [module.update(name="0", idx=0) for module in modules],
    "numbers": lambda modules: [module.update(idx=-(10**9)) for module in modules],
}


# The folder.


def _hard_links(folder: Path) -> None:
    deep = folder / "encoder" / "deep"
    deep.mkdir()
    for number in range(3000):
        os.link(folder / "encoder" / "tokenizer.json", deep / f"model-{number:05}-of-03000.safetensors")


def _many_folders(name: str, count: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for number in range(count):
            (folder / "encoder" / str(number)).mkdir()
            os.link(folder / "encoder" / name, folder / "encoder" / str(number) / name)

    return change


def _deep(folder: Path) -> None:
    place = folder / "encoder"
    for _ in range(450):
        place /= "x" * 4
    place.mkdir(parents=True)


def _shards(folder: Path) -> None:
    arrays = load_file(folder / "encoder" / "model.safetensors")
    (folder / "encoder" / "model.safetensors").unlink()
    names = {}
    for number, (name, array) in enumerate(arrays.items()):
        names[name] = f"model-{number:05}-of-{len(arrays):05}.safetensors"
        save_file({name: array}, folder / "encoder" / names[name], metadata={"format": "pt"})
    listed = {"metadata": {"total_size": -1}, "weight_map": names}
    (folder / "encoder" / "model.safetensors.index.json").write_text(json.dumps(listed))


def _link(name: str, target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


FOLDERS: dict[str, Callable[[Path], object]] = {
    "hard links of shards": _hard_links,
    "hard links of tokenizers": _many_folders("tokenizer.json", 3000),
    "hard links of weights": _many_folders("model.safetensors", 1000),
    "deep folders": _deep,
    "shards": _shards,
    "a link to the folder above": _link("encoder/up", "../.."),
    "a link to itself": _link("encoder/config.json", "config.json"),
    "a link to a file that is not there": _link("docids/tokens.safetensors", "nothing"),
    "a pipe beside": lambda folder: os.mkfifo(folder / "config.toml"),
    "a pipe of tokens": lambda folder: [
        (folder / "docids" / name).unlink(missing_ok=True) or os.mkfifo(folder / "docids" / name)
        for name in ("tokens.safetensors",)],
    "a pipe as a lock": lambda folder: os.mkfifo(folder / ".lock"),
    "no lexical part": lambda folder: shutil.rmtree(folder / "lexical"),
    "an empty lexical part": lambda folder: (shutil.rmtree(folder / "lexical"), (folder / "lexical").mkdir()),
    "a model in the lexical part": lambda folder: (
        shutil.rmtree(folder / "lexical" / "model", ignore_errors=True),
        shutil.copytree(folder / "encoder", folder / "lexical" / "model")),
    "an encoder in the generator": lambda folder: shutil.copytree(folder / "encoder", folder / "generator" / "encoder"),
    "a generator as encoder": lambda folder: (shutil.rmtree(folder / "encoder"),
                                              shutil.copytree(folder / "generator", folder / "encoder")),
    "an encoder as generator": lambda folder: (shutil.rmtree(folder / "generator"),
                                               shutil.copytree(folder / "encoder", folder / "generator")),
    "other generations": lambda folder: [shutil.copytree(folder / "docids", folder / f"docids-{n}") for n in (2, 3, 10**9)],
    "leftovers": lambda folder: [shutil.copytree(folder / "docids", folder / name)
                                 for name in (".docids-2.partial", ".docids.previous", "docids-1.partial")],
    "a name in another script": lambda folder: (folder / "encoder" / "сonfig.json").write_text("{}"),
}  # fmt: skip
"""{what: a change to the folder of an index}."""


# The document table.


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return table.drop_columns([name] if name in table.column_names else []).append_column(name, column)


def _nested(depth: int) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        column = pa.array(range(len(table)))
        for _ in range(depth):
            column = pa.ListArray.from_arrays(pa.array(range(len(table) + 1), pa.int32()), column)
        return _with(table, "deep", column)

    return change


def _list(child: pa.Array) -> Callable[[pa.Table], pa.Table]:
    """A list that holds a long child in its first row."""

    def change(table: pa.Table) -> pa.Table:
        offsets = pa.array([0] + [len(child)] * len(table), pa.int32())
        return _with(table, "long", pa.ListArray.from_arrays(offsets, child))

    return change


def _fixed(table: pa.Table) -> pa.Table:
    kind = pa.list_(pa.null(), 10**7)
    return _with(
        table, "long", pa.Array.from_buffers(kind, len(table), [None], children=[pa.nulls(10**7 * len(table))])
    )


def _features(own: dict[str, Any], kind: pa.DataType, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        changed = _with(table, "x", pa.array([value] * len(table), kind))
        known = {name: {"dtype": "string", "_type": "Value"} for name in table.column_names}
        features = json.dumps({"info": {"features": {**known, "x": own}}})
        return changed.replace_schema_metadata({"huggingface": features})

    return change


def _typed(kind: pa.DataType, value: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: _with(table, "x", pa.array([value] * len(table), pa.int64()).cast(kind))


TABLES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "50 deep": _nested(50),
    "nothing, often": _list(pa.nulls(2**31 - 1)),
    "nothing, fixed": _fixed,
    "structs of nothing, often": _list(pa.StructArray.from_arrays([pa.nulls(10**8)], names=["x"])),
    "bytes of nothing, often": _list(pa.Array.from_buffers(pa.binary(0), 10**8, [None, pa.py_buffer(b"")])),
    "bits, often": _list(pa.array(np.zeros(10**5, bool))),
    "names from a file": _features({"names_file": "/etc/hostname", "_type": "ClassLabel"}, pa.int64(), 0),
    "names": _features({"names": ["a\n"], "_type": "ClassLabel"}, pa.int64(), 7),
    "json": _features({"_type": "Json"}, pa.string(), "[" * 10**5),
    "an image": _features({"_type": "Image"}, pa.string(), "/etc/passwd"),
    "an array": _features({"shape": [10**6, 10**6], "dtype": "int64", "_type": "Array2D"}, pa.int64(), 0),
    "a type": _features({"dtype": "int8", "_type": "Value"}, pa.int64(), 10**12),
    "a type unknown": _features({"_type": "os.system"}, pa.int64(), 0),
    "metadata": lambda table: table.replace_schema_metadata({"huggingface": "[" * 10**5}),
    "pandas": lambda table: table.replace_schema_metadata({"pandas": "{" * 10**5, "ARROW:extension:name": "x"}),
    "extension": lambda table: _with(table, "x", pa.array(range(len(table)))).cast(pa.schema([
        *table.schema, pa.field("x", pa.int64(), metadata={"ARROW:extension:name": "arrow.uuid"})])),
    "a time zone": _typed(pa.timestamp("us", tz="../../../etc/passwd"), 0),
    "a time zone that is not": _typed(pa.timestamp("us", tz="Nowhere/Land"), 0),
    "the last day": _typed(pa.timestamp("s"), 2**62),
    "nanoseconds": _typed(pa.timestamp("ns"), 1),
    "durations": _typed(pa.duration("s"), 2**62),
    "late dates": _typed(pa.date64(), 86_400_000 * 10**9),
    "times": lambda table: _with(table, "x", pa.array([10**9] * len(table), pa.int32()).view(pa.time32("s"))),
    "one decimal": lambda table: _with(table, "x", pa.array([1] * len(table), pa.decimal128(38, 10))),
    "unsigned": lambda table: _with(table, "x", pa.array([2**64 - 1] * len(table), pa.uint64())),
    "half floats": lambda table: _with(table, "x", pa.array(np.full(len(table), 1, np.float16))),
    "views": lambda table: _with(table, "x", pa.array(["x"] * len(table), pa.string_view())),
    "maps": lambda table: _with(table, "x", pa.array([[("a", 1)]] * len(table), pa.map_(pa.string(), pa.int64()))),
    "runs": lambda table: _with(
        table, "x", pa.RunEndEncodedArray.from_arrays(pa.array([len(table)], pa.int32()), pa.array([1]))),
    "unions": lambda table: _with(table, "x", pa.UnionArray.from_sparse(
        pa.array([0] * len(table), pa.int8()), [pa.array(range(len(table)))])),
    "a dictionary of ids": lambda table: _with(table, "doc_id", table["doc_id"].combine_chunks().dictionary_encode()),
    "ids of views": lambda table: _with(table, "doc_id", table["doc_id"].combine_chunks().cast(pa.string_view())),
    "large ids": lambda table: _with(table, "doc_id", table["doc_id"].combine_chunks().cast(pa.large_string())),
    "two ids": lambda table: _with(table, "doc_id", ["x", *table["doc_id"].to_pylist()[1:-1], "x"]),
    "ids with spaces": lambda table: _with(table, "doc_id", [f"a {row}" for row in range(len(table))]),
    "ids with a NUL": lambda table: _with(table, "doc_id", [f"a\0{row}" for row in range(len(table))]),
    "long ids": lambda table: _with(table, "doc_id", [f"{row}" + "x" * 10**5 for row in range(len(table))]),
    "many columns": lambda table: pa.table({**{name: table[name] for name in table.column_names},
                                            **{f"c{n}": [n] * len(table) for n in range(5000)}}),
    "a nameless column": lambda table: _with(table, "", [1] * len(table)),
    "Title": lambda table: _with(table, "Title", ["x"] * len(table)),
    "a column with a NUL": lambda table: _with(table, "a\0\n\x1b[2J", [1] * len(table)),
    "texts of numbers": lambda table: _with(table, "text", [1] * len(table)),
    "no texts": lambda table: _with(table, "text", pa.nulls(len(table), pa.string())),
    "null texts": lambda table: _with(table, "text", pa.nulls(len(table))),
    "texts as lists": lambda table: _with(table, "text", [["x"]] * len(table)),
    "null metadata": lambda table: _with(table, "x", pa.nulls(len(table))),
    "rows in batches": lambda table: pa.concat_tables([table.slice(row, 1) for row in range(len(table))]),
}  # fmt: skip


def _write_table(change: Callable[[pa.Table], pa.Table], path: Path) -> None:
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = change(reader.read_all().replace_schema_metadata(None))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
