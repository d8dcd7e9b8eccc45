"""Learned sparse retrieval in place of BM25: vectors of weighted terms from a sentence-transformers SparseEncoder.

SPLADE also weighs words that a text does not contain; an inference-free model weighs a query's words by a table and needs no
transformer in search. Either way a score is a dot product of sparse vectors, as BM25's is. `build_lexical` and `load_lexical`
return the kind of lexical part, BM25 or this one, that a configuration or a folder holds. Knows nothing of trees.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder
from sentence_transformers.util import load_file_path

from dsi.contrastive.devices import check_device
from dsi.contrastive.encoder import PLURALS, quiet_transformers
from dsi.contrastive.models import check_inputs, write_model
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import catching_panics
from dsi.docids.files.storage import save_tensors
from dsi.docids.types import Floats, Ints
from dsi.docids.words.bm25 import BM25, BM25_MODEL, Lexical, LexicalConfig
from dsi.docids.words.postings import Postings, lists_problem, postings_arrays, read_postings
from dsi.docids.words.term_scores import Terms, TermScorer

_BLOCK = 256
"""Texts whose vectors are dense in memory at a time: 30 MB with BERT's vocabulary."""
_MODEL, _VECTORS = "model", "vectors.safetensors"


class SparseModel:
    """A SparseEncoder that several threads may use.

    Args:
        encoder: the model.
    """

    def __init__(self, encoder: SparseEncoder) -> None:
        self.encoder = encoder.eval()
        self._encoding = threading.Lock()  # a call sets the tokenizer's padding and truncation

    @classmethod
    def load(cls, name: str, device: str | None = None, *, local_files_only: bool = False) -> "SparseModel":
        """Load a model that a user names: on the Hub, unless `local_files_only`, or a folder.

        Raises:
            FileNotFoundError: the model does not exist.
            ValueError: its vectors are dense, or compared by something other than the dot product.
        """
        check_device(device)
        remedy = "give the Hub name or the folder of a sentence-transformers SparseEncoder such as SPLADE"
        try:
            encoder = SparseEncoder(name, device=device, local_files_only=local_files_only, trust_remote_code=False)
        except OSError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise FileNotFoundError(f"The sparse encoder {name!r} cannot be loaded ({reason}); {remedy}.") from None
        try:
            check_inputs(encoder)
        except ValueError as error:
            raise ValueError(f"The sparse encoder {name!r} cannot be used, because {error}.") from None
        if _is_dense(encoder, name):
            raise ValueError(f"{name!r} gives dense vectors; {remedy}.")
        if (similarity := encoder.similarity_fn_name) != "dot":
            raise ValueError(f"{name!r} compares vectors by {similarity}, and must by their dot product; {remedy}.")
        return cls(encoder)

    def encode(self, texts: Sequence[str], kind: str, *, progress: bool = False) -> sparse.csr_array:
        """Return [texts, terms] sparse vectors.

        Args:
            texts: whole texts; the model truncates them to its input length.
            kind: "document" or "query".
            progress: show a progress bar.

        Raises:
            ValueError: a document's term has a weight below 0.
        """
        encode = {"document": self.encoder.encode_document, "query": self.encoder.encode_query}[kind]
        blocks = []
        with Bar(f"sparse vectors of {PLURALS[kind]}", unit="text", total=len(texts), enabled=progress) as bar:
            for start in range(0, len(texts), _BLOCK):
                block = list(texts[start : start + _BLOCK])
                with self._encoding, catching_panics():
                    dense = encode(block, convert_to_sparse_tensor=False, save_to_cpu=True, show_progress_bar=False)
                if kind == "document" and dense.min() < 0:
                    raise ValueError(
                        "A sparse encoder must give terms weights of at least 0, got one below; use another."
                    )
                blocks.append(sparse.csr_array(dense.float().numpy()))  # [block, terms]
                bar.update(len(block))
        return sparse.vstack(blocks, format="csr")

    def save(self, folder: Path) -> None:
        """Write a plain sentence-transformers folder; the same model gives the same files."""
        with self._encoding:
            write_model(self.encoder, folder)


