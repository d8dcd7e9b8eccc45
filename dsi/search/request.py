"""What a search is asked to do: how nodes are scored, how wide the beam is, which documents may be returned.

`SearchConfig` belongs to an index, `SearchOptions` are the keywords of one call, and `SearchRequest` combines the two,
checked; it is passed on through the search. Knows nothing of trees or models.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, Union, get_type_hints

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict

from docids.checks import at_least, one_of, plain, plain_fields
from docids.vectors import LARGE
from dsi.trees.dense import NodeScores

F = TypeVar("F", bound=Callable[..., Any])
Where: TypeAlias = Union[str, pc.Expression, NDArray[np.bool_]]  # noqa: UP007 (NDArray has no | on Python 3.10)
"""A filter: a condition ("lang = 'en' and year > 2000"), an Arrow expression, or [documents] True at those that may be
returned."""

MAX_EXPANSIONS = 10_000
_LARGEST = 1e6
_SHARE = 8
_FUSIONS = ("bound", "estimate", "paper")
_METHODS = ("beam", "mcts")


@dataclass(frozen=True)
class SearchConfig:
    """How an index scores nodes and how widely it searches (section `[search]`)."""

    fusion: str = "bound"
    """How nodes are scored, "bound", "estimate" or "paper" (see `dsi.search.beam`). "estimate" looks at no document outside the
    beam, and needs a generator that was trained for it."""
    alpha: float = 0.7
    """Weight of the decoder in [0, 1]; 0 is dense search only."""
    beta: float = math.inf
    """Number of levels that use the dense score; inf for all, 0 for the decoder only."""
    ann_temperature: float = 1.0
    """Divides the dense scores, between 1e-6 and 1e6; 1 in the paper, less for normalised embeddings."""
    beam_width: int = 20
    """Inner nodes kept per level."""
    lexical_weight: float = 0.0
    """Weight of BM25 in a document's score z.e_d + lexical_weight * BM25, at most 1e6; needs fusion "bound" and an index with
    BM25."""
    probed: float = 0.0
    """With fusion "bound", about how many documents near a query are looked at; inf for all, 0 chooses: all of a small index,
    an eighth of one with more than 262,144 documents. Unless all are, no result is certified."""

    def __post_init__(self) -> None:
        plain_fields(self)
        one_of(self, fusion=_FUSIONS)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1] (the decoder's weight), got {self.alpha}.")
        if not self.beta >= 0:
            raise ValueError(f"beta must be 0 (decoder only) or more levels, or inf for all, got {self.beta}.")
        if not 1 / _LARGEST <= self.ann_temperature <= _LARGEST:  # beyond, scores could overflow float32
            raise ValueError(f"ann_temperature must be between 1e-6 and 1e6, got {self.ann_temperature}.")
        at_least(self, beam_width=1)
        if not 0 <= self.lexical_weight <= _LARGEST:
            raise ValueError(
                f"lexical_weight must be between 0 (dense scores alone) and 1e6, got {self.lexical_weight}."
            )
        if not (self.probed == 0 or self.probed >= 1):
            raise ValueError(
                f"probed must be a number of documents from 1 on, inf for all, or 0 to choose, got {self.probed}."
            )
        if self.lexical_weight and self.fusion == "paper":
            raise ValueError(
                'lexical_weight needs fusion "bound" or "estimate", got "paper": centroids have no BM25 score.'
            )

    def looked_at(self, documents: int) -> float:
        """How many of so many documents a search looks at, with fusion "bound"."""
        if self.probed:
            return self.probed
        return math.inf if documents <= LARGE else documents / _SHARE

    @property
    def uses_decoder(self) -> bool:
        """True if any score needs the decoder."""
        return self.alpha > 0 or self.beta == 0 or (self.fusion == "paper" and self.beta < math.inf)


class DocumentScorer(Protocol):
    """Anything that scores candidates, such as every `dsi.rerankers.candidates.Reranker`."""

    uses_features: Any

    def score(self, candidates: Any) -> NDArray[np.floating]:
        """Return scores [queries, candidates]; higher is better."""


class SearchOptions(TypedDict, total=False):
    """The keywords of `search`, `explain`, `trace`, `run`, `follow` and `candidates`; None keeps the index's setting."""

    alpha: float | None
    """As in `SearchConfig`, like the next five; they override the index's search config."""
    beta: float | None
    """As in `SearchConfig`."""
    fusion: str | None
    """As in `SearchConfig`."""
    ann_temperature: float | None
    """As in `SearchConfig`."""
    beam_width: int | None
    """As in `SearchConfig`; by default the index's, or k if that is larger."""
    lexical_weight: float | None
    """As in `SearchConfig`."""
    probed: float | None
    """As in `SearchConfig`."""
    allow: Collection[str] | None
    """The doc_ids that may be returned; all by default. The filter is applied inside the beam: k documents are returned
    whenever k are allowed, with the same scores as without a filter."""
    deny: Collection[str] | None
    """The doc_ids that must not be returned."""
    where: Where | None
    """A condition on the metadata: as in SQL ("lang = 'en' and year > 2000"; the grammar is that of `dsi.filters`), an Arrow
    expression (`pyarrow.compute.field("lang") == "en"`), or [documents] booleans."""
    extra_scores: NDArray[np.floating] | None
    """[queries, documents], in the order of the document table: any other score (recency, popularity, …), already
    weighted. It is added to z.e_d, and the certificate covers it. Needs fusion "bound"."""
    exact: bool | None
    """Widen the beam until the result is certified."""
    max_expansions: int | None
    """With `exact`, the most inner nodes that may be expanded per query (10,000 by default); if that is not enough,
    `hits.exact` is False."""
    method: str | None
    """"beam", or "mcts": Monte Carlo tree search for the documents of highest `reward`, guided by the decoder. Returns
    up to k documents, never certified."""
    reward: DocumentScorer | None
    """For "mcts": a reranker that scores single documents; by default the document's dense and BM25 score."""
    simulations: int | None
    """For "mcts": simulations per query, 100 by default."""


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """One search, its options checked: the record that is passed through the search.

    Attributes:
        k: documents per query.
        config: the index's search config, with the call's options applied.
        alive: [nodes] True at documents that may be returned and at the nodes above them; by default every document that was
            not removed. Softmaxes run over all children, so a filter changes which documents are returned, never their scores.
        extra_scores: as in `SearchOptions`, like the next five.
        exact: as in `SearchOptions`.
        max_expansions: as in `SearchOptions`.
        method: as in `SearchOptions`.
        reward: as in `SearchOptions`.
        simulations: as in `SearchOptions`.

    Raises:
        ValueError: k is not between 1 and the beam width (a narrower beam could return fewer than k documents), or another
            value is out of range.
    """

    k: int
    config: SearchConfig
    alive: Tensor | None = None
    extra_scores: NDArray[np.floating] | None = None
    exact: bool = False
    max_expansions: int = MAX_EXPANSIONS
    method: str = "beam"
    reward: DocumentScorer | None = None
    simulations: int = 100

    def __post_init__(self) -> None:
        plain_fields(self)
        one_of(self, method=_METHODS)
        at_least(self, max_expansions=1, simulations=1)
        beam_width = self.config.beam_width
        if not 1 <= self.k <= beam_width:
            remedy = "; widen beam_width" if self.k > beam_width else ""
            raise ValueError(f"k must be between 1 and {beam_width} (the beam width), got {self.k}{remedy}.")
        if self.extra_scores is not None and self.config.beta == 0:
            raise ValueError(
                "extra_scores join the dense scores, which take no part with beta = 0; leave one of them out."
            )


