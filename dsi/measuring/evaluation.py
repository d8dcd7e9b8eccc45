"""Measures an index beside its baselines: BM25, dense search, reciprocal rank fusion (RRF), dense + BM25.

All systems search the same collection, with weights chosen on the same dev queries. The index is measured as users search it,
with its own beam and ten documents per query. Knows nothing of how runs are made; see `dsi.measuring.runs`.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

from dsi.docids.data import SPLITS
from dsi.docids.data.collection import Collection, check_collection, compare_documents
from dsi.docids.data.dev_queries import relevant_documents
from dsi.docids.data.identical import most_identical, without_identical
from dsi.docids.files.checks import counted, plain, shown, user_path
from dsi.docids.files.declarations import meant
from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.files.progress import progress
from dsi.docids.files.storage import write_json
from dsi.docids.types import Qrels, Run
from dsi.eval.fusion import reciprocal_rank_fusion
from dsi.eval.measures import STANDARD_MEASURES, UNCUT, cutoff, mean, measure_name, measures_for
from dsi.eval.measures import evaluate as evaluate_run
from dsi.eval.protocol import Splits, SystemResult, holm, overlap_splits, randomisation_test, table
from dsi.eval.tables import html_table
from dsi.measuring.learned import learned_line, taught_queries, without_learned
from dsi.measuring.provenance import provenance
from dsi.measuring.runs import BM25Runs, IndexRuns, generator_only, language_of
from dsi.measuring.weights import DEPTH
from dsi.search.engine import Method
from dsi.search.explain.explanation import no_effect
from dsi.search.generate import DenseAndWords
from dsi.search.hits import Hits
from dsi.search.request import SETTINGS, split_options
from dsi.store.documents.table import DocumentTable
from dsi.store.retriever import Retriever

ANSWERS = 10
"""Documents per query, the default of `search`."""
BM25, DENSE, RRF, DENSE_BM25 = "BM25", "dense", "RRF of BM25 and dense", "dense + BM25"
GENERATE, EXACT, DECODER, UNTAUGHT = "generate", "exact", "decoder only", "without earlier queries"
ROWS = {
    BM25: "words alone; k1 and b are tuned on dev, if 20 queries there have a relevant document",
    DENSE: "flat search with the index's encoder",
    RRF: "reciprocal rank fusion (k = 60), the usual hybrid",
    DENSE_BM25: "their scores added, with a weight chosen on dev, over all documents; named after the index's lexical part",
    DECODER: "of an index with a generator: beta 0",
    UNTAUGHT: "the index without what earlier queries have taught it, if it has learned some",
    GENERATE: "the index as it searches by default",
    EXACT: "the same document score over all documents",
}
"""{row: what it is}, as tables, results and documentation name the rows; a reranker's row is "+ NAME"."""
READ, COMPARED, TIME = "vectors read", "late interactions", "ms per query"
"""What a row's settings say of its cost."""
_SIGNIFICANT, _NORMAL = 0.05, 1.96
"""The p below which rows differ, and the standard deviations of a mean that it corresponds to."""
_POINTS, _CUSTOMARY = 5, 50
"""A difference that queries should be able to show, and how many queries a test collection customarily has (TREC)."""


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation; prints as a table with p-values and a summary.

    Attributes:
        rows: one result per system, baselines first.
        index: name of the row of the index with its own search config.
        measures: those that the judgements ask for (see `measures_for`), which are printed; the rows hold others too.
        runs: {row: run} that was measured.
        splits: {"Total" | "Overlap" | "No Overlap": query_ids}.
        about: collection, split, hardware, versions.
        taught: query_ids of queries with a relevant document that was taken for an earlier query.
    """

    rows: list[SystemResult]
    index: str
    measures: Sequence[str]
    runs: dict[str, Run]
    splits: Splits
    about: dict[str, Any]
    taught: frozenset[str] = frozenset()

    @property
    def note(self) -> str:
        """What to know of queries that the index has learned, and of pairs that have no effect; else ""."""
        return str(self.about.get("note", ""))

    @property
    def is_of_learned(self) -> bool:
        """Whether the index has learned all queries, so that nothing follows for others: then nothing is concluded."""
        return bool(self.about.get("learned")) and self.about["learned"] == self.about.get("judged")

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self._table, self.significance(), self.summary(), self.earlier(), self.note]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for a notebook, with the differences folded, and the conclusion."""
        tests, conclusion = escape(self.significance()), escape(self.summary())
        more = f"<details><summary>Differences and p-values</summary><pre>{tests}</pre></details>"
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"{html_table(self._table)}{more}<pre>{conclusion}</pre>{note}"

    @property
    def _table(self) -> str:
        splits = self.splits if self.splits["Overlap"] else {"Total": self.splits["Total"]}
        costs = [name for name in (READ, COMPARED, TIME) if any(name in row.settings for row in self.rows)]
        return table(self.rows, splits, self.measures, more=costs)

    def row(self, name: str) -> SystemResult:
        """Return the row of that name.

        Raises:
            KeyError: there is none.
        """
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise KeyError(f"The table has no row {shown(name)}{meant(name, list(rows))}")
        return rows[name]

    def significance(self) -> str:
        """Return the differences of the index to every other row, in points, with p of paired randomisation tests.

        The p-values are corrected for their number (Holm), as they are in `summary`; where none is below .05, one line says so
        in their place. "" if the index has learned all queries.
        """
        if self.is_of_learned:
            return ""
        tells = any(p < _SIGNIFICANT for tests in self._tests.values() for _, p in tests.values())
        about = f"paired randomisation tests, Holm-corrected for {self._comparisons} comparisons"
        lines = [
            f"{self.index} against (difference in points; {'p of' if tells else 'none is significant in'} {about}):"
        ]
        for other, tests in self._tests.items():
            cells = [f"{name} {d:+.2f}" + (f" (p={p:.4f})" if tells else "") for name, (d, p) in tests.items()]
            lines.append(f"  {other}: {', '.join(cells)}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return the main results in words: what the index finds, and how the strongest and the usual rows compare.

        Rows of the index itself, searched otherwise, and of rerankers are not compared here. "" if the index has
        learned all queries.
        """
        if self.is_of_learned:
            return ""
        first = self.measures[0]
        rivals = [name for name in self._tests if name not in (GENERATE, EXACT, UNTAUGHT) and not name.startswith("+ ")]
        strongest = max(rivals, key=lambda name: self._mean(name, first))
        usual = (*(name for name in rivals if name.startswith(f"{DENSE} + ")), RRF, DENSE, BM25)
        lines = [self._found(), f"Beside others (p Holm-corrected for {self._comparisons} comparisons):"]
        for name in dict.fromkeys([strongest, *(name for name in usual if name in rivals)]):
            difference, p = self._tests[name][first]
            shown = f"{name}, the strongest" if name == strongest else name
            lines.append(f"  {shown}: {first} {100 * self._mean(name, first):.1f}; {_verdict(difference, p)}")
        if self._tests[strongest][first][1] >= _SIGNIFICANT:
            lines.append(self._advice(strongest, first))
        return "\n".join(filter(None, lines))

    def earlier(self) -> str:
        """Return what earlier queries add, apart for queries whose documents have some; with paired 95 % intervals.

        "" if the index has learned no pairs that count, or all queries.
        """
        if self.is_of_learned or UNTAUGHT not in {row.name for row in self.rows}:
            return ""
        first = self.measures[0]
        own, without = (self.row(name).values[first] for name in (self.index, UNTAUGHT))
        lines = [f"What earlier queries add ({first}, with 95 % intervals):"]
        for is_taught, name in ((True, "ask for documents that have some"), (False, "ask for others")):
            if query_ids := [query_id for query_id in own if (query_id in self.taught) is is_taught]:
                lines.append(f"  {counted(len(query_ids), 'query')} {name}: {_added(own, without, query_ids)}")
        return "\n".join(lines)

    def save(self, path: str | Path, **more: Any) -> None:
        """Write all measures, in percent, search configs, hardware and versions as JSON, with any other fields."""
        systems = {row.name: {"settings": row.settings, **row.means(self.splits)} for row in self.rows}
        write_json(user_path(path), {**self.about, **more, "systems": systems})

    def _found(self) -> str:
        """Return what the index finds, in a sentence that fits the measures."""
        means = {name: 100 * self._mean(self.index, name) for name in self.measures}
        if "Hit@1" in means and "Hit@10" in means:
            return (
                f"The index finds the document of {means['Hit@1']:.1f} % of the queries at rank 1, "
                f"of {means['Hit@10']:.1f} % in the top ten."
            )
        if "Recall@100" not in means or "nDCG@10" not in means or "RR@10" not in means:
            return f"The index has {', '.join(f'{name} {value:.1f}' for name, value in means.items())}."
        ranked = f"The index ranks with nDCG@10 {means['nDCG@10']:.1f} and RR@10 {means['RR@10']:.1f}"
        return f"{ranked}; its first 100 answers hold {means['Recall@100']:.1f} % of a query's relevant documents."

    def _advice(self, name: str, measure_name: str) -> str:
        """Return how many queries more may tell two rows apart: some at first, then what `_POINTS` need; "" if none."""
        own, other = (self.row(row).values[measure_name] for row in (self.index, name))
        deviation = 100 * pstdev(own[query_id] - other[query_id] for query_id in own)
        needed = _CUSTOMARY if len(own) < _CUSTOMARY else ceil((_NORMAL * deviation / _POINTS) ** 2)
        if needed <= len(own):
            return ""
        return (
            f"Too few queries to tell them apart: judge {needed - len(own):,} more. `dsi evaluate --show 20` prints those that "
            "failed worst."
        )

    def _mean(self, name: str, measure_name: str) -> float:
        return mean(self.row(name).values[measure_name])

    @property
    def _comparisons(self) -> int:
        return len(self._tests) * len(self.measures)

    @cached_property
    def _tests(self) -> dict[str, dict[str, tuple[float, float]]]:
        """{row: {measure: (difference in points, corrected p)}} of the index against every other row."""
        own, pairs = self.row(self.index).values, [
            (row, name) for row in self.rows if row.name != self.index for name in self.measures
        ]  # fmt: skip
        found = [randomisation_test(own[name], row.values[name], rounds=10_000) for row, name in pairs]
        tests: dict[str, dict[str, tuple[float, float]]] = {}
        for (row, name), (difference, _), p in zip(pairs, found, holm([p for _, p in found]), strict=True):
            tests.setdefault(row.name, {})[name] = 100 * difference, p
        return tests


def _verdict(difference: float, p: float) -> str:
    if p >= _SIGNIFICANT:
        return f"no significant difference ({difference:+.1f} points, p = {p:.2f})"
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"the index is {abs(difference):.1f} points {'ahead' if difference > 0 else 'behind'} ({shown})"


def _added(own: Mapping[str, float], without: Mapping[str, float], query_ids: Sequence[str]) -> str:
    """Return the mean of some queries, and the difference to the same without; its interval from two queries on."""
    differences = [100 * (own[query_id] - without[query_id]) for query_id in query_ids]
    within = f" ± {_NORMAL * stdev(differences) / sqrt(len(differences)):.2f}" if len(differences) > 1 else ""
    return f"{100 * mean(own, query_ids):.1f} ({fmean(differences):+.2f}{within})"


def evaluate(
    retriever: Retriever,
    collection: Collection,
    split: str = "test",
    *,
    depth: int | None = None,
    measures: Sequence[str] = (),
    rerankers: Mapping[str, Sequence[Any]] | None = None,
    rerank_depth: int = 50,
    processes: Processes = ALONE,
    **options: Any,
) -> Evaluation:
    """Measure an index and its baselines.

    Example:
        >>> import dsi
        >>> evaluation = dsi.evaluate(dsi.load("RUN"), dsi.read_collection("DIR"))
        >>> evaluation.rows[0].name
        'BM25'

    Queries that the index has learned are left out, and `Evaluation.note` counts them; of all nothing is concluded.

    Args:
        retriever: the index.
        collection: its collection, with judged queries. BM25 searches the collection's documents, all others the index's; if
            these differ, a warning counts them.
        split: judgements to measure on: "test", "dev" or "train".
        depth: documents per query, and the deepest measure; 10 where it is less. By default as deep as the measures read.
        measures: names such as "nDCG@10" or "map" (`dsi.eval.measures`); by default those that the judgements ask for, see
            `measures_for`. Measures of all answers read `depth` of them, 1,000 by default.
        rerankers: {name: models of `dsi.rerankers.rerank`, applied one after another}, one more row each: the index's first
            `rerank_depth` documents, reranked.
        rerank_depth: number of documents that are reranked.
        processes: share the searching.
        **options: settings of `SearchConfig`, such as `alpha` or `beam_width`, in place of the index's.

    Raises:
        TypeError: `retriever` is none, or `collection` is something else than a collection; an option does not exist.
        ValueError: the split has no judgements, the index none of the documents; an option is out of range or unused.
    """
    # 1) the queries and the measures
    retriever = _checked(retriever, collection, split, depth, options)
    judged = len(collection.qrels[split])
    collection, learned = without_learned(retriever, collection, split)
    qrels = collection.qrels[split]
    measures = _measures([measures] if isinstance(measures, str) else measures, qrels, depth)
    depth = max(ANSWERS, depth or max(map(cutoff, measures)))
    # 2) the rows
    systems = _Systems(retriever, collection, split, depth, measures, processes)
    systems.add_baselines()
    index = systems.add_index()
    systems.add_reranked(rerankers or {}, rerank_depth)
    rows, runs = systems.measure()
    # 3) the record
    splits = overlap_splits(qrels, collection.overlap_documents(split))
    about = _about(retriever, collection, split, splits) | {"judged": judged, "learned": learned}
    if note := _note(retriever, learned, judged, split):
        about["note"] = note
    taught = taught_queries(retriever, qrels)
    return Evaluation(rows, index, measures, runs, splits, {"depth": depth, "measures": measures, **about}, taught)


def _checked(
    retriever: Retriever, collection: Collection, split: str, depth: int | None, options: Mapping[str, Any]
) -> Retriever:
    """Return the index that is measured, which searches with some settings; raises what `evaluate` is refused for."""
    _check(retriever, collection, split, depth)
    _check_judged(collection, split)
    compare_documents(collection, retriever.snapshot.documents.rows)
    if others := sorted(split_options(options)[1]):
        raise TypeError(f"evaluate() has no option {shown(others[0])}{meant(others[0], SETTINGS)}")
    index = copy(retriever)
    index.search_config = retriever.snapshot.request("evaluate", ANSWERS, options).config
    return index


def _about(retriever: Retriever, collection: Collection, split: str, splits: Splits) -> dict[str, Any]:
    """Return what was measured, and on what."""
    return {
        "collection": Path(collection.name).name, "split": split, "dtype": retriever.snapshot.dtype,
        "queries": {name: len(query_ids) for name, query_ids in splits.items()}, "documents": len(retriever),
        "identical": len(collection.identical.keys() & collection.qrels[split].keys()), **provenance(),
    }  # fmt: skip


def _note(retriever: Retriever, learned: int, judged: int, split: str) -> str:
    """Return how many of the judged queries the index has learned, or that what it has learned has no effect."""
    if learned:
        return learned_line(learned, judged, split)
    return no_effect(retriever.snapshot.engine, retriever.search_config)


def _measures(names: Sequence[str], qrels: Qrels, depth: int | None) -> tuple[str, ...]:
    """Return the measures that are given, or those that the judgements ask for and the answers are deep enough for.

    Raises:
        ValueError: an unknown measure, or one that reads further than `depth`.
    """
    answers = max(ANSWERS, depth or UNCUT)
    if not names:
        return tuple(name for name in measures_for(qrels) if cutoff(name) <= answers)
    measures = tuple(map(measure_name, names))
    for name in measures:
        if "@" in name and cutoff(name) > answers:
            raise ValueError(f"{name} reads further than depth = {depth}; leave depth out, or make it {cutoff(name)}.")
    return measures


def _check(retriever: object, collection: object, split: str, depth: int | None) -> None:
    """Raise TypeError without a retriever or with something else than a collection, ValueError for a wrong split or depth."""
    check_collection("evaluate", collection)
    if not isinstance(retriever, Retriever):
        raise TypeError(f"evaluate() measures a retriever, got {retriever!r}; dsi.load(FOLDER) loads one.")
    if plain(str, split, "split") not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}.")
    if depth is not None and plain(int, depth, "depth") < 1:
        raise ValueError(f"depth must be at least 1, got {depth}.")


def _check_judged(collection: Collection, split: str) -> None:
    """Raise ValueError if a split has no judgements, or none above 0."""
    if not collection.qrels[split]:
        raise ValueError(
            f"{collection.name} has no {split} judgements to measure on; add {collection.place_of(split)}."
        )
    if not relevant_documents(collection.qrels[split].values()):
        raise ValueError(
            f"None of the {split} judgements of {collection.name} is above 0, so no document is relevant to any query; give "
            "relevant documents 1 or more."
        )


class _Systems:
    """The rows of an evaluation, in order; nothing is searched before `measure`."""

    def __init__(
        self, retriever: Retriever, collection: Collection, split: str, depth: int, measures: Sequence[str],
        processes: Processes,
    ) -> None:  # fmt: skip
        self.retriever, self.collection, self.split, self.depth = retriever, collection, split, depth
        standard = [name for name in STANDARD_MEASURES if cutoff(name) <= depth]
        self.measures = list(dict.fromkeys([*standard, *measures]))
        self.systems = IndexRuns(collection, retriever, processes)
        self._rows: dict[str, Callable[[], tuple[Run, dict[str, Any]]]] = {}
        self._runs: dict[str, Run] = {}
        self._is_main = processes.is_main

    def add_baselines(self) -> None:
        depth = max(DEPTH, self.depth)

        def bm25() -> tuple[Run, dict[str, Any]]:
            words = BM25Runs(self.collection, tuned=self.split != "dev", language=language_of(self.retriever))
            return words.run(self.split, depth), words.options

        self._rows[BM25] = bm25
        self._rows[DENSE] = lambda: (self.systems.run_dense(self.split, depth), {})
        self._rows[RRF] = lambda: (
            reciprocal_rank_fusion([self._runs[BM25], self._runs[DENSE]]),
            {"k": 60},
        )

    def add_index(self) -> str:
        """Add the index, searched in several ways; returns the name of the row with its own search config."""
        lexical, config, method = (
            self.retriever.snapshot.lexical,
            self.retriever.search_config,
            self.retriever.search_config.method,
        )
        if lexical:
            changes = partial(self.systems.tune, learned=False, on_dev=self.split != "dev")
            self._add(f"{DENSE} + {lexical.name}", changes, DenseAndWords)
        if self.retriever.snapshot.engine.has_generator:
            self._add(DECODER, lambda: generator_only(self.retriever))
        if config.memory_weight and len(self.retriever.snapshot.memory):
            self._add(UNTAUGHT, lambda: {"memory_weight": 0.0})
        for name in (EXACT, GENERATE) if method == EXACT else (GENERATE, EXACT):
            self._add(name, lambda name=name: {"method": name})  # type: ignore[misc]
        return method

    def _add(self, name: str, changes: Callable[[], Mapping[str, Any]], method: type[Method] | None = None) -> None:
        def search() -> tuple[Run, dict[str, Any]]:
            costed = self.systems.search(self.split, self.depth, method, **changes())
            compared = {COMPARED: round(costed.compared)} if costed.config.token_weight else {}
            cost = {READ: round(costed.read), **compared, TIME: round(costed.milliseconds, 3)}
            return costed.run, {**dataclasses.asdict(costed.config), **cost}

        self._rows[name] = search

    def add_reranked(self, rerankers: Mapping[str, Sequence[Any]], k: int) -> None:
        """Add rows of rerankers over the same hits, with their milliseconds per query; deeper answers stay below them."""
        found: list[Hits] = []

        def row(models: Sequence[Any]) -> tuple[Run, dict[str, Any]]:
            from dsi.rerankers import rerank

            encoded = self.systems.encode(self.split, self.collection.query_texts(self.split))
            if not found:
                hits = self.retriever.search(encoded, k + most_identical(self.collection.identical))
                found.extend(hits if self.retriever.snapshot.documents.has_texts else self._with_texts(hits))
            started = time.perf_counter()
            ranked = found
            for model in models:
                ranked = rerank(ranked, model)
            pairs = zip(encoded.query_ids, ranked, strict=True)
            whole = {query_id: {hit.doc_id: hit.score for hit in hits} for query_id, hits in pairs}
            run = without_identical(whole, self.collection.identical, k)
            milliseconds = round(1000 * (time.perf_counter() - started) / max(len(run), 1), 2)
            run = _followed_by(run, self._runs[self.retriever.search_config.method])
            return run, {"rerank depth": k, TIME: milliseconds}

        for name, models in rerankers.items():
            self._rows[f"+ {name}"] = lambda models=models: row(models)  # type: ignore[misc]

    def _with_texts(self, hits: Sequence[Hits]) -> list[Hits]:
        """Return hits of an index without texts with those of the collection."""
        doc_ids = sorted({hit.doc_id for own in hits for hit in own})
        texts = dict(zip(doc_ids, DocumentTable(self.collection.documents).texts_of(doc_ids), strict=True))
        return [
            Hits((dataclasses.replace(hit, text=texts[hit.doc_id]) for hit in own), own.exact, own.query)
            for own in hits
        ]

    def measure(self) -> tuple[list[SystemResult], dict[str, Run]]:
        """Search and measure every row."""
        qrels, results = self.collection.qrels[self.split], []
        for name, search in progress(list(self._rows.items()), "systems", unit="system", enabled=self._is_main):
            self._runs[name], options = search()
            results.append(SystemResult(name, evaluate_run(self._runs[name], qrels, self.measures), options))
        return results, self._runs


def _followed_by(run: Run, other: Run) -> Run:
    """Return a run with what only the other has below its own answers, in the other's order."""
    joined: Run = {}
    for query_id, own in run.items():
        least = min(own.values(), default=0.0)
        more = [doc_id for doc_id in other.get(query_id, {}) if doc_id not in own]
        joined[query_id] = {**own, **{doc_id: least - place for place, doc_id in enumerate(more, start=1)}}
    return joined
