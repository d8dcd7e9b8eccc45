"""Changes to the files of an index that a stranger would try, aimed at what reads them."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import load_file, save_file

from tests.support.hostile import Edit

KEYS: dict[str, Any] = {
    "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config", "AutoTokenizer": ["evil.Tokenizer", None]},
    "backbone": "evil/model", "use_pretrained_backbone": True, "_name_or_path": "evil/model",
    "base_model_name_or_path": "evil/model",
    "quantization_config": {"quant_method": "gptq", "bits": 4}, "_attn_implementation": "evil/kernels",
    "chat_template": "{% for a in range(999999999) %}{{ 'x' * 99999999 }}{% endfor %}", "tokenizer_class": "ByT5Tokenizer",
    "tokenizer_file": "/etc/passwd", "vocab_file": "/dev/zero", "path": "/dev/zero", "extra_ids": 10**7,
    "processing_kwargs": {"text": {"padding": "max_length", "max_length": 10**9}}, "model_type": "timm_wrapper",
    "kind": "os.system", "num_hidden_layers": 10**9, "num_labels": 10**8, "max_position_embeddings": 2**40,
    "dtype": "float8_e4m3fn", "type": "evil.Evil", "kwargs": ["x"] * 10**5,
    "prompts": {"query": "x" * 10**7}, "name": "a\nb\x1b[31m", "requirements": ["evil"], "names": ["a"] * 10**5,
}  # fmt: skip
"""Settings that some reader of some file knows, set at the top of every JSON object."""


def _first_key(text: str) -> str:
    key = next(iter(json.loads(text)), "x") if text.lstrip().startswith("{") else "x"
    return str(key)


TEXTS: dict[str, Callable[[str], str | bytes]] = {
    "a key twice": lambda text: re.sub(r"\{", '{"' + _first_key(text) + '": 1, ', text, count=1),
    "NaN": lambda text: re.sub(r"\{", '{"x": NaN, ', text, count=1),
    "a number without end": lambda text: re.sub(r"\{", '{"x": ' + "9" * 6000 + ", ", text, count=1),
    "1e999": lambda text: re.sub(r": \d+", ": 1e999", text, count=1),
    "half a character": lambda text: re.sub(r"\{", r'{"\\ud800": "\\udfff", ', text, count=1),
    "depth": lambda text: re.sub(r"\{", '{"x": ' + "[" * 9999 + "]" * 9999 + ", ", text, count=1),
    "nothing": lambda text: "",
    "half": lambda text: text[: len(text) // 2],
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "a list": lambda text: f"[{text}]",
    "null": lambda text: "null",
    "all texts long": lambda text: re.sub(r'": "[^"]*"', '": "' + "x" * 10**5 + '"', text),
    "all numbers large": lambda text: re.sub(r": -?\d[\d.e+-]*", ": 999999999999", text),
    "all numbers -1": lambda text: re.sub(r": -?\d[\d.e+-]*", ": -1", text),
    "all numbers 0": lambda text: re.sub(r": -?\d[\d.e+-]*", ": 0", text),
    "all texts a path": lambda text: re.sub(r'": "[^"]*"', '": "../../../etc/passwd"', text),
    "control characters": lambda text: re.sub(r'": "[^"]*"', r'": "a\\nb\\u001b[2J\\u0000"', text),
}
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "largest": lambda array: np.full_like(array, _most(array)),
    "least": lambda array: np.full_like(array, _least(array)),
    "reversed": lambda array: np.ascontiguousarray(array[::-1]),
    "last one off": lambda array: np.ascontiguousarray(array[:-1]),
    "no rows": lambda array: np.ascontiguousarray(array[:0]),
    "one more": lambda array: np.concatenate([array, array[-1:]]),
}


def _most(array: Any) -> Any:
    return (
        np.iinfo(array.dtype).max
        if array.dtype.kind in "iu"
        else True
        if array.dtype == bool
        else np.finfo(array.dtype).max
    )


def _least(array: Any) -> Any:
    return np.iinfo(array.dtype).min if array.dtype.kind in "iu" else False if array.dtype == bool else np.nan


HEADERS: dict[str, dict[str, Any]] = {
    "2^63 rows of nothing": {"shape": [2**63, 0], "data_offsets": [0, 0]},
    "nothing 2^63 wide": {"shape": [0, 2**63], "data_offsets": [0, 0]},
    "a shape that overflows": {"shape": [2**32, 2**32], "data_offsets": [0, 0]},
    "offsets that overflow": {"shape": [1], "data_offsets": [2**64 - 1, 2**63]},
    "no shape": {"shape": [], "data_offsets": [0, 4]},
    "another type": {"dtype": "F64"},
}
SPLITS = ["left_child", "right_child", "split_feature", "decision_type", "threshold", "leaf_value", "num_leaves"]
WORDS = ["1.9", "-1e0", "٣", "0x1", "1_0", "+1", "99999999999", "-99999999999", "nan", "1e400"]


def _substitute(pattern: str, change: str) -> Callable[[str], str]:
    return lambda text: re.sub(f"(?m){pattern}", change, text)


LINES: dict[str, Callable[[str], str]] = {
    **{f"{name} twice": _substitute(rf"^{name}=.*$", rf"\g<0>\n{name}=9 9 9") for name in SPLITS},
    **{f"{name} first": _substitute(rf"^{name}=", f"{name}=0 0 0\n\n{name}=") for name in SPLITS},
    **{f"{name} {word}": _substitute(rf"^{name}=\S+", f"{name}={word}") for name in SPLITS for word in WORDS},
    "no end": _substitute("end of trees", "end"),
    "blank lines": _substitute("\n", "\n\n"),
    "carriage returns": _substitute("\n", "\r\n"),
    "a tree of categories": _substitute("num_cat=0", "num_cat=1\ncat_boundaries=0 1\ncat_threshold=1"),
    "linear leaves": _substitute("is_linear=0", "is_linear=1\nleaf_const=1 1 1 1\nnum_features=9 9 9 9"),
    "another tree's number": _substitute("Tree=1", "Tree=0"),
    "two classes": _substitute("num_class=1", "num_class=2"),
    "an objective": _substitute("objective=.*", "objective=custom evil"),
}
FILES = {
    "encoder/adapter_config.json": '{"peft_type": "LORA", "base_model_name_or_path": "/etc"}',
    "encoder/chat_template.jinja": "{{ 1 }}",
    "encoder/additional_chat_templates/x.jinja": "{{ 1 }}",
    "encoder/spiece.model": "x",
    "encoder/added_tokens.json": '{"x": 9999999}',
    "encoder/special_tokens_map.json": '{"pad_token": "x"}',
    "encoder/preprocessor_config.json": "{}",
    "encoder/processor_config.json": '{"processor_class": "evil"}',
    "encoder/generation_config.json": "{}",
    "encoder/model.safetensors.index.json": '{"weight_map": {"x": "../x"}}',
    "encoder/1_Pooling/model.safetensors": "",
    "encoder/sub.py": "",
    "generator/pytorch_model.bin": "",
    "generator/adapter_config.json": "{}",
    "docids/a\nb": "",
    "lexical/model": "",
    "rerank/x/y": "",
}


def aimed_edits(source: Path) -> Iterator[Edit]:
    """Every change that fits a file of an index."""
    for path in sorted(filter(Path.is_file, source.rglob("*"))):
        name = path.relative_to(source).as_posix()
        if path.suffix == ".json":
            yield from _json_edits(name, path.read_text())
        elif path.suffix == ".safetensors":
            yield from _array_edits(name, load_file(path))
        elif path.suffix == ".arrow":
            yield from (Edit(name, what, partial(_write_table, change)) for what, change in TABLES.items())
        elif path.suffix == ".txt":
            yield from (Edit(name, what, partial(_rewrite, change)) for what, change in LINES.items())
    for name, text in FILES.items():
        if not (source / name).is_dir():
            yield Edit(name, "a new file", partial(_create, text))


def _json_edits(name: str, text: str) -> Iterator[Edit]:
    for what, change in TEXTS.items():
        yield Edit(name, what, partial(_rewrite, change))
    if isinstance(json.loads(text), dict) and not name.endswith("vocab.index.json"):
        for key, value in KEYS.items():
            yield Edit(name, f"{key} is set", partial(_set, key, value))


def _array_edits(name: str, arrays: dict[str, Any]) -> Iterator[Edit]:
    for array in [*arrays][:: max(1, len(arrays) // 12)]:
        for what, change in ARRAYS.items():
            yield Edit(name, f"{array}: {what}", partial(_write_array, array, change))
    for what, entry in HEADERS.items():
        yield Edit(name, f"header: {what}", partial(_write_header, entry))


def _rewrite(change: Callable[[str], str | bytes], path: Path) -> None:
    changed = change(path.read_text())
    path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())


def _create(text: str, path: Path) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)


def _set(key: str, value: Any, path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def _write_array(name: str, change: Callable[[Any], Any], path: Path) -> None:
    arrays = load_file(path)
    save_file({**arrays, name: change(np.atleast_1d(arrays[name]))}, path, metadata={"format": "pt"})


def _write_header(entry: dict[str, Any], path: Path) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = next(name for name in header if name != "__metadata__")
    changed = json.dumps({**header, name: {**header[name], **entry}}).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + length :])


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return table.drop_columns([name] if name in table.column_names else []).append_column(name, column)


TABLES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "NaN": lambda table: _with(table, "price", [float("nan")] * len(table)),
    "infinity in a list": lambda table: _with(table, "price", [[float("inf")]] * len(table)),
    "one id": lambda table: _with(table, "doc_id", ["x"] * len(table)),
    "null ids": lambda table: _with(table, "doc_id", pa.nulls(len(table), pa.string())),
    "empty ids": lambda table: _with(table, "doc_id", [""] * len(table)),
    "ids with newlines": lambda table: _with(table, "doc_id", [f"a\n\x1b[2J{row}" for row in range(len(table))]),
    "null titles": lambda table: _with(table, "title", pa.nulls(len(table), pa.string())),
    "numbers as ids": lambda table: _with(table, "doc_id", list(range(len(table)))),
    "no rows": lambda table: table.slice(0, 0),
    "one row less": lambda table: table.slice(1),
    "twice": lambda table: pa.concat_tables([table, table]),
    "bytes": lambda table: _with(table, "more", [b"\xff"] * len(table)),
    "long titles": lambda table: _with(table, "title", ["x" * 10**5] * len(table)),
    "a column of ours": lambda table: _with(table, "score", [1] * len(table)),
    "dates": lambda table: _with(table, "day", pa.array([2**62] * len(table), pa.int64()).cast(pa.timestamp("us"))),
}


def _write_table(change: Callable[[pa.Table], pa.Table], path: Path) -> None:
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = change(reader.read_all().replace_schema_metadata(None))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
