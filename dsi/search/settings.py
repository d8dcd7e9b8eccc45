"""How a search scores nodes and how widely it looks."""

import math
from dataclasses import dataclass

from docids.checks import above_zero, at_least, one_of

_FUSIONS = ("bound", "paper")


@dataclass(frozen=True)
class SearchConfig:
    """How nodes are scored and how widely the tree is searched.

    Attributes:
        fusion: "bound" or "paper"; see the module's text.
        alpha: weight of the decoder in [0, 1]; 0 is dense search alone.
        beta: levels at which the dense score takes part; inf for all, 0 for the decoder alone.
        ann_temperature: divides the dense scores; 1 in the paper, less for normalised embeddings.
        beam_width: inner nodes kept a level.
        lexical_weight: of BM25 in a document's score, which is z.e_d + lexical_weight * BM25; for fusion "bound", in an index
            with a lexical part.
    """

    fusion: str = "bound"
    alpha: float = 0.7
    beta: float = math.inf
    ann_temperature: float = 1.0
    beam_width: int = 20
    lexical_weight: float = 0.0

    def __post_init__(self) -> None:
        one_of(self, fusion=_FUSIONS)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1] (the decoder's weight), got {self.alpha}.")
        if not self.beta >= 0:
            raise ValueError(f"beta must be 0 (decoder only) or more levels, or inf for all, got {self.beta}.")
        above_zero(self, ["ann_temperature"])
        at_least(self, beam_width=1)
        if not self.lexical_weight >= 0:
            raise ValueError(f"lexical_weight must be 0 (dense scores alone) or more, got {self.lexical_weight}.")
        if self.lexical_weight and self.fusion != "bound":
            raise ValueError(f'lexical_weight needs fusion "bound", got {self.fusion!r}: centroids have no BM25 score.')

    @property
    def uses_decoder(self) -> bool:
        """Does any score need the decoder?"""
        return self.alpha > 0 or self.beta == 0 or (self.fusion == "paper" and self.beta < math.inf)

    def check_k(self, k: int) -> None:
        """Raise ValueError unless 1 <= k <= beam_width: a narrower beam could return fewer than k documents."""
        if not 1 <= k <= self.beam_width:
            raise ValueError(f"k must be between 1 and {self.beam_width} (the beam width), got {k}; widen beam_width.")
