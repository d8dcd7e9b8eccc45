"""Config of the docid generator: the decoder, its training examples, its objective, its training.

Defaults are the paper's. Each class is one section of a configuration file. Knows nothing of models or data.
"""

from dataclasses import dataclass

from docids.checks import above_zero, at_least, below_one
from dsi.trees.objectives import find_objective


@dataclass(frozen=True)
class GeneratorConfig:
    """The decoder (section `[generator]`)."""

    decoder: str = "google-t5/t5-base"
    """A T5 checkpoint (Hub name or folder) to take decoder weights from, or "" for a fresh T5 stack as wide as the
    encoder."""
    num_layers: int = 0
    """Decoder layers; 0 keeps the checkpoint's number (a fresh stack needs a number)."""
    num_heads: int = 8
    """Attention heads of a fresh stack."""
    feed_forward_dim: int = 0
    """Inner width of a fresh stack's feed-forward layers; 0 for four times its width."""
    dropout: float = 0.1
    """Dropout rate in training."""

    def __post_init__(self) -> None:
        at_least(self, "generator.", num_layers=0, num_heads=1, feed_forward_dim=0)
        if not self.decoder and self.num_layers < 1:
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")
        below_one(self, ["dropout"], "generator.")


@dataclass(frozen=True)
class ExamplesConfig:
    """The training examples of the decoder (section `[examples]`); train queries are always included."""

    documents: bool = True
    """Add indexing examples (document -> docid) to the retrieval examples (query -> docid)."""
    document_segments: int = 1
    """Indexing examples per document: its first segments of document_length tokens each."""
    pseudo_queries_per_document: int = 5
    """At most this many pseudo-queries per document become retrieval examples; 0 for none."""

    def __post_init__(self) -> None:
        at_least(self, "examples.", document_segments=1, pseudo_queries_per_document=0)


@dataclass(frozen=True)
class ObjectiveConfig:
    """The training objective of the decoder (section `[objective]`)."""

    name: str = "ce"
    """A row of `dsi.trees.objectives`: "ce" as in the paper, or an objective for search with a beam."""
    training_beam: int = 10
    """Beam width of the search in objectives that train on the decoder's own beam."""
    random_paths: int = 10
    """Random documents per example whose paths are trained on, in objectives with random candidates."""
    warm_start: float = 0.3
    """Share of the steps that train "tdm" first, in objectives that need a warmed-up decoder."""
    ramp: float = 0.5
    """Share of the remaining steps over which targets move from z to zhat, in objectives with "mixed" targets."""
    dense_temperature: float = 0.0
    """Above 0, train on top of dense search: each child's logit gets the log-sum-exp of z.e_d / dense_temperature over
    the documents d below it, so that the decoder learns what the encoder's scores miss. 0 trains a standalone decoder,
    as the paper does."""
    distillation: float = 0.0
    """Above 0, the dense scores are a teacher instead: the loss is (1 - distillation) times the cross-entropy plus
    distillation times the KL divergence from the softmax of the dense scores to the decoder's, over the children of
    every node on the path."""

    def __post_init__(self) -> None:
        find_objective(self.name)
        at_least(self, "objective.", training_beam=1, random_paths=1, dense_temperature=0)
        below_one(self, ["warm_start", "ramp"], "objective.")
        if not 0 <= self.distillation <= 1:
            raise ValueError(f"objective.distillation must be in [0, 1], got {self.distillation}.")
        if self.distillation and not self.dense_temperature:
            raise ValueError(
                f"objective.distillation needs a dense_temperature above 0, got {self.distillation} with dense_temperature 0."
            )
        if self.dense_temperature and self.name != "ce":
            raise ValueError(
                f'objective.dense_temperature works with objective "ce", got {self.name!r}: dense scores are added inside a '
                "softmax over children."
            )


@dataclass(frozen=True)
class TrainingConfig:
    """How the decoder is trained (section `[training]`)."""

    batch_size: int = 64
    """Examples per process and step."""
    epochs: float = 50.0
    """Passes over all examples."""
    learning_rate: float = 5e-4
    """Peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero."""
    weight_decay: float = 0.01
    """Of AdamW."""
    state_dropout: float = 0.0
    """Share of the encoder's token states hidden from the decoder, drawn anew for each batch; reduces memorisation of
    train queries."""
    train_encoder: bool = False
    """Train the encoder together with the decoder, on texts instead of cached states (DSI, Tay et al. 2022); search
    such an index with the decoder only."""
    bf16: bool = False
    """Compute in bfloat16 if the device has instructions for it."""
    seed: int = 0
    """Of initialisation and shuffling."""

    def __post_init__(self) -> None:
        at_least(self, "training.", batch_size=1, weight_decay=0, seed=0)
        above_zero(self, ["epochs", "learning_rate"], "training.")
        below_one(self, ["state_dropout"], "training.")


def check_together(objective: ObjectiveConfig, training: TrainingConfig) -> None:
    """Raise ValueError if the encoder is trained but the objective needs it frozen."""
    if training.train_encoder and objective.dense_temperature:
        raise ValueError(
            "training.train_encoder changes the encoder whose scores objective.dense_temperature uses; set one of them."
        )
    if training.train_encoder and "beam" in find_objective(objective.name).candidates:
        raise ValueError(
            f"objective.name {objective.name!r} searches with the encoder's states, which training.train_encoder changes; "
            "use an objective without beam candidates, or a frozen encoder."
        )
