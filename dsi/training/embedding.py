"""Embeddings and token vectors of the documents of a run, made block by block. Knows nothing of docids."""

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from dsi.config import Config
from dsi.contrastive.blocks import DocumentTexts, encode_blocks, read_token_blocks, warn_cut, warn_unread
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.query_tokens import JudgedQueries, QueryExample, query_examples, train_query_head
from dsi.contrastive.tokens import TokenHead
from dsi.docids.data.collection import Collection
from dsi.docids.files.processes import Processes
from dsi.docids.files.reading import map_tensors
from dsi.docids.files.storage import digest, write_tensors
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.types import Ints
from dsi.docids.words.bm25 import BM25
from dsi.search.request import LEXICAL_WEIGHT

logger = logging.getLogger(__name__)

_HASHED = 16_384
"""Documents in memory at a time while they are hashed."""

_MANY_PIECES = 5_000
"""From this many on, a line says how long fewer would take: these take some ten minutes on two cores."""


class DocumentVectors:
    """Vectors of the documents of a collection, or of their pieces; made once for an encoder and the texts it reads.

    Docids do not change them, so that other docids embed nothing again; a killed run continues where it stopped. Those of other
    texts or encoders in the folder `states` are removed. `given`: [documents, dim] embeddings that take the place of the
    encoder's.
    """

    def __init__(
        self, config: Config, collection: Collection, encoder: Encoder, states: Path, processes: Processes, *,
        given: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self._config, self._collection, self._encoder, self._processes = config, collection, encoder, processes
        self.texts, self._given = DocumentTexts(encoder, collection.documents, config.docids.most_pieces), given
        if given is not None:
            _check_given(given, len(collection.documents), encoder)
        self._tokens = config.has_token_vectors
        tokens = [config.tokens.dim, config.tokens.bits] if self._tokens else []
        sums = [] if given is None else [array_digest(given)]
        made_from = [encoder.fingerprint, dataclasses.asdict(encoder.config), config.docids.most_pieces, tokens, *sums]
        self.folder = states / f"documents-{digest([*made_from, documents_digest(collection.documents)])[:16]}"

    @cached_property
    def _head(self) -> TokenHead | None:
        """What makes token vectors; the same on all processes."""
        if not self._tokens:
            return None
        path = self.folder / "token_head.safetensors"
        if self._processes.is_main and not path.exists():
            TokenHead.fit(self._encoder, self.texts, self._config.tokens).save(path)
        self._processes.wait()
        return TokenHead.load(path, self._config.tokens.bits)

    def tell_cut(self) -> None:
        """Say how many documents the encoder does not read to their ends, or not at all."""
        documents, pieces = len(self._collection.documents), self._config.docids.most_pieces
        if self._given is None:
            warn_cut(self.texts.count_cut, documents, pieces, self._encoder)
            warn_unread(self._collection.full_texts(), self._encoder)

    def embeddings(self) -> NDArray[np.float32]:
        """Return the embeddings [n, dim], memory-mapped, and write what `tokens` reads; all processes call it."""
        if self._processes.is_main:
            remove_others(self.folder.parent, "documents", [self.folder])
        if self._given is not None:
            return np.ascontiguousarray(self._given, dtype=np.float32)
        return encode_blocks(self._encoder, self.texts, "document", self.folder, self._processes, self._head)

    def tokens(self, embeddings: NDArray[np.float32]) -> TokenVectors | None:
        """Return the token vectors that came with the embeddings [n, dim], those of queries trained; None without any."""
        if self._head is None:
            return None
        codes = read_token_blocks(self.folder)
        tokens = TokenVectors(self._head.matrix, self._head.bits, (codes,), np.arange(len(codes), dtype=np.int32))
        config, collection = self._config, self._collection
        if not config.tokens.epochs or not collection.pairs("train"):
            return tokens
        made_from = [collection.digest, config.tokens.epochs, config.seed, config.lexical.language]
        path = self.folder / f"queries-{digest(made_from)[:16]}.safetensors"
        if not path.exists():
            trained = self._train_queries(tokens, embeddings).query_head
            write_tensors(path, {"matrix": np.empty((0, 0), np.float32) if trained is None else trained})
        query_head = np.array(map_tensors(path)["matrix"])
        return dataclasses.replace(tokens, query_head=query_head) if query_head.size else tokens

    def _train_queries(self, tokens: TokenVectors, embeddings: NDArray[np.float32]) -> TokenVectors:
        """Return the token vectors with a matrix for queries that is trained on the train queries, as the dev queries allow."""
        collection, config = self._collection, self._config
        rng, rows = np.random.default_rng(config.seed), self.texts.rows
        words = BM25(collection.documents["doc_id"], collection.full_texts(), language=config.lexical.language)
        train, dev = (
            _examples_of_split(collection, split, self._encoder, embeddings, rows, words, rng)
            for split in ("train", "dev")
        )
        return train_query_head(tokens, train, dev, config.tokens.epochs, seed=config.seed)


def array_digest(array: NDArray[Any]) -> str:
    """Return the sha256 of the numbers of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _check_given(embeddings: NDArray[Any], documents: int, encoder: Encoder) -> None:
    """Raise ValueError unless embeddings can take the place of those that an encoder makes of documents."""
    expected = [documents, encoder.embedding_dim]
    if list(embeddings.shape) != expected or embeddings.dtype.kind not in "fiu":
        raise ValueError(
            f"embeddings must be numbers {expected}, one row a document, as wide as those of the encoder, which reads the "
            f"queries; got {embeddings.dtype} {list(embeddings.shape)}. Give the encoder that made them (encoder=…)."
        )


def pieces_line(counts: Ints) -> str:
    """Return how many pieces documents have [documents]; where they are many, also what fewer of each would take.

    >>> pieces_line(np.array([1, 3]))
    '2 documents in 4 pieces'
    """
    pieces, line = int(counts.sum()), f"{len(counts):,} documents in {counts.sum():,} pieces"
    if pieces < _MANY_PIECES or pieces < 2 * len(counts):
        return line
    fewer = [(most, int(np.minimum(counts, most).sum())) for most in (4, 1)]
    shown = [f"--pieces {most} embeds {few:,} ({few / pieces:.0%} of the time)" for most, few in fewer if few < pieces]
    return f"{line}; fewer of each are faster, and find less in long texts: {', '.join(shown)}"


def documents_digest(documents: datasets.Dataset) -> str:
    """Return the sha256 of the titles and texts of documents, in their order."""
    contents = hashlib.sha256()
    for start in range(0, len(documents), _HASHED):
        block = documents[start : start + _HASHED]
        contents.update(json.dumps([block["title"], block["text"]]).encode())
    return contents.hexdigest()


def remove_others(states: Path, kind: str, keep: Sequence[Path]) -> None:
    """Remove the folders of a kind ("documents", "queries", …) that are not kept: of other texts, or another encoder."""
    for folder in states.glob(f"{kind}-*"):
        if folder not in keep:
            shutil.rmtree(folder)


def _examples_of_split(
    collection: Collection, split: str, encoder: Encoder, embeddings: NDArray[np.float32], rows: NDArray[np.integer],
    words: BM25, rng: np.random.Generator,
) -> list[QueryExample]:  # fmt: skip
    """Return examples of a split's queries; hard negatives are the best of embeddings [n, dim] and `rows` by dense + BM25."""

    def score(texts: Sequence[str], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        return queries @ embeddings.T + LEXICAL_WEIGHT * words.shares(texts)[:, rows]

    judged = JudgedQueries.from_pairs(collection.pairs(split), collection.queries, encoder, collection.identical_rows)
    return query_examples(encoder, judged, embeddings, rows, score, rng)
