"""What a search is asked to do: the method, the weights of the scores, how wide it walks, which documents may be returned.

`SearchConfig` belongs to an index, `SearchOptions` are the keywords of one call, and `SearchRequest` combines the two,
checked; it is passed on through the search. Knows nothing of trees or models.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar, Union, get_type_hints

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import TypedDict

from docids.files.checks import at_least, one_of, plain_fields, shown

F = TypeVar("F", bound=Callable[..., Any])
Bools = NDArray[np.bool_]
Where: TypeAlias = Union[str, pc.Expression, NDArray[np.bool_]]  # noqa: UP007 (NDArray has no | on Python 3.10)
"""A filter: a condition ("lang = 'en' and year > 2000"), an Arrow expression, or [documents] True at those that may be
returned."""

METHODS = ("generate", "exact")
FUSIONS = ("paper", "bound")
LARGEST_EXTRA = 1e30
"""Bound of `extra_scores`: further ones could overflow float32."""
_LARGEST = 1e6
_WEIGHTS = ("lexical_weight", "token_weight", "query_map_weight")
_ALIASES = {
    "top_k": "k",
    "topk": "k",
    "num_results": "k",
    "n": "k",
    "limit": "k",
    "beam": "beam_width",
    "filter": "where",
}


@dataclass(frozen=True)
class SearchConfig:
    """How an index scores documents and how widely it searches (section `[search]`)."""

    method: str = "generate"
    """"generate" walks down the tree, and scores the documents below the last nodes and the best by words; "exact" scores all
    documents."""
    beam_width: int = 40
    """Nodes kept per level."""
    candidates: int = 100
    """How many documents the walk, the words and extra_scores each contribute."""
    alpha: float = 0.7
    """Weight of the generator in [0, 1], the rest being the encoder's (DR-SCL eq. 9); with tied tokens, in the scores of nodes
    alone."""
    beta: float = math.inf
    """Number of levels that use the encoder's scores; inf for all, 0 for the generator alone (DR-SCL eq. 12)."""
    lexical_weight: float = 0.0
    """Weight of BM25, or of learned sparse scores, in a document's score."""
    token_weight: float = 0.0
    """Weight of late interaction in a document's score; needs an index with token vectors."""
    query_map_weight: float = 0.0
    """With tied tokens: weight of the learned map of the query (section `[query_map]`) in a document's score."""
    fusion: str = "paper"
    """With (level, digit) or word tokens: "paper" adds log-probabilities along the path (DR-SCL eq. 10-12); "bound" adds the
    dense score of the best document below a node, which bounds it, so that answers come with a certificate."""
    ann_temperature: float = 1.0
    """With (level, digit) or word tokens: divides the dense scores; 1 in the paper, less for normalised embeddings."""

    def __post_init__(self) -> None:
        plain_fields(self)
        one_of(self, method=METHODS, fusion=FUSIONS)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1] (the generator's weight), got {self.alpha}.")
        if not self.beta >= 0:
            raise ValueError(f"beta must be 0 (generator alone) or more levels, or inf for all, got {self.beta}.")
        if not 1 / _LARGEST <= self.ann_temperature <= _LARGEST:  # beyond, scores could overflow float32
            raise ValueError(f"ann_temperature must be between 1e-6 and 1e6, got {self.ann_temperature}.")
        at_least(self, beam_width=1, candidates=1)
        for name in _WEIGHTS:
            if not 0 <= (value := getattr(self, name)) <= _LARGEST:
                raise ValueError(f"{name} must be between 0 (leave it out) and 1e6, got {value}.")


class SearchOptions(TypedDict, total=False):
    """The keywords of `search`, `explain`, `run`, `follow` and `candidates`; None keeps the index's setting."""

    method: str | None
    """As in `SearchConfig`, like the next five; they override the index's search config."""
    beam_width: int | None
    """As in `SearchConfig`."""
    candidates: int | None
    """As in `SearchConfig`; at least k."""
    alpha: float | None
    """As in `SearchConfig`."""
    lexical_weight: float | None
    """As in `SearchConfig`."""
    token_weight: float | None
    """As in `SearchConfig`."""
    allow: Collection[str] | None
    """The doc_ids that may be returned; all by default. Filters act inside the walk: k documents are returned whenever k are
    allowed, with the same scores as without a filter."""
    deny: Collection[str] | None
    """The doc_ids that must not be returned."""
    where: Where | None
    """A condition on the metadata: as in SQL ("lang = 'en' and year > 2000"; the grammar is that of `dsi.store.filters`), an
    Arrow expression (`pyarrow.compute.field("lang") == "en"`), or [documents] booleans."""
    extra_scores: NDArray[np.floating] | None
    """[queries, documents], in the order of the document table: any other score (recency, popularity, …), already
    weighted. It is added to a document's score; the best `candidates` by it are scored too."""


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """One search, its options checked: the record that is passed through the search.

    Attributes:
        k: documents per query.
        config: the index's search config, with the call's options applied.
        allowed: [places] True at the docid positions of documents that a filter lets through; None without a filter.
        extra_scores: as in `SearchOptions`.

    Raises:
        ValueError: k is below 1.
    """

    k: int
    config: SearchConfig
    allowed: Bools | None = None
    extra_scores: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        at_least(self, k=1)

    @property
    def pool(self) -> int:
        """How many documents each source of candidates gives."""
        return max(self.config.candidates, self.k)


OPTIONS = get_type_hints(SearchOptions)
_CONFIG_FIELDS = frozenset(field.name for field in fields(SearchConfig))


def given_options(call: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a call sets: those that are not None.

    Args:
        call: name of the public method, for messages.
        options: as the call received them.

    Raises:
        TypeError: an option does not exist; the message names the nearest one if there is one.
    """
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"{call}() has no option {shown(name)}{meant(name, ['k', *OPTIONS])}")
    return {name: value for name, value in options.items() if value is not None}


def meant(name: str, known: Collection[str]) -> str:
    """Return "; did you mean 'k'?" for a name that is near a known one, else the list of names."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else f"; there are {', '.join(known)}."


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a wrong one means, or None where none is near."""
    alias = _ALIASES.get(name.lower())
    near = [alias] if alias in known else difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return near[0] if near else None


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those that override `SearchConfig` and the others."""
    config = {name: value for name, value in given.items() if name in _CONFIG_FIELDS}
    return config, {name: value for name, value in given.items() if name not in _CONFIG_FIELDS}


def check_used(call: str, given: Mapping[str, Any], config: SearchConfig, *, tied: bool) -> None:
    """Raise ValueError if a call sets an option that the method or the docid tokens of the index do not use.

    Args:
        call: name of the public method, for messages.
        given: options that the call sets.
        config: with these options applied.
        tied: whether the index has tied tokens.
    """
    walk = ("beam_width", "candidates", *(["alpha"] if tied else []))
    if config.method == "exact" and (unused := [name for name in walk if name in given]):
        raise ValueError(
            f'{call}() does not use {unused[0]} with method "exact", which scores all documents; "generate" takes it.'
        )
    if tied:
        return
    if "candidates" in given or given.get("token_weight"):
        name = "candidates" if "candidates" in given else "token_weight"
        raise ValueError(f"{call}() does not use {name}: this index scores paths of docids; tied tokens take it.")
    if config.fusion == "paper" or config.beta == 0:
        for name in ("lexical_weight", "extra_scores"):
            if name in given and np.any(given[name]):
                raise ValueError(
                    f'{call}() does not use {name}: this index scores paths by fusion "{config.fusion}" with beta '
                    f'{config.beta:g}; tied tokens and fusion "bound" take it.'
                )


def check_extra_scores(extra_scores: object, expected: tuple[int, int]) -> None:
    """Raise ValueError unless extra_scores are finite numbers [queries, documents]."""
    if not isinstance(extra_scores, np.ndarray) or extra_scores.dtype.kind not in "fiu":
        got = (
            f"an array of {extra_scores.dtype}" if isinstance(extra_scores, np.ndarray) else type(extra_scores).__name__
        )
        raise ValueError(f"extra_scores must be a NumPy array of floats [queries, documents] = {expected}, got {got}.")
    if extra_scores.shape != expected:
        raise ValueError(f"extra_scores must be [queries, documents] = {expected}, got {extra_scores.shape}.")
    good = np.abs(extra_scores, dtype=np.float64) <= LARGEST_EXTRA
    if not good.all():
        query, row = np.argwhere(~good)[0].tolist()
        raise ValueError(
            f"extra_scores must be finite, from -1e30 to 1e30, got {extra_scores[query, row]} for query {query} and document "
            f"row {row}; exclude a document with `deny`."
        )


def shows_options(method: F) -> F:
    """Make `help()` and editors list every search option by name; type checkers see `Unpack[SearchOptions]`."""
    signature = inspect.signature(method)
    kept = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]
    method.__signature__ = signature.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    return method
