"""What rerankers work on (`Candidates`), and what a reranker is (`Reranker`).

A reranker computes new scores for the candidates of each query, which decide their order. Rerankers are applied one after
another. They are saved beside the index and bound to it; nothing is ever unpickled. Knows nothing of searching.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dsi.docids import extensions
from dsi.docids.files.checks import shown
from dsi.docids.files.reading import DATA, RESTORE, check_folder, read_json, reading
from dsi.docids.files.storage import recover_folder, replace_folder, write_json
from dsi.docids.types import Bools, Ints, Reals
from dsi.search.hits import Hit, Hits

Features = Callable[..., tuple[NDArray[np.float32], tuple[str, ...]]]
"""Computes features [queries, k, features], 0 at padding, and their names, given the engine that searched, the encoded queries,
the result, and the titles of the answers."""
R = TypeVar("R", bound="Reranker")
T = TypeVar("T")

_FILE = "reranker.json"
_OURS = {"cross-encoder": "dsi.rerankers.cross_encoder", "pyversity": "dsi.rerankers.diversity"}
"""{kind in reranker.json: module that defines it}; other packages add kinds as entry points."""
_classes: dict[str, type["Reranker"]] = {}
"""{kind: class} of the rerankers whose modules are imported."""


@dataclass(frozen=True, eq=False, repr=False)
class Candidates:
    """The results of n queries, k documents each, best first; shorter lists are padded to k.

    Attributes:
        queries: their texts.
        doc_ids: of the candidates; fewer than k where the collection has no more.
        titles: of the candidates.
        scores: [n, k] of the search, or of the last reranker; -inf at padding.
        digits: [n, k, depth] docids, -1 past the end of one.
        query_embeddings: [n, dim].
        embeddings: [n, k, dim] of the documents; 0 at padding.
        features: [n, k, features] float32; 0 at padding.
        names: of the features; empty for candidates made without features.
        query_ids: of the queries; "0", "1", … by default.
        exact: [n] True where no other k documents scored better before reranking; False by default.
        texts_of: reads the texts of documents by doc_id, without titles; None if the index keeps no texts.
        metadata_of: reads the metadata of documents by doc_id; None if they have none.
        spans: [n, k, 2] characters start to end of the best piece of each text, 0 for one piece; None if all are.

    Raises:
        ValueError: not one query_id and one `exact` a query.
    """

    queries: Sequence[str]
    doc_ids: Sequence[Sequence[str]]
    titles: Sequence[Sequence[str]]
    scores: Reals
    digits: Ints
    query_embeddings: Reals
    embeddings: Reals
    features: Reals
    names: tuple[str, ...] = ()
    query_ids: Sequence[str] = ()
    exact: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    texts_of: Callable[[Sequence[str]], Sequence[str]] | None = None
    metadata_of: Callable[[Sequence[str]], Sequence[Mapping[str, Any]]] | None = None
    spans: Ints | None = None

    def __post_init__(self) -> None:
        n = len(self.queries)
        if not len(self.query_ids):
            object.__setattr__(self, "query_ids", [str(number) for number in range(n)])
        if not len(self.exact):
            object.__setattr__(self, "exact", np.zeros(n, dtype=bool))
        if len(self.query_ids) != n or self.exact.shape != (n,):
            raise ValueError(
                f"Candidates of {n} queries need {n} query_ids and exact of shape [{n}], "
                f"got {len(self.query_ids)} and {list(self.exact.shape)}."
            )

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        n, k = self.scores.shape
        return f"Candidates({n} queries, up to {k} documents each, {len(self.names)} features)"

    @property
    def valid(self) -> Bools:
        """[n, k] True at candidates, False at padding."""
        return np.asarray(self.scores > -np.inf)

    def hits(self) -> list[Hits]:
        """Return the candidates of each query as hits, best first."""
        texts = self._stored(self.texts_of) if self.texts_of else [[None] * len(doc_ids) for doc_ids in self.doc_ids]
        metadata = self._stored(self.metadata_of) if self.metadata_of else [[{}] * len(ids) for ids in self.doc_ids]
        answers = []
        for row, exact in enumerate(self.exact.tolist()):
            docids = (tuple(digit for digit in path if digit >= 0) for path in self.digits[row].tolist())
            spans = self._spans[row].tolist()
            passages = [(start, end) if end else None for start, end in spans]
            columns = self.scores[row].tolist(), self.doc_ids[row], self.titles[row], docids, texts[row], metadata[row]
            hits = [Hit(*fields) for fields in zip(count(1), *columns, passages, strict=False)]
            answers.append(Hits(hits, exact, self.queries[row]))
        return answers

    @property
    def _spans(self) -> Ints:
        return np.zeros((*self.scores.shape, 2), dtype=np.int32) if self.spans is None else self.spans

    def as_run(self) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}}, which `eval` measures and TREC tools read."""
        lists = zip(self.query_ids, self.doc_ids, self.scores.tolist(), strict=True)
        return {query_id: dict(zip(doc_ids, scores, strict=False)) for query_id, doc_ids, scores in lists}

    def columns(self, names: Sequence[str]) -> Reals:
        """Return some of the features, [n, k, len(names)].

        Raises:
            ValueError: a feature that these candidates do not have.
        """
        missing = [name for name in names if name not in self.names]
        if missing and not self.names:
            raise ValueError(
                f"The reranker reads the feature {missing[0]!r}, but these candidates were made without features; make them "
                "with retriever.candidates(…, features=reranker.features)."
            )
        if missing:
            raise ValueError(
                f"These candidates have no feature {missing[0]!r} (they have {', '.join(self.names)}); train the reranker "
                "again on this index, or apply the reranker that adds the feature first."
            )
        return self.features[:, :, [self.names.index(name) for name in names]]

    def texts(self) -> list[list[str]]:
        """Return title and text of the candidates; each document is read once, at this call.

        Raises:
            ValueError: the index keeps no texts.
        """
        if self.texts_of is None:
            raise ValueError(
                "The reranker reads the documents' texts, but this index keeps titles only; put the texts into it with "
                "`dsi update RUN --texts DIR`, or retriever.keep_texts(collection.documents)."
            )
        pairs = zip(self.titles, self._stored(self.texts_of), strict=True)
        return [[f"{title} {text}".strip() for title, text in zip(*pair, strict=True)] for pair in pairs]

    def _stored(self, values_of: Callable[[Sequence[str]], Sequence[T]]) -> list[list[T]]:
        """Return what the index keeps of the candidates; each document is read once."""
        unique = sorted({doc_id for doc_ids in self.doc_ids for doc_id in doc_ids})
        values = dict(zip(unique, values_of(unique), strict=True))
        return [[values[doc_id] for doc_id in doc_ids] for doc_ids in self.doc_ids]

    def select(self, rows: Ints) -> "Candidates":
        """Return the candidates of some of the queries."""

        def pick(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows.tolist()]

        return replace(
            self,
            queries=pick(self.queries),
            doc_ids=pick(self.doc_ids),
            titles=pick(self.titles),
            scores=self.scores[rows],
            digits=self.digits[rows],
            query_embeddings=self.query_embeddings[rows],
            embeddings=self.embeddings[rows],
            features=self.features[rows],
            query_ids=pick(self.query_ids),
            exact=self.exact[rows],
            spans=self._spans[rows],
        )

    def with_feature(self, name: str, values: Reals) -> "Candidates":
        """Return the candidates with one more feature [n, k], for the rerankers that follow."""
        values = np.where(self.valid, values, 0.0).astype(np.float32)
        features = np.concatenate([self.features, values[:, :, None]], axis=2)
        return replace(self, features=features, names=(*self.names, name))

    def order(self, scores: Reals) -> Ints:
        """Return the columns [n, k] by descending new score; ties keep their order, and padding stays at the end."""
        if not isinstance(scores, np.ndarray) or scores.shape != self.scores.shape:
            got = f"shape {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
            raise ValueError(f"A reranker must give an array of scores of shape {self.scores.shape}, got {got}.")
        if np.isnan(scores, where=self.valid, out=np.zeros(scores.shape, dtype=bool)).any():
            raise ValueError("A reranker must give scores that are numbers, got NaN.")
        return np.argsort(-np.where(self.valid, scores, -np.inf), axis=1, kind="stable")

    def reorder(self, scores: Reals) -> "Candidates":
        """Return the candidates in the order of new scores [n, k]."""
        order = self.order(scores)
        scores = np.where(self.valid, scores, -np.inf)

        def arrange(values: NDArray[Any]) -> NDArray[Any]:
            index = order.reshape(order.shape + (1,) * (values.ndim - 2))
            return np.take_along_axis(values, index, axis=1)

        def lists(values: Sequence[Sequence[str]]) -> list[list[str]]:
            return [
                [items[n] for n in row if n < len(items)] for row, items in zip(order.tolist(), values, strict=True)
            ]

        return replace(
            self,
            doc_ids=lists(self.doc_ids),
            titles=lists(self.titles),
            scores=arrange(scores),
            digits=arrange(self.digits),
            embeddings=arrange(self.embeddings),
            features=arrange(self.features),
            spans=arrange(self._spans),
        )


