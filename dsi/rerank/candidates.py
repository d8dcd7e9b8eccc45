"""What the stages after the beam work on, and what a stage is.

A stage gives the candidates of each query new scores; their order follows. Stages are applied one after another, each to the
order the one before left. They are saved beside the index, bound to it, and nothing of them is ever unpickled.
"""

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from docids.storage import replace_folder, write_json

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]
S = TypeVar("S", bound="Stage")

KINDS: dict[str, type["Stage"]] = {}
"""{name on disk: stage}; a subclass of `Stage` with a `kind` joins by being defined."""
_HOMES = {
    "linear": "learned",
    "ranknet": "learned",
    "trees": "boosting",
    "pyversity": "diversity",
    "m2div": "m2div",
    "parser": "parse_ranker",
}
"""{kind: module of this room that defines it}, imported when a stage of it is loaded."""


@dataclass(frozen=True)
class Candidates:
    """The answers to n queries, k a query, best first.

    Attributes:
        queries: their texts.
        doc_ids: of the candidates; fewer than k where the collection has no more.
        titles: of the candidates.
        scores: [n, k] of the stage before; -inf past the end of a list.
        digits: [n, k, depth] docids, -1 past the end of one.
        query_embeddings: [n, dim].
        embeddings: [n, k, dim] of the documents; 0 past the end of a list.
        features: [n, k, features] float32, where a stage asked for them; 0 past the end of a list.
        names: of the features.
        places: [n, k] where each candidate stood in the answers of the search; as they stand by default.
    """

    queries: Sequence[str]
    doc_ids: Sequence[Sequence[str]]
    titles: Sequence[Sequence[str]]
    scores: Floats
    digits: Ints
    query_embeddings: Floats
    embeddings: Floats
    features: Floats
    names: tuple[str, ...] = ()
    places: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    def __post_init__(self) -> None:
        if self.places.shape != self.scores.shape:
            n, k = self.scores.shape
            object.__setattr__(self, "places", np.tile(np.arange(k), (n, 1)))

    @property
    def there(self) -> NDArray[np.bool_]:
        """[n, k] True at candidates, False past the end of a list."""
        return np.asarray(self.scores > -np.inf)

    def columns(self, names: Sequence[str]) -> Floats:
        """[n, k, len(names)] some of the features.

        Raises:
            ValueError: a feature that this index does not have.
        """
        missing = [name for name in names if name not in self.names]
        if missing:
            raise ValueError(
                f"This index gives no feature {missing[0]!r} (it gives {', '.join(self.names)}); train the stage again on it."
            )
        return self.features[:, :, [self.names.index(name) for name in names]]

    def select(self, rows: Ints) -> "Candidates":
        """The lists of some queries."""

        def of(own: Sequence[Any]) -> list[Any]:
            return [own[row] for row in rows.tolist()]

        return replace(
            self,
            queries=of(self.queries),
            doc_ids=of(self.doc_ids),
            titles=of(self.titles),
            scores=self.scores[rows],
            digits=self.digits[rows],
            query_embeddings=self.query_embeddings[rows],
            embeddings=self.embeddings[rows],
            features=self.features[rows],
            places=self.places[rows],
        )

    def with_feature(self, name: str, values: Floats) -> "Candidates":
        """With one more feature [n, k], for the stages that follow."""
        values = np.where(self.there, values, 0.0).astype(np.float32)
        features = np.concatenate([self.features, values[:, :, None]], axis=2)
        return replace(self, features=features, names=(*self.names, name))

    def order(self, scores: Floats) -> Ints:
        """[n, k] columns by descending new score, equal ones as they stand; what is past the end of a list stays there."""
        if scores.shape != self.scores.shape:
            raise ValueError(f"A stage must give scores of shape {self.scores.shape}, got {scores.shape}.")
        return np.argsort(-np.where(self.there, scores, -np.inf), axis=1, kind="stable")

    def reordered(self, scores: Floats) -> "Candidates":
        """The candidates by their new scores."""
        order = self.order(scores)
        scores = np.where(self.there, scores, -np.inf)

        def arrange(values: NDArray[Any]) -> NDArray[Any]:
            index = order.reshape(order.shape + (1,) * (values.ndim - 2))
            return np.take_along_axis(values, index, axis=1)

        def lists(own: Sequence[Sequence[str]]) -> list[list[str]]:
            return [[items[n] for n in row if n < len(items)] for row, items in zip(order.tolist(), own, strict=True)]

        return replace(
            self,
            doc_ids=lists(self.doc_ids),
            titles=lists(self.titles),
            scores=arrange(scores),
            digits=arrange(self.digits),
            embeddings=arrange(self.embeddings),
            features=arrange(self.features),
            places=arrange(self.places),
        )

    def as_run(self, query_ids: Sequence[str]) -> dict[str, dict[str, float]]:
        """{query_id: {doc_id: score}}."""
        lists = zip(query_ids, self.doc_ids, self.scores.tolist(), strict=True)
        return {query_id: dict(zip(own, scores, strict=False)) for query_id, own, scores in lists}


class Stage(ABC):
    """Gives candidates new scores; `save` writes it, `load` reads any kind."""

    kind: ClassVar[str]
    uses_features: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    @abstractmethod
    def rerank(self, candidates: Candidates) -> Floats:
        """[n, k] new scores; higher is better, what is past the end of a list does not matter."""

    def run(self, candidates: Candidates) -> Candidates:
        """The candidates in their new order."""
        return candidates.reordered(self.rerank(candidates))

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights into `folder`; returns settings as JSON has them."""

    @classmethod
    @abstractmethod
    def read(cls: type[S], folder: Path, settings: dict[str, Any]) -> S:
        """What `write` wrote."""

    def save(self, folder: Path, binding: Mapping[str, Any] | None = None) -> None:
        """Write the stage in one step.

        Args:
            folder: RUN/rerank/NAME.
            binding: what it was trained for, compared when it is loaded.
        """
        with replace_folder(folder) as partial:
            partial.mkdir(parents=True, exist_ok=True)
            settings = self.write(partial)
            write_json(partial / "stage.json", {"kind": self.kind, "for": dict(binding or {}), "settings": settings})


def load_stage(folder: Path, binding: Mapping[str, Any] | None = None) -> Stage:
    """A saved stage.

    Raises:
        FileNotFoundError: no stage there.
        ValueError: an unknown kind, or it was trained for another index.
    """
    path = folder / "stage.json"
    if not path.exists():
        others = sorted(other.name for other in folder.parent.glob("*") if (other / "stage.json").exists())
        raise FileNotFoundError(
            f"{folder} holds no stage; {'there are ' + ', '.join(others) if others else 'train one: dsi train-reranker'}."
        )
    record = json.loads(path.read_text(encoding="utf-8"))
    for name, value in (binding or {}).items():
        if record["for"].get(name) != value:
            raise ValueError(f"{folder} was trained for another index: its {name} is not this one's; train it again.")
    return stage_class(record["kind"]).read(folder, record["settings"])


def stage_class(kind: str) -> type[Stage]:
    """The class of stages of some kind.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS and kind in _HOMES:
        importlib.import_module(f"dsi.rerank.{_HOMES[kind]}")
    if kind not in KINDS:
        raise ValueError(
            f"There is no kind {kind!r} of stages; this version knows {', '.join(sorted({*KINDS, *_HOMES}))}."
        )
    return KINDS[kind]
