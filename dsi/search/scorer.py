"""Scores of the nodes of one tree for a batch of queries, by the fusion that a request asks for. Knows nothing of beams."""

import math
from functools import cached_property

import torch
from torch import Tensor

from docids.tree import DocidTree
from dsi.search.added import AddedScores
from dsi.search.decoder import FastDecoder, TiedDecoder
from dsi.search.near import DocumentScores, nearest_documents
from dsi.search.queries import QueryBatch
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from dsi.trees.bounds import BestBelow, Nearest
from dsi.trees.cells import NearDocuments
from dsi.trees.dense import CentroidScores, DenseScores, KnownScores, NodeScores
from dsi.trees.estimates import EstimatedScores, NodeEstimates

_NEAREST, _PER_ANSWER, _IN = 512, 4, 8192
"""So many documents make the scores of nodes; more if many answers are asked for, or if they are fewer than one in 8,192."""


class TreeScorer:
    """Scores of the nodes of one tree.

    Args:
        tree: the docids.
        decoder: the generator, laid out for search.
        device: of tree and decoder.
    """

    def __init__(self, tree: DocidTree, decoder: FastDecoder | TiedDecoder, device: torch.device) -> None:
        self.tree, self.decoder, self.device = tree, decoder, device
        self.dense = DenseScores(tree, device)
        self.estimates = None
        if isinstance(decoder, TiedDecoder):  # it knows every node by its vector
            self.estimates = NodeEstimates(self.dense, decoder.look_ahead, largest=decoder.score != "softmax path")
        self.occupied = None
        if tree.num_removed:
            self.occupied = self.dense.alive(torch.from_numpy(tree.doc_rows >= 0).to(device))

    @property
    def estimating(self) -> bool:
        """True if the generator estimates the best document below a node, and has no other score of nodes."""
        return self.decoder.score == "estimate"

    def check(self, config: SearchConfig) -> None:
        """Raise ValueError if this generator cannot search in that way."""
        if config.fusion == "estimate" and not self.estimating:
            raise ValueError(
                'fusion "estimate" needs a generator with objective "estimate", this one ranks nodes by '
                f'"{self.decoder.score}"; use fusion "bound" or "paper", or train another one.'
            )
        if self.estimating and config.beta != math.inf:
            raise ValueError(
                f'beta must be inf with a generator whose objective is "estimate", got {config.beta:g}: it has no score of its '
                'own to go on with below level beta; use fusion "estimate" for the generator alone.'
            )
        if self.estimating and config.fusion == "paper" and config.alpha:
            raise ValueError(
                'This generator, with objective "estimate", gives nodes no probabilities, which fusion "paper" with alpha '
                f'{config.alpha:g} adds up; use alpha 0, fusion "bound", or "estimate" for the generator alone.'
            )

    def node_scores(
        self,
        query_embeddings: Tensor,
        config: SearchConfig,
        alive: Tensor | None = None,
        extra_scores: Tensor | None = None,
    ) -> NodeScores | None:
        """Return the dense scores of all nodes; None if they are not used (beta = 0).

        Fusion "paper" scores a node by its centroid, "bound" by the best document below it.

        Args:
            query_embeddings: [batch, dim].
            config: how nodes are scored; ann_temperature divides the dot products.
            alive: [nodes] as in `SearchRequest`. With "bound" and beta = inf, other documents are left out of the maxima, which
                tightens the bounds. With a finite beta the maxima are part of the documents' scores and must not change.
            extra_scores: [batch, documents] in docid order, added to the documents' dot products ("bound" only).

        Raises:
            ValueError: extra_scores with fusion "paper".
        """
        if extra_scores is not None and config.fusion == "paper":
            raise ValueError('extra_scores need fusion "bound" or "estimate", got "paper": centroids have none.')
        if config.beta == 0:
            return None
        if config.fusion == "paper":
            return CentroidScores(query_embeddings / config.ann_temperature, self.dense)
        documents = self.dense.document_scores(query_embeddings)
        if extra_scores is not None:
            documents = documents + extra_scores
        if alive is not None and config.beta == math.inf:
            documents = documents.masked_fill(~alive[self.tree.num_inner :], -torch.inf)
        return KnownScores(self.dense.largest(documents / config.ann_temperature))

    def score(self, batch: QueryBatch, request: SearchRequest) -> ScoredQueries:
        """Return the queries of a batch with the scores of the nodes."""
        config, queries = request.config, self.document_queries(batch, request.config)
        node_scores: NodeScores | None
        if isinstance(self.decoder, TiedDecoder) and self.estimates is not None and config.fusion == "estimate":
            said = self.decoder.read(batch.embeddings, batch.states, batch.mask)
            extra = None if batch.added is None else self._all(batch.added) if self.fixed_shape else batch.added.of
            node_scores = EstimatedScores(
                said.queries, queries, extra, said.size_weights, self.estimates, config.ann_temperature
            )
        elif config.beta == 0:
            node_scores = None
        elif config.fusion == "bound" and config.beta == math.inf and not request.exact:
            node_scores = self._best_below(batch, queries, request)
        else:
            added = None if batch.added is None else self._all(batch.added)
            node_scores = self.node_scores(queries, config, request.alive, added)
        return ScoredQueries(batch.states, batch.mask, node_scores, batch.embeddings)

    def _best_below(self, batch: QueryBatch, queries: Tensor, request: SearchRequest) -> BestBelow:
        """Return the scores of nodes from the nearest documents."""
        temperature = request.config.ann_temperature
        words = max(_NEAREST, _PER_ANSWER * request.k)
        count = max(words, self.tree.num_documents // _IN)
        alive = self.occupied if request.alive is None else request.alive
        allowed = None if alive is None else alive[self.tree.num_inner :]
        looked_at = request.config.looked_at(self.tree.num_documents)
        given = batch.added is not None and batch.added.given is not None
        if given or self.fixed_shape or looked_at >= self.tree.num_documents:
            scores = self.dense.document_scores(queries)
            scores = scores if batch.added is None else scores + self._all(batch.added)
            scores = scores / temperature
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            return BestBelow.of_nearest(Nearest.of_all(scores, count), self.dense, scores)
        visit = DocumentScores(self.dense, queries, batch.added, temperature)
        nearest = nearest_documents(self.near, visit, count, words, int(looked_at), allowed)
        return BestBelow.of_nearest(nearest, self.dense, None, visit)

    @cached_property
    def near(self) -> NearDocuments:
        """Finds documents near queries."""
        return NearDocuments(NodeEstimates(self.dense, 0))

    @property
    def fixed_shape(self) -> bool:
        """Whether no step depends on a value: every level runs even if the beam is empty, as a recorded search must."""
        return self.dense.fixed_shape

    @fixed_shape.setter
    def fixed_shape(self, fixed: bool) -> None:
        self.dense.fixed_shape = fixed

    def _all(self, added: AddedScores) -> Tensor:
        return added.of_all().to(self.device)

    def document_queries(self, batch: QueryBatch, config: SearchConfig) -> Tensor:
        """Return the vectors [batch, dim] that score documents: embeddings, mixed by alpha with the generator's."""
        if not isinstance(self.decoder, TiedDecoder) or not self.estimating or not config.alpha:
            return batch.embeddings
        ranking = self.decoder.generator.ranking
        return torch.lerp(
            batch.embeddings, ranking.queries(batch.embeddings, lexical=config.lexical_weight > 0), config.alpha
        )
