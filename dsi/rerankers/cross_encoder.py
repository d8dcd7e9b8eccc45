"""Reranking by a cross-encoder: a pretrained model that reads a query and a document together. Knows nothing of features.

It is accurate and slow, one pass of a transformer per candidate, so it reranks the first few dozen documents of a search.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import nn

from dsi.contrastive.devices import check_device
from dsi.contrastive.encoder import quiet_transformers
from dsi.contrastive.models import check_inputs, check_settings, offline, write_model
from dsi.docids.files.declarations import LARGEST
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import catching_panics, reading
from dsi.docids.types import Reals
from dsi.search.candidates import Candidates, Reranker

_MODEL = "model"
"""Folder of the model of a saved reranker."""
_BATCHES = 4
"""Scored between two steps of the progress bar."""


class CrossEncoderReranker(Reranker):
    """Scores title and text of each candidate together with the query.

    The scores are the model's logits: a sigmoid would make ties of the best ones in float32.

    Example:
        >>> import dsi
        >>> from dsi.rerankers.cross_encoder import CrossEncoderReranker
        >>> retriever = dsi.GenerativeRetriever.from_pretrained("RUN")
        >>> retriever.keep_texts(dsi.read_collection("DIR").documents)
        >>> candidates = retriever.candidates(["noble gases"], k=20)
        >>> reranked = dsi.rerank(candidates, CrossEncoderReranker("CROSS-ENCODER"))

    Args:
        name: of a sentence-transformers CrossEncoder with one label: a Hub name or a folder. It is loaded now.
        device: "cpu", "cuda", …; the best available by default.
        batch_size: pairs in a forward pass.

    Raises:
        FileNotFoundError: no such model.
        ValueError: it has several labels or no trained head, or the device is not there.
    """

    kind = "cross-encoder"

    def __init__(self, name: str | Path, *, device: str | None = None, batch_size: int = 32) -> None:
        if not isinstance(batch_size, int) or not 1 <= batch_size <= LARGEST:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}.")
        self.name, self.batch_size = str(name), batch_size
        self._model = _load(self.name, device)

    def score(self, candidates: Candidates) -> Reals:
        """Return the model's score of each candidate [n, k]; several queries show a progress bar."""
        lists = zip(candidates.queries, candidates.texts(), strict=True)
        pairs = [(query, text) for query, texts in lists for text in texts]
        scores = np.zeros(candidates.scores.shape, dtype=np.float32)
        scores[candidates.valid] = self.score_pairs(pairs, show_progress=len(candidates) > 1)
        return scores

    def score_pairs(self, pairs: Sequence[tuple[str, str]], *, show_progress: bool = False) -> NDArray[np.float32]:
        """Return the scores of (query, document text) pairs [pairs]; texts are cut to the length of the model's input.

        Args:
            pairs: in any order; they are sorted by length.
            show_progress: show a progress bar.
        """
        longest_first = sorted(range(len(pairs)), key=lambda row: -sum(map(len, pairs[row])))
        scores, chunk = np.empty(len(pairs), dtype=np.float32), _BATCHES * self.batch_size
        with Bar("cross-encoder", unit="pair", total=len(pairs), enabled=show_progress) as bar:
            for start in range(0, len(pairs), chunk):
                rows = longest_first[start : start + chunk]
                with catching_panics():
                    scores[rows] = self._model.predict(
                        [pairs[row] for row in rows],
                        batch_size=self.batch_size,
                        activation_fn=nn.Identity(),
                        show_progress_bar=False,
                    )
                bar.update(len(rows))
        return scores

    def to(self, device: str | None) -> "CrossEncoderReranker":
        """Move the reranker to another device, and return it; None changes nothing.

        Raises:
            ValueError: the device is not there.
        """
        check_device(device)
        self._model.to(device or self._model.device)
        return self

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the model, so that a saved reranker names none; return the batch size."""
        write_model(self._model, folder / _MODEL)
        return {"batch_size": self.batch_size}

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "CrossEncoderReranker":
        """Load what `write` wrote."""
        check_settings((folder / _MODEL).rglob("*"))
        with offline(), reading(folder / _MODEL, torch.OutOfMemoryError), quiet_transformers():
            reranker = cls(folder / _MODEL, **settings)
            check_inputs(reranker._model)
            reranker.score_pairs([("x", "y")])
        return reranker


def _load(name: str, device: str | None) -> CrossEncoder:
    check_device(device)
    remedy = "give the Hub name or the folder of a sentence-transformers CrossEncoder"
    if not name:
        raise ValueError(f"A cross-encoder needs a name; {remedy}.")
    try:
        model = CrossEncoder(name, device=device)
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FileNotFoundError(f"The cross-encoder {name!r} cannot be loaded ({reason}); {remedy}.") from None
    if model.num_labels != 1:
        raise ValueError(f"A cross-encoder must have one label, its score; {name!r} has {model.num_labels}; {remedy}.")
    if _head_is_fresh(model):
        raise ValueError(f"{name!r} has no trained head that scores pairs, it is another kind of model; {remedy}.")
    return model


def _head_is_fresh(model: CrossEncoder) -> bool:
    """True if the library made the layer that scores, for a checkpoint that has none; it only logs a warning then."""
    made = getattr(model[0], "transformer_task", None) == "sequence-classification"
    saved = getattr(model.config, "architectures", None) or []
    return made and not any(name.endswith("ForSequenceClassification") for name in saved)
