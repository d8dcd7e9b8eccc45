"""`dsi reproduce parsing`: the parser that is trained for ranking, on a collection with titles and graded judgements.

`dsi reproduce treebank`: its model class as a parser, on a Universal Dependencies treebank.
"""

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.words.bm25 import BM25
from dsi.eval.tables import markdown_table
from dsi_experiments.report import save_report
from dsi_experiments.rerankers.candidates import Candidates
from dsi_experiments.rerankers.features import word_list
from dsi_experiments.rerankers.lists import NDCG_EXP, Floats, against, dcg_exp, exact_weight, ndcg_exp, split_folds
from dsi_experiments.rerankers.parse_ranker import ParseRanker, ParserConfig, labelled_lists
from dsi_experiments.rerankers.parser import DependencyModel

FOLDS, DEPTH, REFERENCE = 5, 20, "maximum likelihood (Viterbi-EM)"
LENGTHS = ((1, 5), (6, 7), (8, 9), (10, 12))
LONGEST_SENTENCE = 10
SETTINGS: Mapping[str, ParserConfig] = {
    REFERENCE: ParserConfig(rounds=0),
    "end to end": ParserConfig(),
    "end to end, minimum-risk trees": ParserConfig(parse="mbr"),
    "end to end, pairs by delta nDCG": ParserConfig(weigh_by_ndcg=True),
    "end to end, without guards": ParserConfig(divergence=0.0, steps=30),
}
UNGUARDED = "end to end, without guards"


def bm25_candidates(collection: Collection) -> tuple[Candidates, Floats, Floats]:
    """BM25's first documents for every test query, their labels [n, k], and their ideal DCG over that of all judged [n]."""
    bm25 = BM25(collection.documents["doc_id"], collection.full_texts())
    queries, qrels = collection.query_texts("test"), collection.qrels["test"]
    run = bm25.run(queries, DEPTH)
    titles = dict(zip(collection.documents["doc_id"][:], collection.documents["title"][:], strict=True))
    ids = [query_id for query_id in queries if len(run[query_id]) > 1]
    scores, labels = np.full((len(ids), DEPTH), -np.inf), np.zeros((len(ids), DEPTH))
    for row, query_id in enumerate(ids):
        own = list(run[query_id])
        scores[row, : len(own)] = list(run[query_id].values())
        labels[row, : len(own)] = [max(qrels[query_id].get(doc_id, 0), 0) for doc_id in own]
    held = np.array([_held(row, qrels[query_id]) for row, query_id in zip(labels, ids, strict=True)])
    nothing = np.zeros((len(ids), DEPTH, 1))
    candidates = Candidates(
        queries=[queries[query_id] for query_id in ids],
        doc_ids=[list(run[query_id]) for query_id in ids],
        titles=[[titles[doc_id] for doc_id in run[query_id]] for query_id in ids],
        scores=scores,
        query_embeddings=nothing[:, 0],
        embeddings=nothing,
        features=nothing[:, :, :0],
        query_ids=ids,
    )
    return candidates, labels, held


def _held(labels: Floats, judged: Mapping[str, float]) -> float:
    """The ideal DCG@10 of the candidates over that of all judged documents."""
    every = np.array([max(relevance, 0) for relevance in judged.values()], dtype=float)
    return dcg_exp(labels, 10) / max(dcg_exp(every, 10), 1e-12)


def quality(candidates: Candidates, labels: Floats, scores: Floats) -> Floats:
    """[n] nDCG@10 (`ndcg_exp`) of each query; the ideal order is that of the candidates."""
    return ndcg_exp(labelled_lists(candidates, labels), scores[candidates.valid])


