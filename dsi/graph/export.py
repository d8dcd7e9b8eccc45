"""Writes the graph of an encoder beside its weights, and compares what it gives with the model. Knows nothing of docids."""

import copy
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsi.contrastive.encoder import Encoder
from dsi.contrastive.inference import PackedLinear
from dsi.contrastive.model_files import LOADING, TEXTS
from dsi.docids.files.reading import tensor_header
from dsi.docids.files.storage import digest, write_json
from dsi.graph.encoder import GRAPH, INPUTS, SETTINGS, GraphEncoder

logger = logging.getLogger(__name__)

_OPSET = 17
_INLINE = 2**24
"""Bytes that a graph may hold itself: tables that no file of the model has."""
_TYPES = {
    "F32": ("FLOAT", torch.float32), "F16": ("FLOAT16", torch.float16), "BF16": ("BFLOAT16", torch.bfloat16),
    "I64": ("INT64", torch.int64),
}  # fmt: skip
"""{type in a safetensors file: in a graph, in torch}."""


class _Reads(nn.Module):
    """A model of sentence-transformers by position: tensors in, token states and the text's vector out."""

    def __init__(self, model: nn.Module, names: Sequence[str], *, is_static: bool) -> None:
        super().__init__()
        self.model, self._names, self._is_static = model, names, is_static

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        inputs = dict(zip(self._names, tensors, strict=True))
        if not self._is_static:
            output = self.model(inputs)
            return output["token_embeddings"], output["sentence_embedding"]
        mask = inputs["attention_mask"][:, :, None].float()
        states = F.embedding(inputs["input_ids"], self.model[0].embedding.weight)  # type: ignore[index, union-attr, arg-type]
        output = {"sentence_embedding": (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)}
        for module in list(self.model)[1:]:  # type: ignore[call-overload]
            output = module(output)
        return states, output["sentence_embedding"]


def write_graph(encoder: Encoder, folder: Path) -> None:
    """Write the graph of an encoder into the folder where it was saved; a line says if there can be none."""
    try:
        _write_graph(encoder, folder)
    except Exception as error:  # whatever a library says of a model that it does not know
        for name in (GRAPH, SETTINGS):
            (folder / name).unlink(missing_ok=True)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        logger.warning("The encoder has no graph, so searches load torch, which takes seconds: %s", reason[:200])


def _write_graph(encoder: Encoder, folder: Path) -> None:
    model, vocabulary, fingerprint = encoder.model, encoder.vocabulary, encoder.fingerprint
    padding = [getattr(model.tokenizer, name, None) for name in ("pad_token_id", "padding_side")]
    settings = {
        "prompts": encoder.prompts,
        "embedding_dim": encoder.embedding_dim,
        "state_dim": encoder.state_dim,
        "max_length": encoder.max_length,
        "is_cosine": encoder.is_cosine,
        "usual_length": encoder.usual_length,
        "fingerprint": fingerprint,
        "vocabulary": [list(vocabulary.special), vocabulary.unknown, vocabulary.side, vocabulary.marks],
        "padding": [padding[0] or 0, padding[1] or "right"],
    }
    files = (path for path in folder.rglob("*") if path.is_file())
    text_files = sorted(path for path in files if path.suffix not in (".safetensors", ".onnx"))
    key = digest([fingerprint, [path.read_text(encoding="utf-8") for path in text_files if path.name != SETTINGS]])
    graph = _LAST.get(key) or _exported(model, folder, is_static=not vocabulary.marks)
    (folder / GRAPH).write_bytes(graph)
    write_json(folder / SETTINGS, settings)
    if key not in _LAST:
        GraphEncoder.load(folder, encoder.config).compare(encoder)
        _LAST.clear()
        _LAST[key] = graph


_LAST: dict[str, bytes] = {}
"""{digest of an encoder: its graph} of the one that was saved last; the same encoder is saved into the same files."""


