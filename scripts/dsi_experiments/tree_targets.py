"""Targets and beams of tree models over a whole docid tree, for batches of instances (Zhuo et al. 2020).

Leaves are documents (labels). Values of documents come in docid order, [batch, documents]. Values of nodes are [batch, nodes],
inner nodes first, then documents, as `DocidTree` numbers them. Knows no model and no loss.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.docids.tree import DocidTree
from dsi_experiments.objectives.rows import ObjectiveRow


class TreeTargets:
    """The targets and beams of one tree."""

    def __init__(self, tree: DocidTree, device: torch.device | str = "cpu") -> None:
        self.tree = tree
        first = torch.from_numpy(tree.first_child).long().to(device)
        count = torch.from_numpy(tree.num_children).long().to(device)
        digits = torch.arange(max(tree.fan_out), device=device)
        self.exists = digits < count[:, None]  # [inner nodes, largest fan-out]
        self.children = (first[:, None] + digits).where(self.exists, first[:, None])  # missing ones repeat the first
        self._parents = torch.from_numpy(tree.parents).long().to(device)

    @cached_property
    def nodes_by_level(self) -> list[Tensor]:
        """The nodes (inner nodes and documents) among which each level chooses, the root's children first."""
        return [self.children[level][self.exists[level]] for level in self.tree.levels]

    @cached_property
    def depths(self) -> Tensor:
        """[inner nodes] the level at which each one's children are chosen."""
        sizes = torch.tensor([level.stop - level.start for level in self.tree.levels], device=self.children.device)
        return torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)

    @cached_property
    def level_sizes(self) -> Tensor:
        """[nodes] how many nodes each node's level has; 1 for the root."""
        sizes = torch.ones(self.tree.num_inner + self.tree.num_places, device=self.children.device)
        for nodes in self.nodes_by_level:
            sizes[nodes] = float(len(nodes))
        return sizes

    @cached_property
    def family_sizes(self) -> Tensor:
        """[nodes] how many children each node's parent has; 1 for the root."""
        sizes = torch.ones_like(self.level_sizes)
        sizes[self.children[self.exists]] = self.exists.sum(dim=1).repeat_interleave(self.exists.sum(dim=1)).float()
        return sizes

    def any_below(self, relevant: Tensor) -> Tensor:
        """[batch, nodes] z (eq. 1): 1 where a relevant document is below; relevant: [batch, documents] of 0 and 1."""
        return self.best_below(relevant)

    def best_below(self, values: Tensor) -> Tensor:
        """[batch, nodes] the largest value of the documents below; of probabilities: p*, the optimal score (Proposition 1)."""
        return self.fold(values, lambda below: below.amax(dim=2), -torch.inf)

    def fold(self, leaves: Tensor, combine: Callable[[Tensor], Tensor], missing: float) -> Tensor:
        """Values of all nodes from those of the documents: `combine` turns [batch, n, fan-out] children into [batch, n].

        Children that a node does not have count as `missing`.
        """
        return self._upwards(leaves, lambda _, below: combine(below), missing)

    def best_relevant(self, probabilities: Tensor, relevant: Tensor) -> Tensor:
        """[batch, nodes] z* (eq. 13): the relevance of the most probable document below; among equals a relevant one counts."""
        return self.estimated(self.best_below(probabilities), relevant)

    def estimated(self, scores: Tensor, relevant: Tensor) -> Tensor:
        """[batch, nodes] zhat (eq. 15): the target of the child that scores best; ties go to the positive.

        Computed from the documents upwards; 1 where greedy descent from the node ends in a relevant document. Training
        on docids does the same over some families (`BestChildTargets`); over all nodes this traversal is six times as
        fast. `scores`: [batch, nodes] without gradient; `relevant`: [batch, documents].
        """

        def of_best_child(children: Tensor, below: Tensor) -> Tensor:
            return target_of_best_child(scores[:, children], below)

        return self._upwards(relevant, of_best_child, -torch.inf)

    def path_sums(self, values: Tensor) -> Tensor:
        """[batch, nodes] the sum of the values along the path from the root, which counts as 0."""
        sums = values.clone()
        sums[:, 0] = 0.0
        for nodes in self.nodes_by_level:
            sums = sums.index_copy(1, nodes, sums[:, nodes] + sums[:, self._parents[nodes]])
        return sums

    def sibling_log_softmax(self, logits: Tensor) -> Tensor:
        """[batch, nodes] log softmax over the children of each node; 0 at the root."""
        total = torch.zeros_like(logits)
        total[:, : self.tree.num_inner] = self.of_children(logits, -torch.inf).logsumexp(dim=2)
        log_p = logits - total[:, self._parents.clamp(min=0)]
        log_p[:, 0] = 0.0
        return log_p

    def below_parents(self, chosen: Tensor) -> Tensor:
        """[batch, nodes] True at the children of chosen inner nodes [batch, nodes]."""
        below = chosen[:, self._parents.clamp(min=0)]
        below[:, 0] = False
        return below

    def of_children(self, values: Tensor, missing: float | bool) -> Tensor:
        """[batch, inner nodes, largest fan-out] the values of each inner node's children, `missing` where it has fewer."""
        return values[:, self.children].masked_fill_(~self.exists, missing)

    def _upwards(self, leaves: Tensor, combine: Callable[[Tensor, Tensor], Tensor], missing: float) -> Tensor:
        """Values of all nodes: each inner one is `combine`d from its children [level's nodes, fan-out] and their values."""
        num_inner = self.tree.num_inner
        nodes = torch.cat([leaves.new_zeros(len(leaves), num_inner), leaves], dim=1)
        for level in reversed(self.tree.levels):
            children = self.children[level]
            below = nodes[:, children].masked_fill_(~self.exists[level], missing)
            nodes[:, level] = combine(children, below)
        return nodes

    def beams(self, scores: Tensor, beam_width: int, *, random_ties: bool = False) -> Iterator[Tensor]:
        """The candidates of every level, [batch, n], best first, -1 past the end: the children of the beam above (eq. 3).

        The beam is the best `beam_width` inner nodes of a level by their own score.
        """
        num_inner = self.tree.num_inner
        beam = torch.zeros(len(scores), 1, dtype=torch.long, device=scores.device)
        while beam.shape[1]:
            parents = beam.clamp(min=0)
            alive = self.exists[parents] & (beam >= 0)[:, :, None]  # [batch, beam, fan-out]
            nodes = self.children[parents].masked_fill(~alive, -1).flatten(1)
            if random_ties:
                nodes = nodes.gather(1, torch.rand(nodes.shape, device=nodes.device).argsort(dim=1))
            own = scores.gather(1, nodes.clamp(min=0)).masked_fill(nodes < 0, -torch.inf)
            nodes = nodes.gather(1, own.argsort(dim=1, descending=True, stable=True))
            yield nodes
            inner = (nodes >= 0) & (nodes < num_inner)
            first = inner.float().argsort(dim=1, descending=True, stable=True)[:, :beam_width]
            beam = nodes.gather(1, first).masked_fill(~inner.gather(1, first), -1)
            beam = beam[:, (beam >= 0).any(dim=0)]

    def search(self, scores: Tensor, k: int, beam_width: int, *, random_ties: bool = False) -> Tensor:
        """[batch, k] docid positions of the k best documents that the beam reaches, by their own score; -1 past the end.

        There are fewer columns if the tree has fewer than k documents.
        """
        found = [
            nodes.masked_fill(nodes < self.tree.num_inner, -1)
            for nodes in self.beams(scores, beam_width, random_ties=random_ties)
        ]
        nodes = torch.cat(found, dim=1)
        own = scores.gather(1, nodes.clamp(min=0)).masked_fill(nodes < 0, -torch.inf)
        best = own.argsort(dim=1, descending=True, stable=True)[:, : min(k, self.tree.num_places)]
        nodes = nodes.gather(1, best)
        return (nodes - self.tree.num_inner).masked_fill(nodes < 0, -1)


