"""The request of a search: the method, the weights of the scores, how wide it walks, which documents may be returned.

`SearchConfig` belongs to an index, `SearchOptions` are the keywords of one call, and `SearchRequest` combines the two,
checked; it is passed on through the search. Knows nothing of trees or models.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field, SkipValidation
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import Count, Remedy, Setting, Share, declarations, meant, read_meanings, settings

if TYPE_CHECKING:
    import numpy as np
    import pyarrow.compute as pc
    from numpy.typing import NDArray

    Bools: TypeAlias = NDArray[np.bool_]
    Scores: TypeAlias = NDArray[np.floating]
    Where: TypeAlias = str | pc.Expression | NDArray[np.bool_]
else:  # commands read the declarations below without these libraries
    Bools = Scores = Where = Any

logger = logging.getLogger(__name__)

LARGEST_EXTRA = 1e30
"""Bound of `extra_scores`: further ones could overflow float32."""
Weight = Annotated[float, Field(ge=0, le=1e6), Remedy("0 leaves it out")]

LEXICAL_WEIGHT, TOKEN_WEIGHT, MEMORY_WEIGHT = 0.7, 1.0, 10.0
"""What we recommend beside cosines for words, late interaction and what was learned from use, chosen across collections
(docs/experiments/index.md and queries.md)."""


@settings()
class SearchConfig:
    """How an index scores documents and how widely it searches (section `[search]`).

    An index has its own, with weights that were chosen: change one by `dataclasses.replace(retriever.search_config, …)`. A new
    one here has no words, tokens or memory.
    """

    method: Literal["generate", "exact"] = "generate"
    """"generate" walks down the tree, by a generator or by vectors, and scores the documents below the last nodes and the best
    by words; "exact" scores all documents."""
    beam_width: Count = 40
    """Nodes kept per level."""
    candidates: Count = 100
    """How many documents the walk, the words and extra_scores each contribute; fewer than k count as k. The memory contributes
    those of the nearest earlier queries."""
    alpha: Annotated[Share, Remedy("it is the generator's weight, and the rest the encoder's")] = 0.7
    """Weight of the generator, if the index has one; the rest is the encoder's (DR-SCL eq. 11)."""
    beta: Annotated[float, Field(ge=0), Remedy("0 is the generator alone, inf all levels")] = math.inf
    """Number of levels at which a generator's scores are joined by the encoder's; inf for all, 0 for none (DR-SCL eq. 12)."""
    fusion: str = "product"
    """How the two become one score of a node: "product" (DR-SCL eq. 11); "mixture", the log of their weighted mean, in which
    either can find what the other thinks impossible; or, in Python, the import path of a function (`dsi.generator.fusion`). Of
    an index, not of a call."""
    lexical_weight: Weight = 0.0
    """Weight of BM25 in a document's score."""
    token_weight: Weight = 0.0
    """Weight of late interaction in a document's score; needs an index with token vectors."""
    memory_weight: Weight = 0.0
    """Weight of earlier queries in a document's score; without effect until the index has learned some."""
    ann_temperature: Annotated[float, Field(ge=1e-6, le=1e6), Remedy("1 is the paper's")] = 1.0
    """Divides the encoder's scores that join a generator's; 1 in the paper, less for normalised embeddings. The encoder's
    weight is (1 - alpha) / ann_temperature, so alpha means nothing without it."""


class Written(NamedTuple):
    """How an option that `SearchConfig` lacks is written in the shell and in JSON; `kind` is object for not at all."""

    kind: type
    metavar: str = ""
    example: Any = None


class SearchOptions(TypedDict, total=False):
    """The keywords of every call that searches; None keeps the index's setting.

    The first nine are those of `SearchConfig`, whose meanings and ranges hold; type checkers need their names here.
    """

    method: str | None
    beam_width: int | None
    candidates: int | None
    alpha: float | None
    beta: Annotated[float | None, Written(float, "LEVELS", 2.0)]
    ann_temperature: float | None
    lexical_weight: float | None
    token_weight: float | None
    memory_weight: float | None
    allow: Annotated[Collection[str] | None, Written(list, "DOC_ID", ["danube"])]
    """The only doc_ids that may be returned; all by default. Filters act inside the walk: k documents are returned whenever k
    are allowed, with the same scores as without a filter."""
    deny: Annotated[Collection[str] | None, Written(list, "DOC_ID", ["volga"])]
    """The doc_ids that must not be returned."""
    where: Annotated[Where | None, Written(str, "CONDITION", "lang = 'en' and year > 2000")]
    """A condition on the metadata: as in SQL ("lang = 'en' and year > 2000"; see `dsi.store.documents.filters`), an Arrow
    expression (`pyarrow.compute.field("lang") == "en"`), or [documents] booleans."""
    min_score: Annotated[float | None, Written(float, "SCORE", 0.5)]
    """The lowest score of an answer: documents below it are left out, so that fewer than k may be returned. Scores of other
    weights or other indexes cannot be compared."""
    passages: Annotated[int | None, Written(int, "N", 3)]
    """The best passages of each hit, in the order of the text and without overlap: `hit.passages`. A short text is one
    passage."""
    extra_scores: Annotated[Scores | None, Written(object)]
    """[queries, documents], in the order of the document table: any other score (recency, popularity, …), already
    weighted. It is added to a document's score; the best `candidates` by it are scored too."""


