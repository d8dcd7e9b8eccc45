"""Measures an index beside its baselines: BM25, dense search, reciprocal rank fusion (RRF), dense + BM25.

All systems search the same collection, with weights chosen on the same dev queries. The index is measured as users search it,
with its own beam and ten documents per query. Knows nothing of how runs are made; see `dsi.measuring.runs`.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import ceil
from pathlib import Path
from statistics import fmean, pstdev
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
from dsi.docids.words.sentences import shortened
from dsi.eval.fusion import reciprocal_rank_fusion
from dsi.eval.measures import STANDARD_MEASURES, UNCUT, cutoff, mean, measure_name, measures_for, ranking
from dsi.eval.measures import evaluate as evaluate_run
from dsi.eval.protocol import NORMAL, Splits, SystemResult, Tests, overlap_splits, paired_tests, table, within
from dsi.eval.tables import markdown_table
from dsi.measuring.learned import learned_line, taught_queries, without_learned
from dsi.measuring.provenance import provenance
from dsi.measuring.runs import BM25Runs, CostedRun, IndexRuns, generator_only, language_of
from dsi.measuring.tuning import DEPTH, idle_generator
from dsi.search.explain.explanation import idle_memory
from dsi.search.hits import Hits
from dsi.search.request import SETTINGS, split_options
from dsi.search.vector_search import DenseAndWords
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
    UNTAUGHT: "the index with its memory off, if it has learned some; train queries still chose weights and token vectors",
    GENERATE: "the index as it searches by default",
    EXACT: "the same document score over all documents",
}
"""{row: what it is}, as tables, results and documentation name the rows; a reranker's row is "+ NAME"."""
READ, COMPARED, TIME = "vectors read", "late interactions", "ms per query"
"""Names of a row's costs among its settings."""
_SIGNIFICANT = 0.05
"""The p below which rows differ, and the standard deviations of a mean that it corresponds to."""
_POINTS, _CUSTOMARY = 5, 50
"""A difference that queries should be able to show, and how many queries a test collection customarily has (TREC)."""
_WIDTH = 80
"""Characters of a query, and of a document's name, in the table of what is missed."""
Search = Callable[[Mapping[str, Run]], tuple[Run, dict[str, Any]]]
"""The search of a row: the runs of the rows before it -> its own, and settings to show."""


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
        """What to know of queries that the index has learned, and of pairs or a generator without effect; else ""."""
        return str(self.about.get("note", ""))

    @property
    def is_of_learned(self) -> bool:
        """Whether the index has learned all queries, so that nothing follows for others: then nothing is concluded."""
        return bool(self.about.get("learned")) and self.about["learned"] == self.about.get("judged")

    def __str__(self) -> str:
        return "\n\n".join(
            filter(None, [self._table, self._words, self.significance(), self.summary(), self.earlier(), self.note])
        )

    __repr__ = __str__

    @property
    def _table(self) -> str:
        splits = self.splits if self.splits["Overlap"] else {"Total": self.splits["Total"]}
        costs = [name for name in (READ, COMPARED, TIME) if any(name in row.settings for row in self.rows)]
        return table(self.rows, splits, self.measures, more=costs)

    @property
    def _words(self) -> str:
        """How BM25 was weighted."""
        k1, b, is_tuned = (self.row(BM25).settings.get(name) for name in ("k1", "b", "tuned"))
        return f"BM25 has k1 {k1}, b {b}, {'tuned on dev queries' if is_tuned else 'not tuned'}." if k1 else ""

    def row(self, name: str) -> SystemResult:
        """Return the row of that name; KeyError if there is none."""
        return {row.name: row for row in self.rows}[name]

    def significance(self) -> str:
        """Return the differences of the index to every other row, in points, with p of paired randomisation tests.

        The p-values are corrected for their number (Holm), as they are in `summary`. "" where none is below .05, and if the
        index has learned all queries.
        """
        if self.is_of_learned or not self._tells:
            return ""
        lines = [f"{self.index} against (difference in points; p of {self._about_tests}):"]
        for other, tests in self._tests.items():
            cells = [f"{name} {difference:+.2f} (p={p:.4f})" for name, (difference, p) in tests.items()]
            lines.append(f"  {other}: {', '.join(cells)}")
        return "\n".join(lines)

    def summary(self) -> str:
        """Return the main results in words: what the index finds, and how the strongest baseline compares.

        Rows of the index itself, searched otherwise, and of rerankers are not compared here; where nothing is significant, one
        line says so. "" if the index has learned all queries.
        """
        if self.is_of_learned:
            return ""
        first, lines = self.measures[0], [self._found()]
        rivals = [name for name in self._tests if name not in (GENERATE, EXACT, UNTAUGHT) and not name.startswith("+ ")]
        strongest = max(rivals, key=lambda name: self._mean(name, first))
        if self._tells:
            mean_of, verdict = 100 * self._mean(strongest, first), _verdict(*self._tests[strongest][first])
            lines.append(f"The strongest baseline is {strongest}: {first} {mean_of:.1f}; {verdict}.")
        else:
            lines.append(f"No difference to another row is significant ({self._about_tests}).")
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
        values, without = (self.row(name).values[first] for name in (self.index, UNTAUGHT))
        lines = [f"What earlier queries add ({first}, with 95 % intervals):"]
        for is_taught, held in ((True, "some"), (False, "none")):
            if ids := [query_id for query_id in values if (query_id in self.taught) is is_taught]:
                lines.append(f"  Documents of {counted(len(ids), 'query')} have {held}: {_added(values, without, ids)}")
        return "\n".join([*lines, f"  In all: {_added(values, without, [*values])}"])

    def save(self, path: str | Path, **more: Any) -> None:
        """Write all measures, in percent, search configs, hardware and versions as JSON, with any other fields."""
        systems = {row.name: {"settings": row.settings, **row.means(self.splits)} for row in self.rows}
        write_json(user_path(path), {**self.about, **more, "systems": systems})

    def _found(self) -> str:
        """Return what the index finds, in a sentence that fits the measures, with 95 % intervals."""
        values = self.row(self.index).values
        means = {name: f"{100 * mean(values[name]):.1f}{within([*values[name].values()], 1)}" for name in self.measures}
        if "Hit@1" in means and "Hit@10" in means:
            return (
                f"The index finds the document of {means['Hit@1']} % of the queries at rank 1, of {means['Hit@10']} % in the "
                "top ten (with 95 % intervals)."
            )
        return f"The index has {', '.join(f'{name} {value}' for name, value in means.items())} (with 95 % intervals)."

    def _advice(self, name: str, measure_name: str) -> str:
        """Return how many queries more may tell two rows apart: some at first, then what `_POINTS` need; "" if none."""
        index, other = (self.row(row).values[measure_name] for row in (self.index, name))
        deviation = 100 * pstdev(index[query_id] - other[query_id] for query_id in index)
        needed = _CUSTOMARY if len(index) < _CUSTOMARY else ceil((NORMAL * deviation / _POINTS) ** 2)
        if needed <= len(index):
            return ""
        return (
            f"Too few queries to tell them apart: judge {needed - len(index):,} more. `dsi evaluate --show 20` prints those "
            "that failed worst."
        )

    def _mean(self, name: str, measure_name: str) -> float:
        return mean(self.row(name).values[measure_name])

    @property
    def _about_tests(self) -> str:
        comparisons = len(self._tests) * len(self.measures)
        return f"paired randomisation tests, Holm-corrected for {comparisons} comparisons"

    @property
    def _tells(self) -> bool:
        """Whether any difference is significant."""
        return any(p < _SIGNIFICANT for tests in self._tests.values() for _, p in tests.values())

    @cached_property
    def _tests(self) -> Tests:
        others = {row.name: row.values for row in self.rows if row.name != self.index}
        return paired_tests(self.row(self.index).values, others, self.measures)