def target_of_best_child(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the target of the child that scores best, [..., n]; among equal scores the largest target counts.

    `scores` and `targets`: [..., n, fan-out], -inf without a child.
    """
    worse = scores < scores.amax(dim=-1, keepdim=True)
    return targets.masked_fill(worse, -torch.inf).amax(dim=-1)  # Zhuo et al. 2020, eq. 15


def ranking_scores(targets: TreeTargets, logits: Tensor, score: str) -> Tensor:
    """[batch, nodes] what search ranks nodes by, from their logits [batch, nodes]."""
    if score == "node":
        return logits
    return targets.path_sums(F.logsigmoid(logits) if score == "sigmoid path" else targets.sibling_log_softmax(logits))


def candidate_nodes(
    targets: TreeTargets, row: ObjectiveRow, logits: Tensor, z: Tensor, beam_width: int, random_nodes: int
) -> Tensor:
    """[batch, nodes] True at the nodes that are trained.

    `z`: [batch, nodes] 1 where a relevant document is below; `random_nodes`: of each level, on average.
    """
    chosen = torch.zeros_like(z, dtype=torch.bool)
    if "path" in row.candidates:
        chosen |= targets.below_parents(z > 0)
    if "beam" in row.candidates:
        for nodes in targets.beams(ranking_scores(targets, logits, row.score), beam_width):
            rows = torch.arange(len(nodes), device=nodes.device)[:, None].expand_as(nodes)
            chosen[rows[nodes >= 0], nodes[nodes >= 0]] = True
    if "random" in row.candidates:
        chosen |= torch.rand_like(logits) < (random_nodes / targets.level_sizes)
    if row.forces_relevant:
        chosen |= z > 0
    chosen[:, 0] = False  # the root is not chosen by anything
    return chosen