def parsing(folder: Path, output: Path, seeds: list[int]) -> str:
    """Five-fold cross-validation; writes parsing.json and parsing.md."""
    candidates, labels, held = bm25_candidates(read_collection(folder))
    n = len(candidates.queries)
    values = {name: np.zeros((len(seeds), n)) for name in ("BM25", "uniform theta", *SETTINGS)}
    saw_tooth: dict[str, list[tuple[float, float]]] = {}
    for number, seed in enumerate(seeds):
        for others, fold in split_folds(n, FOLDS, seed):
            rest = np.random.default_rng(seed).permutation(others)
            held_out, train = rest[: len(rest) // 5], rest[len(rest) // 5 :]
            test = candidates.select(fold)
            values["BM25"][number, fold] = quality(test, labels[fold], test.scores)
            for name, config in SETTINGS.items():
                ranker = ParseRanker.create(candidates.select(rest), config)
                guard = None if name == UNGUARDED else (candidates.select(held_out), labels[held_out])
                own = rest if name == UNGUARDED else train
                history = ranker.fit(candidates.select(own), labels[own], guard, exact_weight)
                values[name][number, fold] = quality(test, labels[fold], ranker.score(test))
                if history and name not in saw_tooth:
                    saw_tooth[name] = history
            uniform = ParseRanker.create(candidates.select(rest), ParserConfig(rounds=0))
            uniform.model.theta = uniform.model.normalise(np.ones(len(uniform.model.theta)))
            uniform.fit(candidates.select(rest), labels[rest], None, exact_weight)
            values["uniform theta"][number, fold] = quality(test, labels[fold], uniform.score(test))
        for own in values.values():
            own[number] *= held  # now the ideal order is that of all relevant documents, candidates or not
        print(
            f"parsing, seed {seed}: " + ", ".join(f"{m} {v[number].mean():.4f}" for m, v in values.items()), flush=True
        )
    text = _parsing_table(candidates, values, len(seeds))
    record = {name: own.tolist() for name, own in values.items()}
    save_report(output, "parsing", text, {"seeds": seeds, NDCG_EXP: record, "objective": saw_tooth})
    return text


def _parsing_table(candidates: Candidates, values: Mapping[str, Floats], seeds: int) -> str:
    lengths = np.array([min(len(word_list(query)), 12) for query in candidates.queries])
    groups = [(low, high, (lengths >= low) & (lengths <= high)) for low, high in LENGTHS]
    rows = []
    for name, own in values.items():
        beside = "" if name == REFERENCE else against(own.mean(axis=0), values[REFERENCE].mean(axis=0))
        cells = [f"{own[:, mask].mean():.4f}" if mask.any() else "" for _, _, mask in groups]
        rows.append([name, f"{own.mean():.4f}", beside, *cells])
    heads = [f"{low} to {high} words ({mask.sum()})" for low, high, mask in groups]
    table = markdown_table([f"{NDCG_EXP} of the first {DEPTH}", "all", f"against {REFERENCE}", *heads], rows)
    note = f"{len(lengths)} queries, {FOLDS} folds, mean over {seeds} partitions; 95 % intervals by paired bootstrap."
    return f"{table}\n\n{note}"


def read_treebank(path: Path) -> list[tuple[list[str], list[int]]]:
    """Parts of speech and heads of each sentence of a CoNLL-U file (gzip)."""
    sentences: list[tuple[list[str], list[int]]] = []
    tags: list[str] = []
    heads: list[int] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            if len(fields) == 10 and fields[0].isdigit():
                tags.append(fields[3])
                heads.append(int(fields[6]))
            elif not line.strip() and tags:
                sentences.append((tags, heads))
                tags, heads = [], []
    return sentences


def treebank(folder: Path, output: Path, seeds: list[int]) -> str:
    """Unlabelled attachment in short test sentences, from parts of speech; writes treebank.json and treebank.md."""
    train, test = (read_treebank(next(folder.glob(f"{split}.conllu*"))) for split in ("train", "test"))
    short = [(tags, heads) for tags, heads in test if len(tags) <= LONGEST_SENTENCE]
    texts, trees = [tags for tags, _ in train], [heads for _, heads in train]
    supervised, unsupervised = DependencyModel(texts), DependencyModel(texts)
    supervised.fit_supervised(texts, trees)
    unsupervised.fit_likelihood([tags for tags in texts if len(tags) <= LONGEST_SENTENCE], 10)
    systems = {
        "head = the word before": [list(range(len(tags))) for tags, _ in short],
        "head = the word after": [[*range(2, len(tags) + 1), 0] for tags, _ in short],
        REFERENCE: [unsupervised.parse(tags)[0].tolist() for tags, _ in short],
        "supervised, best trees": [supervised.parse(tags)[0].tolist() for tags, _ in short],
        "supervised, minimum-risk trees": [supervised.parse(tags, "mbr")[0].tolist() for tags, _ in short],
    }
    words = sum(len(tags) for tags, _ in short)
    found = {
        name: sum(
            a == b for own, (_, heads) in zip(parses, short, strict=True) for a, b in zip(own, heads, strict=True)
        )
        / words
        for name, parses in systems.items()
    }
    table = markdown_table(
        [f"{len(short)} sentences of up to {LONGEST_SENTENCE} words", "right heads"],
        [[name, f"{100 * value:.1f} %"] for name, value in found.items()],
    )
    save_report(output, "treebank", table, {"sentences": len(short), "attachment": found})
    return table
