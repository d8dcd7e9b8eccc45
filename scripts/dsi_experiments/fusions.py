"""Which fusion of a decoder and vectors is best, with all documents scored: `dsi reproduce fusions`.

A decoder reads every inner node of the tree once a query; from its log-probabilities and the vectors any fusion follows. So
alpha and temperature are chosen on dev queries from stored scores, without a search and without a beam. P_ANN of a node is the
paper's (a softmax over siblings of products with their centroids), that of the best document below each sibling, or the share
of the documents below it in one softmax over all documents, which at alpha 0 is flat dense search. Knows no training.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.eval.protocol import overlap_splits
from dsi.eval.tables import markdown_table
from dsi.generator.families import FamilyTree
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi_experiments.laboratory import SPLIT, Laboratory
from dsi_experiments.report import save_report
from dsi_experiments.rerankers.lists import bootstrap_interval
from dsi_experiments.tables import Row

ALPHAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
ANN = ("centroids", "best below", "one softmax")
FUSIONS = ("product", "mixture of nodes", "mixture of documents")
PAPERS = (0.7, 1.0)
"""The paper's alpha and temperature (Wang et al. 2022, section 4.5.3 and eq. 10)."""
_QUERIES = 16


class Siblings(NamedTuple):
    """The children of all inner nodes as segments of the nodes 1 to the last.

    Attributes:
        starts: [inner] where each begins.
        counts: [inner] how many there are.
    """

    starts: Ints
    counts: Ints

    @classmethod
    def of(cls, tree: DocidTree) -> "Siblings":
        """Return those of a tree."""
        order = np.argsort(tree.first_child)
        return cls(tree.first_child[order] - 1, tree.num_children[order])

    def log_softmax(self, scores: Floats) -> Floats:
        """[queries, nodes] of scores [queries, nodes] among siblings; the root has 0."""
        own = scores[:, 1:]
        spread = lambda values: np.repeat(values, self.counts, axis=1)  # noqa: E731
        largest = spread(np.maximum.reduceat(own, self.starts, axis=1))
        shares = np.exp(own - largest)
        found = own - largest - np.log(spread(np.add.reduceat(shares, self.starts, axis=1)))
        return np.concatenate([np.zeros_like(scores[:, :1]), found], axis=1)


def path_sums(tree: DocidTree, scores: Floats) -> Floats:
    """[queries, places] the sums of node scores [queries, nodes] along the path to each document."""
    total = scores.copy()
    for level in tree.levels[1:]:
        total[:, level] += total[:, tree.parents[level]]
    return total[:, tree.num_inner :] + total[:, tree.parents[tree.num_inner :]]


def ann_scores(tree: DocidTree, siblings: Siblings, embeddings: Floats, kind: str, temperature: float) -> Floats:
    """[queries, nodes] log P_ANN of each node among its siblings, by one of `ANN`."""
    documents = embeddings @ tree.embeddings[:].T / temperature
    if kind == "centroids":
        inner = embeddings @ tree.centroids[:].T / temperature
    else:
        join = np.maximum.reduce if kind == "best below" else np.logaddexp.reduce
        ranges = zip(tree.doc_start, tree.doc_end, strict=True)
        inner = np.stack([join(documents[:, start:end], axis=1) for start, end in ranges], axis=1)
    return siblings.log_softmax(np.concatenate([inner, documents], axis=1))


@torch.no_grad()
def generator_scores(generator: Any, tree: DocidTree, siblings: Siblings, encoded: EncodedQueries) -> Floats:
    """[queries, nodes] the decoder's log-probability of each node among its siblings."""
    every = torch.arange(tree.num_inner)[None]
    families = FamilyTree(tree, torch.device("cpu")).pack(every)
    children = families.children[0].numpy()  # [inner, largest fan-out]
    found = np.zeros((encoded.count, tree.num_inner + tree.num_places), dtype=np.float32)
    for batch in (part for whole in encoded.batches for part in _parts(whole)):
        size = len(batch.numbers)
        shared = (own.expand(size, *own.shape[1:]) for own in (families.tokens, families.depths, families.sees))
        logits = generator(torch.from_numpy(batch.states).float(), torch.from_numpy(batch.mask), *shared)["logits"]
        own = np.zeros((size, found.shape[1]), dtype=np.float32)
        own[:, children[children >= 0]] = logits.float().numpy()[:, children >= 0]
        found[batch.numbers] = siblings.log_softmax(own)
    return found


