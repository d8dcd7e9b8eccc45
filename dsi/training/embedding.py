"""Embeddings and token vectors of the documents of a run, made block by block. Knows nothing of docids."""

import dataclasses
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsi.config import LEXICAL_WEIGHT, Config
from dsi.contrastive.blocks import DocumentTexts, encode_blocks, encode_token_blocks, read_token_blocks
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.query_tokens import JudgedQueries, QueryExample, query_examples, train_query_head
from dsi.contrastive.tokens import TokenHead, tell_empty
from dsi.docids.data.collection import Collection
from dsi.docids.files.declarations import LARGEST
from dsi.docids.files.processes import Processes
from dsi.docids.files.storage import digest
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.words.bm25 import BM25

logger = logging.getLogger(__name__)


class DocumentVectors:
    """Vectors of the documents of a collection, or of their segments; what a killed run has made is used again.

    Args:
        config: of the run.
        collection: the documents.
        encoder: with the index's `token_model`, if it has one.
        folder: of the blocks.
        store: in which runs share them instead; None if they share nothing.
        processes: share the work.
    """

    def __init__(
        self,
        config: Config,
        collection: Collection,
        encoder: Encoder,
        folder: Path,
        store: Path | None,
        processes: Processes,
    ) -> None:
        self._config, self._collection, self._encoder, self._processes = config, collection, encoder, processes
        self._texts = DocumentTexts(encoder, collection.documents, config.docids.segments)
        self._tokens = config.has_token_vectors
        self._folder = store / "embeddings" / self._identity[:16] if store else folder

    @property
    def _identity(self) -> str:
        """Return a digest of all that the vectors depend on."""
        encoder, segments = self._encoder, self._config.docids.segments
        identity = [encoder.fingerprint, dataclasses.asdict(encoder.config), self._collection.digest]
        if segments > 1:
            identity.append(str(segments))
        if self._tokens:
            identity.append(dataclasses.asdict(self._config.tokens))
        if self._tokens and encoder.token_model:
            identity.append(encoder.token_model.fingerprint)
        return digest(identity)

    @cached_property
    def _head(self) -> TokenHead | None:
        """What makes token vectors; the same on all processes."""
        main = self._tokens and self._processes.is_main
        return self._processes.first(TokenHead.fit(self._encoder, self._texts, self._config.tokens) if main else None)

    def tell_cut(self) -> None:
        """Say how many documents the encoder does not read to their ends."""
        cut, sample = self._texts.count_cut()
        if cut:
            segments, limit = self._config.docids.segments, self._encoder.max_length
            read = min(self._config.encoder.document_length, limit or LARGEST)
            logger.warning(
                "%.0f %% of the documents are longer than the encoder reads of them (%s%d tokens); the rest is not embedded.",
                max(1.0, 100 * cut / sample), f"{segments} times " if segments > 1 else "", read,
            )  # fmt: skip

    def embeddings(self) -> NDArray[np.float32]:
        """Return the embeddings [n, dim], memory-mapped, and write what `tokens` reads; all processes call it."""
        head, model = self._head, self._encoder.token_model
        if head and model:
            whole = self._collection.full_texts() if self._config.docids.segments == 1 else self._texts
            encode_token_blocks(model, head, whole, self._folder, self._processes)
            head = None
        return encode_blocks(self._encoder, self._texts, "document", self._folder, self._processes, head)

    def tokens(self, embeddings: NDArray[np.float32]) -> TokenVectors | None:
        """Return the token vectors that came with the embeddings [n, dim], those of queries trained; None without any."""
        if self._head is None:
            return None
        codes = read_token_blocks(self._folder)
        tell_empty(codes)
        tokens = TokenVectors(self._head.matrix, self._head.bits, (codes,), np.arange(len(codes), dtype=np.int32))
        encoder, collection, config = self._encoder, self._collection, self._config
        if encoder.token_model or not config.tokens.epochs:
            return tokens
        if not collection.pairs("train"):
            return tokens
        rng, rows = np.random.default_rng(config.seed), self._texts.rows
        words = BM25(collection.documents["doc_id"], collection.full_texts(), language=config.lexical.language)
        train, dev = (
            examples_of_split(collection, split, encoder, embeddings, rows, words, rng) for split in ("train", "dev")
        )
        return train_query_head(tokens, train, dev, config.tokens.epochs, seed=config.seed)


def examples_of_split(
    collection: Collection,
    split: str,
    encoder: Encoder,
    embeddings: NDArray[np.float32],
    rows: NDArray[np.integer],
    words: BM25,
    rng: np.random.Generator,
) -> list[QueryExample]:
    """Return examples of a split's queries; their hard negatives are the best documents by dense + BM25.

    Args:
        collection: queries, judgements and documents.
        split: of the queries.
        encoder: of the queries.
        embeddings: [n, embedding_dim] of the documents or their segments.
        rows: [n] row of the document table of each, ascending.
        words: BM25 of the documents.
        rng: draws the queries.
    """

    def score(texts: Sequence[str], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        return queries @ embeddings.T + LEXICAL_WEIGHT * words.scores(texts)[:, rows]

    judged = JudgedQueries.from_pairs(collection.pairs(split), collection.queries, encoder)
    return query_examples(encoder, judged, embeddings, rows, score, rng)