class Reranker(ABC):
    """Computes new scores for candidates.

    A subclass has a `kind` and defines `score`; one with state on disk also defines `write`, and `read` where its constructor
    does not take what `write` returned.

        class ShortTitles(Reranker):
            kind = "short titles"

            def score(self, candidates):
                scores = np.zeros(candidates.scores.shape)
                for row, titles in enumerate(candidates.titles):
                    scores[row, : len(titles)] = [-len(title) for title in titles]
                return scores

    Attributes:
        kind: its name in reranker.json.
        features: computes the features that `score` reads; None if it reads none.
    """

    kind: ClassVar[str]
    features: ClassVar[Features | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            _classes[cls.kind] = cls

    @abstractmethod
    def score(self, candidates: Candidates) -> Reals:
        """Return new scores [n, k]; higher is better, and values at padding do not matter."""

    def rerank(self, candidates: Candidates) -> Candidates:
        """Return the candidates in their new order."""
        return candidates.reorder(self.score(candidates))

    def to(self: R, device: str | None) -> R:
        """Move a reranker that runs a model to a device ("cpu", "cuda", …), and return it; None changes nothing."""
        return self

    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights into `folder`, and return the settings for reranker.json; by default there are none."""
        return {}

    @classmethod
    def read(cls: type[R], folder: Path, settings: dict[str, Any]) -> R:
        """Load what `write` wrote; by default the settings are the constructor's arguments."""
        return cls(**settings)

    def save(self, folder: Path, binding: Mapping[str, Any] | None = None) -> None:
        """Write the reranker in one step.

        Args:
            folder: RUN/rerank/NAME.
            binding: what it was trained for, compared when it is loaded.

        Raises:
            TypeError: the class has no `kind`, or attributes that `write` does not keep.
        """
        if not hasattr(self, "kind"):
            raise TypeError(
                f"{type(self).__name__} needs a kind, the name by which it is loaded; add `kind = …` to the class."
            )
        if vars(self) and type(self).write is Reranker.write:
            raise TypeError(
                f"{type(self).__name__} has the attributes {', '.join(vars(self))} and would be loaded without them; define "
                "`write`, which returns the constructor's arguments."
            )
        with replace_folder(folder) as partial:
            record = {"kind": self.kind, "for": dict(binding or {}), "settings": self.write(partial)}
            if package := extensions.package_of(extensions.RERANKERS, self.kind):
                record["package"] = package
            write_json(partial / _FILE, record)


def load_reranker(folder: Path, binding: Mapping[str, Any] | None = None) -> Reranker:
    """Return a saved reranker.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its kind is unknown, it was trained for another index, or a file of it was altered.
    """
    recover_folder(folder)
    path = folder / _FILE
    if folder.is_symlink() or folder.parent.is_symlink():
        raise ValueError(f"{folder} must be a folder, and is a link or lies below one; {RESTORE}.")
    if not path.exists():
        others = sorted(other.name for other in folder.parent.glob("[!.]*") if (other / _FILE).exists())
        remedy = f"there are {', '.join(others)}" if others else "train one: dsi train-reranker"
        raise FileNotFoundError(f"{folder} holds no reranker; {remedy}.")
    check_folder(folder, (*DATA, ".txt"))  # trees of LightGBM
    record = read_json(path)
    if (type(record.get("kind")), type(record.get("for")), type(record.get("settings"))) != (str, dict, dict):
        raise ValueError(f"{path} must have kind, for and settings; {RESTORE}.")
    for name, value in (binding or {}).items():
        if record["for"].get(name) != value:
            raise ValueError(f"{folder} was trained for another index: its {name} is not this one's; train it again.")
    try:
        found = reranker_class(record["kind"], str(record.get("package", "")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    with reading(folder, ImportError):  # some kinds need an extra
        return found.read(folder, record["settings"])


def reranker_class(kind: str, package: str = "") -> type[Reranker]:
    """Return the class of a kind of rerankers.

    Args:
        kind: as in reranker.json.
        package: name and version of the package that it was saved with, for the message.

    Raises:
        ValueError: an unknown kind; the message names the package that adds it.
    """
    if kind not in _classes and kind in _OURS:
        importlib.import_module(_OURS[kind])
    if kind not in _classes:
        extensions.load_extension(extensions.RERANKERS, kind)
    if kind not in _classes:
        known = ", ".join(extensions.extension_names(extensions.RERANKERS, sorted({*_classes, *_OURS})))
        remedy = (
            f"install {shown(package)}, which adds it"
            if package
            else f"import the module that defines it; there are {known}"
        )
        raise ValueError(f"No reranker is of the kind {shown(kind)}; {remedy}.")
    return _classes[kind]