def _verdict(difference: float, p: float) -> str:
    if p >= _SIGNIFICANT:
        return f"no significant difference ({difference:+.1f} points, p = {p:.2f})"
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"the index is {abs(difference):.1f} points {'ahead' if difference > 0 else 'behind'} ({shown})"


def _added(values: Mapping[str, float], without: Mapping[str, float], query_ids: Sequence[str]) -> str:
    """Return the mean of some queries, and the difference to the same without, with its interval."""
    differences = [values[query_id] - without[query_id] for query_id in query_ids]
    return f"{100 * mean(values, query_ids):.1f} ({100 * fmean(differences):+.2f}{within(differences, 2)})"


def evaluate(
    retriever: Retriever, collection: Collection, split: str = "test", *, depth: int | None = None,
    measures: Sequence[str] = (), rerankers: Mapping[str, Sequence[Any]] | None = None, rerank_depth: int = 50,
    processes: Processes = ALONE, **options: Any,
) -> Evaluation:  # fmt: skip
    """Measure an index and its baselines.

    Example:
        >>> import dsi
        >>> evaluation = dsi.evaluate(dsi.load("INDEX"), dsi.read_collection("COLLECTION"))
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
    index = _checked(retriever, collection, split, depth, options)
    judged = len(collection.qrels[split])
    collection, learned = without_learned(index, collection, split)
    qrels = collection.qrels[split]
    measures = _measures([measures] if isinstance(measures, str) else measures, qrels, depth)
    depth = max(ANSWERS, depth or max(map(cutoff, measures)))
    # 2) the rows
    systems = IndexRuns(collection, index, processes)
    searches = _searches(systems, split, depth) | _rerankings(systems, split, rerankers or {}, rerank_depth)
    measured = dict.fromkeys([*(name for name in STANDARD_MEASURES if cutoff(name) <= depth), *measures])
    rows, runs = _measured(searches, qrels, list(measured), shown=processes.is_main)
    # 3) the record
    splits = overlap_splits(qrels, collection.overlap_documents(split))
    about = {"depth": depth, "measures": measures, **_about(index, collection, split, splits)}
    memory, config = index.snapshot.memory, index.search_config
    said = learned_line(learned, judged, split) if learned else idle_memory(memory, config)
    note = "\n".join(filter(None, [said, idle_generator(index.snapshot.engine, config)]))
    about |= {"judged": judged, "learned": learned, **({"note": note} if note else {})}
    taught = taught_queries(index, qrels)
    return Evaluation(rows, index.search_config.method, measures, runs, splits, about, taught)


def _measured(
    searches: Mapping[str, Search], qrels: Qrels, measures: Sequence[str], *, shown: bool
) -> tuple[list[SystemResult], dict[str, Run]]:
    """Search and measure every row."""
    rows, runs = list[SystemResult](), dict[str, Run]()
    for name, search in progress(list(searches.items()), "systems", unit="system", enabled=shown):
        runs[name], settings = search(runs)
        rows.append(SystemResult(name, evaluate_run(runs[name], qrels, measures), settings))
    return rows, runs


def _about(index: Retriever, collection: Collection, split: str, splits: Splits) -> dict[str, Any]:
    """Return what was measured, and on what."""
    return {
        "collection": Path(collection.name).name, "split": split, "dtype": index.snapshot.dtype,
        "queries": {name: len(query_ids) for name, query_ids in splits.items()}, "documents": len(index),
        "identical": len(collection.identical.keys() & collection.qrels[split].keys()), **provenance(),
    }  # fmt: skip


def _checked(
    retriever: Retriever, collection: Collection, split: str, depth: int | None, options: Mapping[str, Any]
) -> Retriever:
    """Return the index to measure, which searches with some options; raises whatever `evaluate` is refused for."""
    check_collection("evaluate", collection)
    if not isinstance(retriever, Retriever):
        raise TypeError(f"evaluate() measures a retriever, got {retriever!r}; dsi.load(FOLDER) loads one.")
    if plain(str, split, "split") not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}.")
    if depth is not None and plain(int, depth, "depth") < 1:
        raise ValueError(f"depth must be at least 1, got {depth}.")
    if not collection.qrels[split]:
        place = collection.place_of(split)
        raise ValueError(
            f"{collection.name} has no {split} judgements to measure on; add {place}, or questions (--pairs)."
        )
    if not relevant_documents(collection.qrels[split].values()):
        raise ValueError(
            f"None of the {split} judgements of {collection.name} is above 0, so no document is relevant to any query; give "
            "relevant documents 1 or more."
        )
    compare_documents(collection, retriever.snapshot.documents.rows)
    if unknown := sorted(split_options(options)[1]):
        raise TypeError(f"evaluate() has no option {shown(unknown[0])}{meant(unknown[0], SETTINGS)}")
    index = copy(retriever)
    index.search_config = retriever.snapshot.request("evaluate", ANSWERS, options).config
    return index


def _measures(names: Sequence[str], qrels: Qrels, depth: int | None) -> tuple[str, ...]:
    """Return the measures that are given, or those that the judgements ask for and the answers are deep enough for."""
    answers = max(ANSWERS, depth or UNCUT)
    if not names:
        return tuple(name for name in measures_for(qrels) if cutoff(name) <= answers)
    measures = tuple(map(measure_name, names))
    for name in measures:
        if "@" in name and cutoff(name) > answers:
            raise ValueError(f"{name} reads further than depth = {depth}; leave depth out, or make it {cutoff(name)}.")
    return measures


def _searches(systems: IndexRuns, split: str, depth: int) -> dict[str, Search]:
    """Return {row: its search}, in order: baselines, and the index searched in several ways."""
    index, deep, is_tuned = systems.retriever, max(DEPTH, depth), split != "dev"

    def bm25(_: Mapping[str, Run]) -> tuple[Run, dict[str, Any]]:
        words = BM25Runs(systems.collection, tuned=is_tuned, language=language_of(index))
        return words.run(split, deep), words.options

    def hybrid(_: Mapping[str, Run]) -> tuple[Run, dict[str, Any]]:
        return _with_cost(systems.search(split, depth, DenseAndWords, **systems.tune_hybrid(on_dev=is_tuned)))

    def search(changes: Mapping[str, Any], _: Mapping[str, Run]) -> tuple[Run, dict[str, Any]]:
        return _with_cost(systems.search(split, depth, **changes))

    searches: dict[str, Search] = {
        BM25: bm25,
        DENSE: lambda _: (systems.run_dense(split, deep), {}),
        RRF: lambda runs: (reciprocal_rank_fusion([runs[BM25], runs[DENSE]]), {"k": 60}),
    }
    snapshot = index.snapshot
    if snapshot.lexical:
        searches[f"{DENSE} + {snapshot.lexical.name}"] = hybrid
    if snapshot.engine.has_generator:
        searches[DECODER] = partial(search, generator_only(index))
    if index.search_config.memory_weight and len(snapshot.memory):
        searches[UNTAUGHT] = partial(search, {"memory_weight": 0.0})
    for name in (EXACT, GENERATE) if index.search_config.method == EXACT else (GENERATE, EXACT):
        searches[name] = partial(search, {"method": name})
    return searches


def _with_cost(costed: CostedRun) -> tuple[Run, dict[str, Any]]:
    compared = {COMPARED: round(costed.compared)} if costed.config.token_weight else {}
    cost = {READ: round(costed.read), **compared, TIME: round(costed.milliseconds, 3)}
    return costed.run, {**dataclasses.asdict(costed.config), **cost}


def _rerankings(systems: IndexRuns, split: str, rerankers: Mapping[str, Sequence[Any]], k: int) -> dict[str, Search]:
    """Return {row: its search} of rerankers over the same hits; deeper answers of the index stay below them."""
    collection, index = systems.collection, systems.retriever

    @cache
    def first_hits() -> tuple[list[str], list[Hits]]:
        encoded, copied = systems.encode(split, collection.query_texts(split)), copy(index)
        if not copied.snapshot.documents.has_texts:
            copied.update(texts=collection.documents)
        return encoded.query_ids, copied.search(encoded, k + most_identical(collection.identical))

    def search(models: Sequence[Any], runs: Mapping[str, Run]) -> tuple[Run, dict[str, Any]]:
        from dsi.rerankers import rerank

        query_ids, hits = first_hits()
        started = time.perf_counter()
        for model in models:
            hits = rerank(hits, model)
        pairs = zip(query_ids, hits, strict=True)
        reranked = {query_id: {hit.doc_id: hit.score for hit in answer} for query_id, answer in pairs}
        run = without_identical(reranked, collection.identical, k)
        milliseconds = round(1000 * (time.perf_counter() - started) / max(len(run), 1), 2)
        return _followed_by(run, runs[index.search_config.method]), {"rerank depth": k, TIME: milliseconds}

    return {f"+ {name}": partial(search, models) for name, models in rerankers.items()}


def _followed_by(run: Run, other: Mapping[str, Mapping[str, float]]) -> Run:
    """Return a run in which documents that only the other run has follow each query's answers, in that run's order."""
    joined: Run = {}
    for query_id, scores in run.items():
        least = min(scores.values(), default=0.0)
        more = [doc_id for doc_id in other.get(query_id, {}) if doc_id not in scores]
        joined[query_id] = {**scores, **{doc_id: least - place for place, doc_id in enumerate(more, start=1)}}
    return joined


def missed_table(run: Run, collection: Collection, split: str, documents: DocumentTable, count: int) -> str:
    """Return queries whose first answer is not relevant, those whose relevant document is lowest first, as Markdown."""
    missed = []
    for query_id, judged in collection.qrels[split].items():
        ranked = ranking(run.get(query_id, {}))
        relevant = [doc_id for doc_id, grade in judged.items() if grade > 0]
        ranks = [(ranked.index(doc_id) + 1 if doc_id in ranked else len(ranked) + 1, doc_id) for doc_id in relevant]
        if ranks and min(ranks)[0] > 1:
            missed.append((*min(ranks), query_id, ranked))
    missed.sort(key=lambda entry: -entry[0])  # of equals, in their order
    rows = []
    for rank, doc_id, query_id, ranked in missed[:count]:
        found = [(own, documents.rows.get(own)) for own in (doc_id, *ranked[:1])]
        labels = [_cell(f"{own}: {'not in the index' if row is None else documents.label(row)}") for own, row in found]
        shown_rank = str(rank) if rank <= len(ranked) else f"below {len(ranked)}"
        rows.append([_cell(collection.queries[query_id]), labels[0], shown_rank, *(labels[1:] or ["none"])])
    head = (
        f"The first answer to {len(missed)} of {len(collection.qrels[split])} queries is not relevant; the worst first:"
    )
    return f"{head}\n\n{markdown_table(['query', 'its document', 'rank', 'first answer'], rows)}"


def _cell(text: str) -> str:
    return shortened(text, _WIDTH).replace("|", "/")