def _parts(batch: QueryBatch) -> list[QueryBatch]:
    starts = range(0, len(batch.numbers), _QUERIES)
    return [batch.select(np.arange(start, min(start + _QUERIES, len(batch.numbers)))) for start in starts]


def fused(tree: DocidTree, fusion: str, generator: Floats, encoder: Floats, alpha: float) -> Floats:
    """[queries, places] the scores of all documents, by one of `FUSIONS` of node scores [queries, nodes]."""
    if fusion == "product":
        return path_sums(tree, alpha * generator + (1 - alpha) * encoder)
    with np.errstate(divide="ignore"):
        weights = np.log(np.array([alpha, 1 - alpha], dtype=np.float32))
    if fusion == "mixture of nodes":
        return path_sums(tree, np.logaddexp(generator + weights[0], encoder + weights[1]))
    sums = path_sums(tree, generator), path_sums(tree, encoder)
    return np.logaddexp(sums[0] + weights[0], sums[1] + weights[1])


def ranks(scores: Floats, relevant: Sequence[Ints]) -> Ints:
    """[queries] the rank, from 1, of each query's best relevant document; ties go by docid order."""
    found = np.zeros(len(scores), dtype=np.int64)
    for row, places in enumerate(relevant):
        best = places[np.argmax(scores[row, places])]
        ahead = (scores[row] > scores[row, best]).sum() + (scores[row, :best] == scores[row, best]).sum()
        found[row] = 1 + ahead
    return found


class Judged(NamedTuple):
    """The queries of a split with their scores.

    Attributes:
        query_ids: in order.
        embeddings: [queries, dim].
        generator: [queries, nodes] log-probabilities by the decoder.
        relevant: docid positions of each query's relevant documents.
    """

    query_ids: list[str]
    embeddings: Floats
    generator: Floats
    relevant: list[Ints]


def _judged(laboratory: Laboratory, index: Any, siblings: Siblings, split: str) -> Judged:
    own, qrels = index.retriever.snapshot, laboratory.collection.qrels[split]
    encoded = index.encode(split, laboratory.collection.query_texts(split))
    relevant = []
    for query_id in encoded.query_ids:
        doc_ids = [doc_id for doc_id, grade in qrels[query_id].items() if grade > 0]
        relevant.append(own.tree.positions[np.array(own.documents.rows_of(doc_ids, "doc_ids"))])
    generator = generator_scores(own.generator, own.tree, siblings, encoded)
    return Judged(encoded.query_ids, encoded.embeddings, generator, relevant)