@dataclass(frozen=True, eq=False)
class SparseIndex(Lexical):
    """The documents' sparse vectors as posting lists, and the model that makes them.

    Attributes:
        doc_ids: key of each document.
        model: encodes queries and new documents.
        postings: weights, by term.
    """

    name: ClassVar[str] = "learned sparse"

    doc_ids: Sequence[str]
    model: SparseModel
    postings: Postings

    @classmethod
    def from_texts(
        cls, doc_ids: Sequence[str], texts: Sequence[str], model: SparseModel, *, progress: bool = False
    ) -> "SparseIndex":
        """Encode documents and return their index."""
        return cls(doc_ids, model, Postings.from_lists(model.encode(texts, "document", progress=progress).T.tocsr()))

    @cached_property
    def scorer(self) -> TermScorer:
        """The documents' terms and their weights."""
        return TermScorer(self.postings)

    @cached_property
    def lengths(self) -> Ints:
        """[documents] number of terms with a weight."""
        return np.bincount(self.postings.merge().indices, minlength=self.postings.num_documents).astype(np.int32)

    def query_terms(self, queries: Sequence[str]) -> list[Terms]:
        """Return the vectors of queries."""
        vectors = self.model.encode(queries, "query") if len(queries) else sparse.csr_array((0, 1), dtype=np.float32)
        rows = [slice(*ends) for ends in pairwise(vectors.indptr.tolist())]
        pairs = ((vectors.indices[row].astype(np.int64), vectors.data[row]) for row in rows)
        return [Terms(own, by, float((np.maximum(by, 0) * self._peaks[own]).sum())) for own, by in pairs]

    @cached_property
    def _peaks(self) -> Floats:
        """[terms] the highest weight of each among the documents."""
        return np.asarray(self.postings.merge().max(axis=1).toarray(), dtype=np.float32).ravel()

    def term_names(self, query: str) -> list[str]:
        """Return the tokens of a query's vector, without the marks of a tokenizer."""
        (terms,) = self.query_terms([query])
        tokens = self.model.encoder.tokenizer.convert_ids_to_tokens(terms.numbers.tolist())
        return [token.strip("\u2581\u0120").lower() for token in tokens]

    def update(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "SparseIndex":
        """Return the index without some documents and with new ones, as `Lexical.update` says; only new ones are encoded."""
        terms = len(self.postings.frequencies)
        new = self.model.encode(texts, "document").T.tocsr() if len(texts) else sparse.csr_array((terms, 0))
        return SparseIndex(doc_ids, self.model, self.postings.update(removed, new))

    def save(self, folder: Path) -> None:
        """Write the vectors, and the model as a sentence-transformers folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder / _MODEL)
        save_tensors(postings_arrays(self.postings), folder / _VECTORS)

    @classmethod
    def load(cls, folder: Path, doc_ids: Sequence[str], device: str | None = None) -> "SparseIndex":
        """Return what `save` wrote, the vectors memory-mapped.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: it covers another number of documents, or a file was altered.
        """
        with quiet_transformers():
            model = SparseModel.load(str(folder / _MODEL), device, local_files_only=True)
        return cls(doc_ids, model, read_postings(folder / _VECTORS, len(doc_ids))[0])

    def problem(self) -> str:
        """Return what is wrong with the lists of terms, or with the width of the model's vectors, or an empty string."""
        lists = self.postings.merge()
        if self.model.encode(["x"], "query").shape[1] != lists.shape[0]:
            return f"the vectors of the model do not have {lists.shape[0]} terms"
        return lists_problem(lists)


def build_lexical(
    config: LexicalConfig, doc_ids: Sequence[str], texts: Sequence[str], device: str | None = None
) -> Lexical:
    """Build the lexical part of an index of documents."""
    if config.model == BM25_MODEL:
        return BM25(doc_ids, texts, language=config.language)
    return SparseIndex.from_texts(doc_ids, texts, SparseModel.load(config.model, device), progress=True)


def load_lexical(folder: Path, doc_ids: Sequence[str], device: str | None = None) -> Lexical | None:
    """Load the lexical part from a folder; None if the folder is missing.

    Raises:
        ValueError: it covers another number of documents.
    """
    if not folder.exists():
        return None
    return SparseIndex.load(folder, doc_ids, device) if (folder / _MODEL).exists() else BM25.load(folder, doc_ids)


def _is_dense(encoder: SparseEncoder, name: str) -> bool:
    """True if sentence-transformers put an untrained sparse layer on top of a dense model."""
    if not any(isinstance(module, SparseAutoEncoder) for module in encoder.modules()):
        return False
    listed = load_file_path(name, "modules.json")
    return listed is None or SparseAutoEncoder.__name__ not in Path(listed).read_text(encoding="utf-8")
