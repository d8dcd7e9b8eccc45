"""The stage that makes docids: its inputs beside the documents, and its output."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.models import is_local
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.clustering import assemble
from dsi.docids.data.collection import Collection
from dsi.docids.data.tables import as_table
from dsi.docids.extensions import SCHEMES, package_of
from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.files.reading import sha256
from dsi.docids.schemes import FILE, Docids, DocidsConfig, SchemeInput
from dsi.docids.schemes.file import read_docids, write_docids
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.tree import DocidTree, piece_cost
from dsi.docids.vectors import BLOCK, VectorsConfig
from dsi.store.folder.writing import save_docids

logger = logging.getLogger(__name__)


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of a model."""
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=is_local(name))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise FileNotFoundError(
            f"generator.decoder {name!r} has no tokenizer for docids ({reason}); name a folder or a T5 checkpoint on the Hub."
        ) from None


def scheme_input(
    collection: Collection, encoder: TextEncoder, config: DocidsConfig, embeddings: NDArray[np.float32],
    processes: Processes = ALONE, *, checkpoint: str = "", seed: int = 0, pieces: DocumentTexts | None = None,
) -> SchemeInput:  # fmt: skip
    """Return what a scheme reads of documents or their pieces, with embeddings [N, dim]."""
    table = collection.documents
    pieces = pieces or DocumentTexts(encoder, table, config.most_pieces)
    several = len(pieces) > len(table) or (config.scheme == FILE and config.most_pieces > 1)
    doc_ids, titles = (_at(table[name], pieces.rows) if several else table[name] for name in ("doc_id", "title"))
    return SchemeInput(
        embeddings,
        config,
        doc_ids=doc_ids,
        titles=titles,
        texts=pieces if several else collection.full_texts(),
        rows=pieces.rows if several else None,
        tokenizer=load_tokenizer(checkpoint) if checkpoint else getattr(encoder, "tokenizer", None),
        seed=seed,
        processes=processes,
        progress=True,
    )


def _at(column: Sequence[str], rows: NDArray[np.integer]) -> list[str]:
    values = column[:]
    return [values[row] for row in rows]


def sources_digest(config: DocidsConfig, collection: Collection) -> str:
    """Return what docids are made of beside documents and settings, as digests, names and versions; "" if of nothing else."""
    if config.scheme != FILE:
        return package_of(SCHEMES, config.scheme)
    read_docids(Path(config.method), collection.documents["doc_id"])
    return sha256(Path(config.method))


def train_queries(collection: Collection, encoder: TextEncoder) -> dict[int, list[str]]:
    """Return {document row: its train queries as the encoder reads them}."""
    queries: dict[int, list[str]] = {}
    pairs = collection.pairs("train")
    texts = encoder.query_texts([collection.queries[query_id] for query_id, _ in pairs])
    for (_, row), text in zip(pairs, texts, strict=True):
        queries.setdefault(row, []).append(text)
    return queries


def _are_renumbered(paths: NDArray[np.integer], tree: DocidTree) -> bool:
    """Return whether the digits of a document differ from the numbers that the scheme gave it; compared by blocks."""
    starts = range(0, len(paths), BLOCK)
    blocks = ((paths[start : start + BLOCK], tree.positions[start : start + BLOCK]) for start in starts)
    return not all(np.array_equal(numbers, tree.paths(positions)[1]) for numbers, positions in blocks)


def save_docids_stage(
    docids: Docids, embeddings: NDArray[np.float32], documents: datasets.Dataset, folder: Path, vectors: VectorsConfig,
    pieces: int = 1, spans: NDArray[np.int32] | None = None, tokens: TokenVectors | None = None, *,
    text_megabytes: int = 0,
) -> None:  # fmt: skip
    """Write the tree of docids with the document table, and `docids.tsv` if the digits are other numbers.

    Embeddings [N, dim], tokens and spans [N, 2] (the characters of each) are of documents, or of their pieces.
    """
    if len(first := docids.paths[:, 0]) > 1 and first.min() == first.max():
        logger.warning(
            "All docids begin with %d, so their first digit separates nothing; check docids.method.", first[0]
        )
    tree = assemble(docids, embeddings, tokens, spans)
    if pieces > 1:
        tree = replace(tree, pieces=pieces, piece_cost=piece_cost(tree.embeddings, tree.centroids[0]))
    tree = tree.stored_as(vectors)
    table = as_table(documents)
    if not text_megabytes:
        table = table.select([name for name in table.column_names if name != "text"])
    if "text" in table.column_names and (size := table["text"].nbytes / 1e6) > text_megabytes:
        logger.warning(
            "The documents' texts take %.0f MB, more than text_megabytes = %d: the index keeps titles only.",
            size, text_megabytes,
        )  # fmt: skip
        table = table.drop_columns("text")
    save_docids(tree, table, folder)
    rows = np.arange(tree.num_rows) if docids.rows is None else docids.rows
    if docids.rows is not None or _are_renumbered(docids.paths, tree):
        doc_ids = documents["doc_id"][:]
        write_docids(folder / "docids.tsv", [doc_ids[row] for row in rows], docids.paths)
