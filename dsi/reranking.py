"""Rerankers applied to what a search found: candidates, `rerank`, look-ahead by a reranker, and rerankers on disk.

Takes the parts of an index that it needs. Knows nothing of retrievers.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docids.lexical import Lexical
from docids.tree import DocidTree
from dsi.documents import DocumentTable
from dsi.manifest import read_manifest
from dsi.rerankers.candidates import Candidates, Reranker, load_reranker
from dsi.rerankers.cross_encoder import CrossEncoderReranker
from dsi.rerankers.features import features_of
from dsi.rerankers.lookahead import Floats, Ints, LookAheadResult, Reward, look_ahead
from dsi.rerankers.puct import PuctConfig
from dsi.search.beam import TreeSearcher
from dsi.search.beams import Answers, SearchResult
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi.search.request import SearchRequest

_CROSS_ENCODER = "cross-encoder:"


def rerank(candidates: Candidates, rerankers: Reranker | Sequence[Reranker]) -> Candidates:
    """The candidates in the order that one or several rerankers give them, applied one after another.

    `exact` stays as the search left it: no other k documents scored better before reranking.

    Args:
        candidates: from `retriever.candidates`.
        rerankers: one, or several in order; `dsi.load_rerankers` reads those saved beside an index.

    Returns:
        New candidates with the scores of the last reranker; `.hits()` and `.as_run()` make them answers.

    Raises:
        TypeError: candidates or a reranker of another type.
        ValueError: a reranker reads a feature that the candidates do not have.

    Example:
        >>> import dsi
        >>> from dsi.rerankers.learned import LinearReranker
        >>> retriever = dsi.GenerativeRetriever.from_pretrained("RUN")
        >>> candidates = retriever.candidates(["which capitals are on the danube"], k=20)
        >>> by_words = dsi.rerank(candidates, LinearReranker({"score": 1.0, "title words": 2.0}))
        >>> [hit.rank for hit in by_words.hits()[0][:3]]
        [1, 2, 3]
    """
    if not isinstance(candidates, Candidates):
        raise TypeError(
            f"rerank() takes the Candidates that retriever.candidates(…) returns, got {type(candidates).__name__}."
        )
    several = rerankers if isinstance(rerankers, Sequence) and not isinstance(rerankers, str) else [rerankers]
    for reranker in [_checked(own, "rerankers") for own in several]:
        candidates = reranker.rerank(candidates)
    return candidates


def _checked(reranker: object, name: str) -> Reranker:
    if not isinstance(reranker, Reranker):
        raise TypeError(
            f"{name} must be a Reranker, or a list of them for dsi.rerank, got {reranker!r} of type "
            f"{type(reranker).__name__}; dsi.load_rerankers(RUN, [NAME]) reads saved ones."
        )
    return reranker


def candidates_of(
    tree: DocidTree,
    documents: DocumentTable,
    searcher: TreeSearcher,
    lexical: Lexical | None,
    encoded: EncodedQueries,
    result: SearchResult,
    ann_temperature: float,
    *,
    features: bool = True,
) -> Candidates:
    """The answers of a search as rerankers read them.

    Args:
        tree: the docids.
        documents: the document table.
        searcher: decoder and centroids, for the features.
        lexical: BM25 or learned sparse vectors, if the index has them.
        encoded: the queries.
        result: their answers, rows in the order of the queries.
        ann_temperature: divides the centroids' scores in the features.
        features: compute them; takes another pass of the decoder over the answers.
    """
    positions = result.positions.numpy(force=True)  # [queries, k]
    valid = positions >= 0
    found = np.maximum(positions, 0)
    rows = tree.doc_rows[found]

    def lists(column: str) -> list[list[str]]:
        values = zip(documents.values_of(column, rows), valid.sum(axis=1).tolist(), strict=True)
        return [[str(value) for value in own[:count]] for own, count in values]

    titles = lists("title")
    computed, names = np.zeros((*positions.shape, 0), dtype=np.float32), tuple[str, ...]()
    if features:
        computed, names = features_of(searcher, lexical, encoded, result, titles, ann_temperature)
    _, digits = tree.paths(found.ravel())  # [queries * k, depth]
    return Candidates(
        queries=encoded.texts,
        doc_ids=lists("doc_id"),
        titles=titles,
        scores=result.scores.double().numpy(force=True),
        digits=np.where(valid[:, :, None], digits.reshape(*positions.shape, digits.shape[1]), -1),
        query_embeddings=encoded.embeddings.float().numpy(),
        embeddings=tree.embeddings[found] * valid[:, :, None],
        features=computed,
        names=names,
        query_ids=encoded.query_ids,
        exact=result.exact.numpy(force=True),
        texts_of=documents.texts_of if documents.has_texts else None,
    )


def look_ahead_search(
    documents: DocumentTable,
    searcher: TreeSearcher,
    lexical: Lexical | None,
    batches: Iterable[QueryBatch],
    request: SearchRequest,
    ann_temperature: float,
) -> LookAheadResult:
    """The documents of highest reward that Monte Carlo tree search finds on the docid tree (`method="mcts"`).

    Args:
        documents: the document table.
        searcher: the tree and the decoder, whose probabilities guide the search.
        lexical: BM25 or learned sparse vectors, if the index has them; for the features that the reward reads.
        batches: the queries, with what is added to their dense scores; every query once.
        request: k, simulations, filter and reward: a reranker that scores single documents, or None for the dense and
            lexical score.
        ann_temperature: as in `candidates_of`.

    Returns:
        Results in the order of the queries.

    Raises:
        TypeError: the reward is no reranker.
    """
    reranker = None if request.reward is None else _checked(request.reward, "reward")
    config = PuctConfig(request.simulations, exploration=2.0, backup="max", unvisited="parent", once=True)
    rows, parts = [], []
    for batch in batches:
        if reranker is None:
            reward = _dense_reward(searcher, batch, request)
        else:
            reward = _reranker_reward(documents, searcher, lexical, batch, reranker, ann_temperature)
        places = request.k * searcher.tree.most_places
        found = look_ahead(searcher, batch, places, reward, config, request.alive)
        nothing = Answers.empty(len(found.scores), request.k, found.scores)
        best = nothing.merge(found.positions, found.scores, found.generative, searcher.doc_rows)
        parts.append(dataclasses.replace(found, **vars(best)))
        rows.append(batch.rows)
    back = torch.cat(rows).argsort()
    names = (field.name for field in dataclasses.fields(LookAheadResult))
    return LookAheadResult(*(torch.cat([getattr(part, name) for part in parts])[back] for name in names))


def _dense_reward(searcher: TreeSearcher, batch: QueryBatch, request: SearchRequest) -> Reward:
    config = dataclasses.replace(request.config, fusion="bound", beta=math.inf)
    queries = searcher.document_queries(batch, config)
    added = None if batch.added is None else batch.added.of_all().to(queries.device)
    scores = searcher.node_scores(queries, config, None, added)
    assert scores is not None  # beta is not 0
    leaves = scores.of_queries["scores"][:, searcher.tree.num_inner :]  # [batch, documents]
    known = leaves.numpy(force=True) * config.ann_temperature
    return lambda queries, positions: known[queries, positions]


def _reranker_reward(
    documents: DocumentTable,
    searcher: TreeSearcher,
    lexical: Lexical | None,
    batch: QueryBatch,
    reranker: Reranker,
    ann_temperature: float,
) -> Reward:
    parts = searcher.tree, documents, searcher, lexical

    def reward(queries: Ints, positions: Ints) -> Floats:
        own = batch.select(torch.from_numpy(queries))._replace(rows=torch.arange(len(queries)))
        encoded = EncodedQueries([str(number) for number in range(len(queries))], [own])
        nothing = torch.zeros(len(queries), 1)
        single = SearchResult(torch.from_numpy(positions)[:, None], nothing, nothing[:, 0].bool(), nothing)
        candidates = candidates_of(*parts, encoded, single, ann_temperature, features=reranker.uses_features)
        return np.asarray(reranker.score(candidates)[:, 0])

    return reward


def binding(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a reranker saved beside an index is bound to: the index's encoder and generator."""
    files = {name: value for name, value in manifest["files"].items() if name.startswith("generator/")}
    return {"encoder": manifest["fingerprints"]["encoder"], "generator": files}