@settings(eq=False)
class SearchRequest:
    """One search, its options checked: the record that is passed through the search."""

    k: Count
    """Documents per query."""
    config: SearchConfig
    """The index's search config, with the call's options applied."""
    allowed: Annotated[Bools | None, SkipValidation] = None
    """[places] True at the docid positions of documents that a filter lets through; None without a filter."""
    extra_scores: Annotated[Scores | None, SkipValidation] = None
    """As in `SearchOptions`."""
    min_score: Annotated[float, Field(ge=-math.inf)] = -math.inf  # which NaN is not
    """As in `SearchOptions`."""
    passages: Annotated[int, Field(ge=1, le=100)] = 1
    """As in `SearchOptions`."""

    @property
    def pool(self) -> int:
        """How many documents each source of candidates gives."""
        return max(self.config.candidates, self.k)


OF_A_GENERATOR = ("alpha", "beta", "ann_temperature", "fusion")
"""Settings that an index without a generator does not use."""
OPTIONS = tuple(SearchOptions.__annotations__)
"""The names of the search options."""
SETTINGS = tuple(field.name for field in fields(SearchConfig))
"""The names of the settings that an index keeps."""


@cache
def option_declarations() -> dict[str, Setting]:
    """Return {name: declaration} of the search options, as `SearchConfig` and `SearchOptions` have them."""
    configured, meanings = declarations(SearchConfig), read_meanings(SearchOptions)
    kinds = {name: written_as(name).kind for name in OPTIONS if name not in configured}
    return {
        name: configured[name] if name in configured else Setting("", name, kinds[name], None, meanings[name])
        for name in OPTIONS
    }


def written_as(option: str) -> Written:
    """Return how an option is written that `SearchConfig` does not have."""
    written: Written = SearchOptions.__annotations__[option].__metadata__[0]
    return written


def given_options(call: str, options: Mapping[str, Any], named: Sequence[str] = OPTIONS) -> dict[str, Any]:
    """Return the options that a call sets, those that are not None; TypeError for an unknown one lists those `named`."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"{call}() has no option {shown(name)}{meant(name, ['k', *named])}")
    return {name: value for name, value in options.items() if value is not None}


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those that override `SearchConfig` and the others."""
    config = {name: value for name, value in given.items() if name in SETTINGS}
    return config, {name: value for name, value in given.items() if name not in SETTINGS}


def used_settings(config: Mapping[str, Any], *, has_generator: bool) -> dict[str, Any]:
    """Return the settings of a search config that an index uses: one without a generator has no alpha."""
    return {name: value for name, value in config.items() if has_generator or name not in OF_A_GENERATOR}


def vectors_alone(options: SearchOptions, config: SearchConfig, *, has_generator: bool) -> SearchOptions:
    """Return the options of a search for vectors without texts; a line names the parts of the score that are left out."""
    parts = {} if has_generator else {"lexical_weight": "words", "token_weight": "late interaction"}
    left = [part for name, part in parts.items() if getattr(config, name)]
    without = without_parts(options, *parts)
    if left:
        logger.info("Queries are vectors alone: %s, which read their texts, are left out.", " and ".join(left))
    return without


def without_parts(options: SearchOptions, *weights: str) -> SearchOptions:
    """Return the options of a search without parts of the score that read the text of a query; ValueError if one is weighed."""
    for name in weights:
        if options.get(name):
            raise ValueError(f"{name} weighs a part that reads the text of a query, and there is none. Leave it out.")
    return SearchOptions(**{**options, **dict.fromkeys(weights, 0.0)})  # type: ignore[typeddict-item]


def request_of_each(request: SearchRequest, queries: int, documents: int) -> list[SearchRequest]:
    """Return the request of each query alone; ValueError for extra_scores of another shape."""
    extra = request.extra_scores
    if extra is None:
        return [request] * queries
    check_extra_scores(extra, (queries, documents))
    return [replace(request, extra_scores=extra[row : row + 1]) for row in range(queries)]


def check_extra_scores(extra_scores: Any, expected: tuple[int, int]) -> None:
    """Raise ValueError unless extra_scores are finite numbers [queries, documents]."""
    import numpy as np

    is_array = isinstance(extra_scores, np.ndarray)
    if not is_array or extra_scores.dtype.kind not in "fiu" or extra_scores.shape != expected:
        got = f"{extra_scores.dtype} {extra_scores.shape}" if is_array else type(extra_scores).__name__
        raise ValueError(f"extra_scores must be a NumPy array of numbers [queries, documents] = {expected}, got {got}.")
    good = np.abs(extra_scores, dtype=np.float64) <= LARGEST_EXTRA
    if not good.all():
        query, row = np.argwhere(~good)[0].tolist()
        raise ValueError(
            f"extra_scores must be finite, from -1e30 to 1e30, got {extra_scores[query, row]} for query {query} and document "
            f"row {row}; exclude a document with `deny`."
        )
