"""The stages after the beam, applied to a search's answers; and search by what a stage says."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dsi.index import read_manifest
from dsi.rerank.candidates import Candidates, Stage, load_stage
from dsi.rerank.features import features_of
from dsi.rerank.lookahead import Floats, Ints, LookedAhead, Reward, look_ahead
from dsi.rerank.puct import PuctConfig
from dsi.search.beam import SearchResult
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi.search.settings import SearchConfig

if TYPE_CHECKING:
    from dsi.retriever import GenerativeRetriever


def candidates_of(
    retriever: "GenerativeRetriever", encoded: EncodedQueries, result: SearchResult, *, features: bool = True
) -> Candidates:
    """The answers of a search as stages see them.

    Args:
        retriever: that gave them.
        encoded: the queries.
        result: the answers, rows in the order of the queries.
        features: compute them: one more pass of the decoder over the answers.
    """
    tree = retriever.tree
    positions = result.positions.numpy()
    there = positions >= 0
    rows = tree.doc_rows[np.maximum(positions, 0)]

    def lists(column: str) -> list[list[str]]:
        return [
            [str(value) for value in own[:count]]
            for own, count in zip(retriever.table.values_of(column, rows), there.sum(axis=1).tolist(), strict=True)
        ]

    titles = lists("title")
    computed, names = np.zeros((*positions.shape, 0), dtype=np.float32), tuple[str, ...]()
    if features:
        temperature = retriever.settings.ann_temperature
        computed, names = features_of(retriever.searcher, retriever.lexical, encoded, result, titles, temperature)
    _, digits = tree.paths(np.maximum(positions, 0).ravel())
    return Candidates(
        queries=encoded.texts,
        doc_ids=lists("doc_id"),
        titles=titles,
        scores=result.scores.double().numpy(),
        digits=np.where(there[:, :, None], digits.reshape(*positions.shape, -1), -1),
        query_embeddings=encoded.embeddings.float().numpy(),
        embeddings=tree.embeddings[np.maximum(positions, 0)] * there[:, :, None],
        features=computed,
        names=names,
    )


def reranked(
    retriever: "GenerativeRetriever", encoded: EncodedQueries, result: SearchResult, stages: Sequence[Stage]
) -> SearchResult:
    """A search's answers in the order that the stages give them one after another; scores are those of the last stage."""
    if not stages:
        return result
    candidates = candidates_of(retriever, encoded, result, features=any(stage.uses_features for stage in stages))
    for stage in stages:
        candidates = stage.run(candidates)
    places = torch.from_numpy(candidates.places)
    positions, generative = (own.gather(1, places) for own in (result.positions, result.generative))
    scores = torch.from_numpy(candidates.scores).float()
    return dataclasses.replace(result, positions=positions, generative=generative, scores=scores)


def looked_ahead(
    retriever: "GenerativeRetriever",
    batches: Iterable[QueryBatch],
    k: int,
    config: SearchConfig,
    alive: Tensor | None,
    search: str,
    simulations: int,
    stage: Stage | None,
) -> SearchResult:
    """Answers by a reward of documents, found by look-ahead on the trie.

    Args:
        retriever: that is asked.
        batches: the queries.
        k: documents a query.
        config: whose `ann_temperature` divides the dense scores.
        alive: [nodes] True where an answer may be; everywhere without it.
        search: its name, "mcts".
        simulations: a query.
        stage: whose scores of single documents are the reward; z.e_d + w BM25 without it.

    Raises:
        ValueError: a search of another name.
    """
    if search != "mcts":
        raise ValueError(f"search must be one of beam, mcts, got {search!r}.")
    rows, parts = [], []
    for batch in batches:
        reward = _dense_reward(retriever, batch, config) if stage is None else _stage_reward(retriever, batch, stage)
        settings = PuctConfig(simulations, exploration=2.0, backup="max", unvisited="parent", once=True)
        parts.append(look_ahead(retriever.searcher, batch, k, reward, settings, alive))
        rows.append(batch.rows)
    back = torch.cat(rows).argsort()
    fields = (
        torch.cat([getattr(part, field.name) for part in parts])[back] for field in dataclasses.fields(LookedAhead)
    )
    return LookedAhead(*fields)


def _dense_reward(retriever: "GenerativeRetriever", batch: QueryBatch, config: SearchConfig) -> Reward:
    dense = dataclasses.replace(config, fusion="bound", beta=math.inf)
    scores = retriever.searcher.node_scores(batch.embeddings, dense, None, batch.extra_scores)
    assert scores is not None  # beta is not 0
    known = scores.of_queries[:, retriever.tree.num_inner :].cpu().numpy() * config.ann_temperature
    return lambda queries, positions: known[queries, positions]


def _stage_reward(retriever: "GenerativeRetriever", batch: QueryBatch, stage: Stage) -> Reward:
    def reward(queries: Ints, positions: Ints) -> Floats:
        own = batch.select(torch.from_numpy(queries))._replace(rows=torch.arange(len(queries)))
        found = torch.from_numpy(positions)[:, None]
        nothing = torch.zeros(found.shape)
        single = SearchResult(found, nothing, nothing[:, 0].bool(), nothing)
        encoded = EncodedQueries(len(queries), [own])
        candidates = candidates_of(retriever, encoded, single, features=stage.uses_features)
        return np.asarray(stage.rerank(candidates)[:, 0])

    return reward


def binding(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a stage that is saved beside an index is bound to: its encoder and its generator."""
    files = {name: value for name, value in manifest["files"].items() if name.startswith("generator/")}
    return {"encoder": manifest["fingerprints"]["encoder"], "generator": files}


def stage_folder(index: Path, name: str) -> Path:
    """Where a stage lies beside an index.

    Raises:
        ValueError: the name is no plain folder name.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"The name of a stage must be a plain folder name, got {name!r}.")
    return index / "rerank" / name


def load_stages(index: str | Path, names: Sequence[str]) -> list[Stage]:
    """Stages that were saved beside an index, to be given to `search(…, rerank=…)`.

    Raises:
        FileNotFoundError: no such stage there.
        ValueError: it was trained for another encoder or generator.
    """
    bound_to = binding(read_manifest(Path(index)))
    return [load_stage(stage_folder(Path(index), name), bound_to) for name in names]
