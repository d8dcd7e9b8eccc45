"""Docids, an objective, generators and fusions of a user's own, as `dsi.train` takes them."""

import torch

from dsi.docids.schemes import Docids
from dsi.generator.nodes import NodeGenerator
from dsi.generator.objectives import CrossEntropy


def first_letters(documents):
    """A path of two numbers a document: its first letter, and how many words it has."""
    return Docids.from_paths([[ord(text[0]), len(text.split())] for text in documents.texts])


class Halved(CrossEntropy):
    """Half of the cross-entropy."""

    def loss(self, model, batch, done):
        """Return it."""
        return super().loss(model, batch, done) / 2


class ByExample(CrossEntropy):
    """A loss for each example."""

    def loss(self, model, batch, done):
        """Return several numbers."""
        return super().loss(model, batch, done).expand(2)


class Constant(CrossEntropy):
    """A loss that nothing can lower."""

    def loss(self, model, batch, done):
        """Return it without its gradient."""
        return super().loss(model, batch, done).detach()


class Endless(CrossEntropy):
    """A loss that is no number."""

    def loss(self, model, batch, done):
        """Return it."""
        return super().loss(model, batch, done) * float("nan")


class OfBatches(CrossEntropy):
    """A loss of other arguments."""

    def loss(self, batch):
        """Return nothing."""


class ByNode(NodeGenerator):
    """A vector a node, compared with the mean state of the text."""

    def __init__(self, config):
        super().__init__(config)
        self.vectors = torch.nn.Embedding(config.nodes, config.d_model)
        torch.nn.init.normal_(self.vectors.weight, std=0.1)

    def log_probs(self, queries, nodes):
        """Return the products of the mean state and the children's vectors."""
        return torch.einsum("bd,bncd->bnc", queries.means, self.vectors(self.children_of(nodes)))


class WithoutStep(NodeGenerator):
    """Lacks `log_probs`."""


class OneChild(ByNode):
    """Scores the first child only."""

    def log_probs(self, queries, nodes):
        """Return another shape than it has to."""
        return super().log_probs(queries, nodes)[..., :1]


def largest(generator, encoder, alpha):
    """The larger of the two."""
    return torch.maximum(generator, encoder)


def over_siblings(generator, encoder, alpha):
    """The product, as probabilities that add up to 1 over the children of a node."""
    return torch.log_softmax(alpha * generator + (1 - alpha) * encoder, dim=-1)


def shares(generator, encoder, alpha):
    """The mixture, as shares of the children of a node."""
    both = alpha * generator.exp() + (1 - alpha) * encoder.exp()
    return (both / both.sum(dim=-1, keepdim=True)).log()


def not_a_number(generator, encoder, alpha):
    """NaN."""
    return generator * torch.nan


def of_another_shape(generator, encoder, alpha):
    """One number a node."""
    return generator.sum(dim=-1)


def nothing(generator, encoder, alpha):
    """Return nothing."""


def above_zero(generator, encoder, alpha):
    """What is no log-probability."""
    return -generator - encoder
