"""The document table of an index on disk, and whether the parts of an index fit each other. Knows nothing of manifests."""

import struct
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch

from contrastive.encoder import Encoder
from docids.files.untrusted import check_file, reading
from docids.tree import DocidTree
from dsi.generator.base import Generator


def load_documents(path: Path) -> datasets.Dataset:
    """Return the document table in a file; it stays on disk.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated or altered, no column doc_id or title, or columns that a document table does not have.
    """
    check_file(path)
    with reading(path), pa.memory_map(str(path)) as source:
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
                raise ValueError("it is compressed")  # and could be of any size
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        _check_schema(reader.schema)
        for batch in reader:
            batch.validate(full=True)  # Arrow follows the offsets in a file without looking
        return datasets.Dataset.from_file(str(path))


def _is_compressed(message: bytes) -> bool:
    """True if the metadata of a record batch, a flatbuffer, has an entry for its compression."""

    def field(table: int, number: int) -> int:
        (back,) = struct.unpack_from("<i", message, table)
        size, places = struct.unpack_from("<H", message, table - back)[0], table - back + 4 + 2 * number
        return table + struct.unpack_from("<H", message, places)[0] if 4 + 2 * number < size else table

    (root,) = struct.unpack_from("<I", message)
    header = field(root, 2)
    batch = header + struct.unpack_from("<I", message, header)[0]
    return field(batch, 3) != batch


def _check_schema(schema: pa.Schema) -> None:
    """Raise ValueError unless a table has doc_id and title, and columns that are read as they are."""
    if len(set(schema.names)) != len(schema):
        raise ValueError("a column occurs twice")
    for name in ("doc_id", "title"):
        if name not in schema.names or not _is_text(schema.field(name).type):
            raise ValueError(f"it has no column {name} of texts")
    features = datasets.Features.from_arrow_schema(schema)
    for field in schema:
        if not (_is_plain(field.type) and _is_undecoded(features.get(field.name))):
            raise ValueError(f"column {field.name!r} has a type that metadata cannot have")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """True for texts, bytes, numbers, times, and lists and structs of them."""
    if pa.types.is_struct(kind):
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    types = pa.types
    others = (types.is_primitive, types.is_null, types.is_decimal, types.is_binary, types.is_large_binary)
    return _is_text(kind) or any(is_type(kind) for is_type in others)


def _is_undecoded(feature: Any) -> bool:
    """True unless `datasets` would open a file for a value, as it does for an image or a sound."""
    if isinstance(feature, dict):
        return all(map(_is_undecoded, feature.values()))
    if isinstance(feature, datasets.List | datasets.LargeList):
        return _is_undecoded(feature.feature)
    return type(feature).__name__ in ("Value", "ClassLabel", "Json")


def check_fit(folder: Path, encoder: Encoder, tree: DocidTree, generator: Generator) -> None:
    """Raise ValueError unless encoder and generator answer for the docids.

    Args:
        folder: of the index, for messages.
        encoder: must give finite embeddings and states of the width that it says.
        tree: the docids.
        generator: must know every docid that it was trained with.
    """
    _check_encoder(folder, encoder)
    if tree.tokens is not None and tree.tokens.head.shape[1] != encoder.state_dim:
        raise ValueError(
            f"{folder / 'docids'} and the encoder do not belong together: token vectors are made of states "
            f"{tree.tokens.head.shape[1]} wide, the encoder's are {encoder.state_dim}; restore the one that was replaced."
        )
    fan_out, digits = generator.config.fan_out, trained_fan_out(tree)
    if len(fan_out) != tree.depth or any(known < used for known, used in zip(fan_out, digits, strict=True)):
        raise ValueError(
            f"{folder / 'generator'} and the docids do not belong together: it knows {fan_out} digits by level, the docids "
            f"have {digits}; restore the one that was replaced."
        )


def _check_encoder(folder: Path, encoder: Encoder) -> None:
    with reading(folder / "encoder", torch.OutOfMemoryError):
        states, _, embeddings, _ = encoder.forward(["a"], "query")
        found = [states, embeddings, torch.from_numpy(encoder.encode(["a"], "document"))]
        sizes, expected = [own.shape[-1] for own in found], [encoder.state_dim, *[encoder.embedding_dim] * 2]
        if sizes != expected:
            raise ValueError(f"its states and embeddings are {sizes} wide, and should be {expected}")
        if not all(own.isfinite().all() for own in found):
            raise ValueError("it gives embeddings that are not finite")


def trained_fan_out(tree: DocidTree) -> list[int]:
    """Return how many digits the nodes of each level have that the generator was trained with."""
    nodes = np.flatnonzero(tree.trained[1:]) + 1
    digits = nodes - tree.first_child[tree.parents[nodes]]
    return [
        int(digits[own].max(initial=-1)) + 1
        for level in tree.levels
        for own in [(tree.parents[nodes] >= level.start) & (tree.parents[nodes] < level.stop)]
    ]