def _exported(model: Any, folder: Path, *, is_static: bool) -> bytes:
    """Return the graph of a model, whose tables are those of the safetensors files in a folder."""
    import onnx

    if model.device.type != "cpu" or any(isinstance(module, PackedLinear) for module in model.modules()):
        model = copy.deepcopy(model).cpu()
        for module in model.modules():
            if isinstance(module, PackedLinear):
                module.packed = None  # which no graph has
    if is_static:
        inputs = {"input_ids": torch.tensor([[1, 2], [1, 0]]), "attention_mask": torch.tensor([[1, 1], [1, 0]])}
    else:
        inputs = {name: value for name, value in model.preprocess(list(TEXTS)).items() if isinstance(value, Tensor)}
    if others := inputs.keys() - {*INPUTS}:
        raise ValueError(f"it reads {', '.join(sorted(others))}")
    reader, file = _Reads(model, [*inputs], is_static=is_static), io.BytesIO()
    outputs, several = ["states", "vectors"], {0: "n", 1: "length"}
    with LOADING, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            reader, tuple(inputs.values()), cast(Any, file), dynamo=False, export_params=False, do_constant_folding=False,
            opset_version=_OPSET, input_names=[*inputs], output_names=outputs,
            dynamic_axes={**dict.fromkeys([*inputs, "states"], several), "vectors": {0: "n"}},
        )  # fmt: skip
    graph = onnx.load_model_from_string(file.getvalue())
    tables = chain(reader.named_parameters(remove_duplicate=False), reader.named_buffers(remove_duplicate=False))
    _bind(graph.graph, {name: table for name, table in tables if name not in inputs}, folder)
    return bytes(graph.SerializeToString())


def _bind(graph: Any, tables: Mapping[str, Tensor], folder: Path) -> None:
    """Give the inputs of a graph that are tables their values: where they stand in the files of a folder, or the numbers."""
    from onnx import TensorProto, helper, numpy_helper

    stored, casts, room = _stored(folder), list[Any](), _INLINE
    for entry in [entry for entry in graph.input if entry.name in tables]:
        graph.input.remove(entry)
        table = tables[entry.name].detach()
        place = next(((kind, *at) for kind, at in _places(table, stored)), None)
        if place is None:
            room -= table.nbytes
            if room < 0:
                raise ValueError(f"no file of it holds {entry.name}")
            graph.initializer.append(numpy_helper.from_array(table.numpy(), entry.name))
            continue
        kind, path, offset, length = place
        tensor = TensorProto(name=entry.name, data_type=getattr(TensorProto, _TYPES[kind][0]), dims=table.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", path), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        if table.dtype != _TYPES[kind][1]:
            tensor.name = f"{entry.name}.stored"
            casts.append(helper.make_node("Cast", [tensor.name], [entry.name], to=TensorProto.FLOAT))
        graph.initializer.append(tensor)
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


_Key: TypeAlias = tuple[str, tuple[int, ...], bytes]
_Place: TypeAlias = tuple[str, int, int]


def _stored(folder: Path) -> dict[_Key, _Place]:
    """Return {(type, shape, sha256): (file, first byte, bytes)} of the tables in the safetensors files of a folder."""
    places: dict[_Key, _Place] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        data, (header, start) = np.memmap(path, dtype=np.uint8, mode="r"), tensor_header(path)
        for entry in header.values():
            if entry["dtype"] in _TYPES:
                first, last = (start + end for end in entry["data_offsets"])
                key = entry["dtype"], tuple(entry["shape"]), hashlib.sha256(data[first:last].tobytes()).digest()
                places.setdefault(key, (path.relative_to(folder).as_posix(), first, last - first))
    return places


def _places(table: Tensor, stored: Mapping[_Key, _Place]) -> Iterator[tuple[str, _Place]]:
    """Yield the types in which a table is stored, and where."""
    shape = tuple(table.shape)
    for kind in {key[0] for key in stored if key[1] == shape}:
        typed = table.to(_TYPES[kind][1]).contiguous()
        if torch.equal(typed.to(table.dtype), table):
            data = typed.flatten().view(torch.uint8).numpy().tobytes()
            if place := stored.get((kind, shape, hashlib.sha256(data).digest())):
                yield kind, place