def reranker_folder(index: str | Path, name: str) -> Path:
    """Where a reranker lies beside an index.

    Raises:
        ValueError: the name is no plain folder name.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"The name of a reranker must be a plain folder name, got {name!r}.")
    return Path(index) / "rerank" / name


def save_reranker(reranker: Reranker, index: str | Path, name: str) -> Path:
    """Write a reranker beside the index that it was trained on, in one step; returns its folder, RUN/rerank/NAME.

    Raises:
        FileNotFoundError: there is no index.
        ValueError: the name is no plain folder name.
    """
    folder = reranker_folder(index, name)
    reranker.save(folder, binding(read_manifest(Path(index))))
    return folder


def load_rerankers(index: str | Path, names: str | Sequence[str], *, device: str | None = None) -> list[Reranker]:
    """Rerankers by name, for `dsi.rerank`.

    Args:
        index: the index's folder, RUN.
        names: one name or several: of RUN/rerank, or "cross-encoder:MODEL" with a Hub name or a folder.
        device: of cross-encoders; the best available by default.

    Raises:
        FileNotFoundError: there is no such reranker or model.
        ValueError: it was trained for another encoder or generator, the model does not score pairs, or a bad device.

    Example:
        >>> import dsi
        >>> from dsi.rerankers.diversity import Pyversity
        >>> from dsi.reranking import save_reranker
        >>> folder = save_reranker(Pyversity("mmr"), "RUN", "mmr")
        >>> dsi.load_rerankers("RUN", ["mmr"])[0].strategy
        'mmr'
    """
    bound_to = binding(read_manifest(Path(index)))
    wanted = [names] if isinstance(names, str) else names
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise TypeError(f"names must be the name of a reranker or a list of names, got {names!r}.")

    def load(name: str) -> Reranker:
        if name.startswith(_CROSS_ENCODER):
            return CrossEncoderReranker(name.removeprefix(_CROSS_ENCODER), device=device)
        return load_reranker(reranker_folder(index, name), bound_to).to(device)

    return [load(name) for name in wanted]
