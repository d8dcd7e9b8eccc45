"""The two contrastive losses of DR-SCL over a batch of documents and queries, in the sentence-transformers signature.

A batch has V views (columns) of B rows: a document, a query of it, then hard negatives, documents like it that do not answer.
`labels` are the documents of all texts, so that all texts of one document are positives of each other. A last column may number
the queries; what else is relevant to a query is then no negative of it. Several processes gather the embeddings with their
gradients, so that the batch is global.

A batch is embedded some texts at a time, those of similar length together, and all but the last ones again for the gradients:
memory does not grow with the batch, and gradients are exact, as with GradCache (Gao et al. 2021). The losses are means over
the anchors where eq. 6 and 7 are sums, so that a learning rate means the same at any batch size. Knows nothing of data.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import all_gather, all_gather_with_grad
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

Features = dict[str, Tensor]
CHUNK = 512
"""Tokens, padding included, that are embedded at a time; a single text may have more."""


def supervised_contrastive_loss(
    embeddings: Tensor, labels: Tensor, temperature: float = 1.0, no_negatives: Tensor | None = None
) -> Tensor:
    """Scalar loss that pulls rows of one label together and pushes the others apart: DR-SCL eq. 7 (Khosla et al. 2020, L_out).

    Args:
        embeddings: [n, dim]; dot products are taken as they are, so normalise first for cosines.
        labels: [n] class of each row.
        temperature: t in exp(z_i . z_a / t); 1 in the paper.
        no_negatives: [n, n] True at pairs that are left out, unless they are of one label; none by default.

    Returns:
        The mean over the anchors that have a positive; zero (with gradient) if none has.
    """
    similarity = embeddings @ embeddings.T / temperature  # [n, n]
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels[None, :]) & others  # [n, n]
    counted = others if no_negatives is None else others & (positives | ~no_negatives)
    log_share = similarity.masked_fill(~counted, -torch.inf).log_softmax(dim=1).masked_fill(~positives, 0.0)
    counts = positives.sum(dim=1)  # [n]
    per_anchor = -log_share.sum(dim=1) / counts.clamp(min=1)  # DR-SCL eq. 7
    return per_anchor.sum() / (counts > 0).sum().clamp(min=1)


def dpr_loss(
    queries: Tensor, documents: Tensor, labels: Tensor, temperature: float = 1.0, no_negatives: Tensor | None = None
) -> Tensor:
    """Scalar loss of each query against the documents of the batch: DR-SCL eq. 6 (Karpukhin et al. 2020; InfoNCE).

    Args:
        queries: [n, dim].
        documents: [m, dim]; documents[i] answers query i, those after the n-th are further negatives.
        labels: [m] which document each is; others with a query's label are false negatives and masked.
        temperature: t in exp(z_q . z_d / t); 1 in the paper.
        no_negatives: [n, m] True at documents that are masked for a query, too; none by default.
    """
    similarity = queries @ documents.T / temperature  # [n, m]
    targets = torch.arange(len(queries), device=labels.device)
    others = targets[:, None] != torch.arange(len(documents), device=labels.device)
    relevant = labels[: len(queries), None] == labels
    false_negatives = (relevant if no_negatives is None else relevant | no_negatives) & others
    return F.cross_entropy(similarity.masked_fill(false_negatives, -torch.inf), targets)  # DR-SCL eq. 6


class _ContrastiveLoss(nn.Module):
    """Embeds every view and gathers views and labels from all processes; subclasses compute the loss.

    `model`: that embeds; `chunk`: tokens that are embedded at a time; `relevant`: {number of a query: labels of all
    documents that are relevant to it}, where there are several; `compare`: returns the vectors whose dot products are
    compared, of what the model gives; as it gives them by default.
    """

    def __init__(
        self, model: SentenceTransformer, temperature: float = 1.0, chunk: int = CHUNK,
        relevant: Mapping[int, Tensor] | None = None,
        compare: Callable[[Tensor], Tensor] = lambda embeddings: embeddings,
    ) -> None:  # fmt: skip
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}.")
        self.model = model
        self.temperature, self.chunk, self.relevant, self.compare = temperature, chunk, relevant or {}, compare

    def _no_negatives(self, labels: Tensor, numbers: Tensor) -> Tensor | None:
        """Return [queries, texts] True at texts of documents that are relevant to a query; None if no query has several.

        `labels`: [texts] documents of the texts; `numbers`: [queries] of the queries; empty if they are not numbered.
        """
        none = labels.new_empty(0)
        relevant = [self.relevant.get(number, none).to(labels) for number in numbers.flatten().tolist()]
        return torch.stack([torch.isin(labels, rows) for rows in relevant]) if any(map(len, relevant)) else None

    def embed(self, sentence_features: Iterable[Features], labels: Tensor) -> tuple[list[Tensor], Tensor]:
        views = [self._embed_view(features) for features in sentence_features]
        if not (dist.is_available() and dist.is_initialized()):
            return views, labels
        return [all_gather_with_grad(view) for view in views], all_gather(labels)

    def _embed_view(self, features: Features) -> Tensor:
        """Return the embeddings [B, dim] of one view."""
        *chunks, (last_rows, last) = _chunks(features, self.chunk)
        wrapped = isinstance(self.model, DistributedDataParallel)
        plain = self.model.module if wrapped else self.model  # what is computed again in a backward goes past DDP
        embedded = [checkpoint(_embed, plain, chunk, use_reentrant=False) for _, chunk in chunks]
        embedded.append(_embed(self.model, last))  # whose gradients are the first
        rows = torch.cat([*(rows for rows, _ in chunks), last_rows])
        return self.compare(torch.cat(embedded)[rows.argsort()])


def _embed(model: nn.Module, features: Features) -> Tensor:
    return model(dict(features))["sentence_embedding"]  # type: ignore[no-any-return]


def _chunks(features: Features, most: int) -> Iterator[tuple[Tensor, Features]]:
    """Yield rows [n] and features [n, longest] of some texts of a view at a time, at most `most` tokens, shortest first."""
    if "attention_mask" not in features:  # a table of token vectors reads any number of tokens at once
        yield torch.arange(len(features["offsets"])), features
        return
    mask = features["attention_mask"]  # [B, length]
    lengths, order = mask.sum(dim=1).sort(stable=True)
    longest, start = lengths.tolist(), 0
    for stop in range(1, len(order) + 1):
        if stop == len(order) or (stop + 1 - start) * longest[stop] > most:
            rows = order[start:stop]
            used = mask[rows].any(dim=0)  # the others are padding of longer texts
            yield rows, {name: _cut(value, mask, rows, used) for name, value in features.items()}
            start = stop


def _cut(value: Tensor, mask: Tensor, rows: Tensor, used: Tensor) -> Tensor:
    """Return some rows and tokens of a feature; what is not of texts, such as the length of a prompt, stays."""
    if not isinstance(value, Tensor) or len(value) != len(mask):
        return value
    return value[rows][:, used] if value.shape == mask.shape else value[rows]


class SupervisedContrastiveLoss(_ContrastiveLoss):
    """`supervised_contrastive_loss` over all texts of a batch."""

    def forward(self, sentence_features: Iterable[Features], labels: Tensor) -> Tensor:
        """Scalar loss of a batch of V feature dictionaries with B rows each, labels [B, V], or [B, V + 1] with numbers."""
        views, labels = self.embed(sentence_features, labels)
        of_texts, size = labels[:, : len(views)].T.flatten(), len(labels)
        of_queries, no_negatives = self._no_negatives(of_texts, labels[:, len(views) :]), None
        if of_queries is not None:
            no_negatives = torch.zeros(len(of_texts), len(of_texts), dtype=torch.bool, device=labels.device)
            no_negatives[size : 2 * size] = of_queries
            no_negatives = no_negatives | no_negatives.T
        return supervised_contrastive_loss(torch.cat(views), of_texts, self.temperature, no_negatives)


class DPRLoss(_ContrastiveLoss):
    """`dpr_loss` of the second column (query) against the first (document) and further ones (negatives)."""

    def forward(self, sentence_features: Iterable[Features], labels: Tensor) -> Tensor:
        """Scalar loss of a batch of V >= 2 feature dictionaries with B rows each, labels [B, V], or [B, V + 1] with numbers."""
        (documents, queries, *negatives), labels = self.embed(sentence_features, labels)
        views = 2 + len(negatives)
        of_documents = torch.cat([labels[:, :1], labels[:, 2:views]], dim=1).T.flatten()
        no_negatives = self._no_negatives(of_documents, labels[:, views:])
        return dpr_loss(queries, torch.cat([documents, *negatives]), of_documents, self.temperature, no_negatives)