class ScoredQueries(NamedTuple):
    """Encoded queries with the dense scores of the nodes.

    Attributes:
        states: [batch, length, d_model] encoder states.
        mask: [batch, length] True at real tokens.
        node_scores: dense scores of the nodes; None if they are not used.
        embeddings: [batch, embedding_dim], for decoders with tied tokens.
    """

    states: Tensor
    mask: Tensor
    node_scores: NodeScores | None
    embeddings: Tensor | None = None


OPTIONS = get_type_hints(SearchOptions)
_CONFIG_FIELDS = frozenset(field.name for field in fields(SearchConfig))
_ONLY_BEAM = ("exact", "max_expansions", "beam_width", "fusion", "alpha", "beta", "probed")
_ONLY_MCTS = ("reward", "simulations")


def given_options(call: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a call sets: those that are not None.

    Args:
        call: name of the public method, for messages.
        options: as the call received them.

    Raises:
        TypeError: an option does not exist; the message names the nearest one.
        ValueError: the chosen method does not use an option.
    """
    for name in options:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.0)[0]
            raise TypeError(f"{call}() has no option {name!r}; did you mean {near!r}?")
    given = {name: value for name, value in options.items() if value is not None}
    method = plain(str, given.get("method", "beam"), "method")
    unused = [name for name in (_ONLY_MCTS if method == "beam" else _ONLY_BEAM) if given.get(name, False) is not False]
    if unused and method in _METHODS:
        other = "mcts" if method == "beam" else "beam"
        raise ValueError(
            f'{call}() does not use {unused[0]} with method "{method}", only with "{other}"; leave it out.'
        )
    if "max_expansions" in given and not given.get("exact"):
        raise ValueError(
            f"{call}() uses max_expansions only with exact=True; leave it out, or ask for an exact answer."
        )
    return given


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those that override `SearchConfig` and the others."""
    config = {name: value for name, value in given.items() if name in _CONFIG_FIELDS}
    return config, {name: value for name, value in given.items() if name not in _CONFIG_FIELDS}


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