def reproduce(laboratory: Laboratory, seed: int) -> str:
    """Choose alpha and temperature of each fusion on dev, measure it on test, write fusions.json and fusions.md."""
    config = laboratory.config(Row("", "decoder"), seed)
    index = laboratory.index(config)
    tree = index.retriever.snapshot.tree
    siblings = Siblings.of(tree)
    dev, test = (_judged(laboratory, index, siblings, split) for split in ("dev", SPLIT))
    splits = overlap_splits(laboratory.collection.qrels[SPLIT], laboratory.collection.overlap_documents(SPLIT))
    rows, lines = [], []
    of_dense = ranks(_ann_documents(tree, siblings, test, "one softmax", 1.0), test.relevant)
    of_decoder = ranks(path_sums(tree, test.generator), test.relevant)
    for name, found in (("flat dense search", of_dense), ("the decoder alone", of_decoder)):
        rows.append({"row": name, "ranks": found.tolist()})
        lines.append(
            [name, "", "", _hits(found, test, splits, "Total"), _hits(found, test, splits, "No Overlap"), "", ""]
        )
    for kind in ANN:
        best, alone = _chosen(tree, siblings, dev, kind)
        (temperature,) = alone
        of_vectors = ranks(_ann_documents(tree, siblings, test, kind, temperature), test.relevant)
        rows.append({"row": f"{kind}, alpha 0", "temperature": temperature, "ranks": of_vectors.tolist()})
        hits = [_hits(of_vectors, test, splits, split) for split in ("Total", "No Overlap")]
        lines.append([f"{kind}, alpha 0", "0", f"{temperature:g}", *hits, "", _beside(of_vectors, of_dense)])
        tried = [(fusion, fusion, *best[fusion]) for fusion in FUSIONS]
        if kind == ANN[0]:
            tried.insert(0, ("product, the paper's setting", FUSIONS[0], *PAPERS))
        for name, fusion, alpha, temperature in tried:
            encoder = ann_scores(tree, siblings, test.embeddings, kind, temperature)
            found = ranks(fused(tree, fusion, test.generator, encoder, alpha), test.relevant)
            settings = {"alpha": alpha, "temperature": temperature}
            rows.append({"row": f"{kind}, {name}", **settings, "ranks": found.tolist()})
            hits = [_hits(found, test, splits, split) for split in ("Total", "No Overlap")]
            beside = [_beside(found, of_vectors), _beside(found, of_dense)]
            lines.append([f"{kind}, {name}", f"{alpha:g}", f"{temperature:g}", *hits, *beside])
    columns = ["P_ANN, fusion", "alpha", "temperature", f"Total ({len(test.query_ids):,})"]
    columns += [f"No Overlap ({len(splits['No Overlap']):,})", "Hit@1 above alpha 0", "Hit@1 above flat dense"]
    text = markdown_table(columns, lines)
    note = (
        f"Hit@1 / Hit@10 in percent, all documents scored, seed {seed}; alpha and temperature chosen on {len(dev.query_ids)} "
        "dev queries by RR@10, but for the paper's. Differences in points with 95 % intervals, paired bootstrap over queries."
    )
    save_report(laboratory.output, "fusions", f"{text}\n\n{note}", {"query_ids": test.query_ids, "rows": rows})
    return text


def _ann_documents(tree: DocidTree, siblings: Siblings, judged: Judged, kind: str, temperature: float) -> Floats:
    return path_sums(tree, ann_scores(tree, siblings, judged.embeddings, kind, temperature))


def _chosen(
    tree: DocidTree, siblings: Siblings, dev: Judged, kind: str
) -> tuple[dict[str, tuple[float, float]], tuple[float]]:
    """Return {fusion: alpha and temperature} with the best RR@10 on dev, and the best temperature at alpha 0."""
    best: dict[str, tuple[float, float, float]] = {}
    alone = (-1.0, 1.0)
    for temperature in TEMPERATURES:
        encoder = ann_scores(tree, siblings, dev.embeddings, kind, temperature)
        for fusion, alpha in product(FUSIONS, ALPHAS):
            value = _rr(ranks(fused(tree, fusion, dev.generator, encoder, alpha), dev.relevant))
            if value > best.get(fusion, (-1.0,))[0]:
                best[fusion] = value, alpha, temperature
            if alpha == 0 and value > alone[0]:
                alone = value, temperature
    return {fusion: own[1:] for fusion, own in best.items()}, alone[1:]


def _rr(found: Ints) -> float:
    return float(np.where(found <= 10, 1 / found, 0).mean())


def _hits(found: Ints, judged: Judged, splits: Mapping[str, Sequence[str]], split: str) -> str:
    wanted = set(splits[split])
    own = found[[query_id in wanted for query_id in judged.query_ids]]
    return " / ".join(f"{100 * (own <= k).mean():.2f}" for k in (1, 10)) if len(own) else "–"


def _beside(found: Ints, other: Ints) -> str:
    """Return the difference of Hit@1 in points, with its 95 % interval."""
    a, b = ({str(n): 100.0 * (rank == 1) for n, rank in enumerate(own)} for own in (found, other))
    difference, low, high = bootstrap_interval(a, b)
    return f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]"
