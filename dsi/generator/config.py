"""Config of the docid generator: the decoder, its training examples, its objective, its training.

Defaults are the paper's. Each class is one section of a configuration file. Knows nothing of models or data.
"""

from dataclasses import dataclass

from docids.files.checks import above_zero, at_least, below_one, between, one_of, plain_fields
from dsi.trees.objectives import find_objective


@dataclass(frozen=True)
class GeneratorConfig:
    """The decoder (section `[generator]`)."""

    docid_tokens: str = "digits"
    """What a docid token is: "digits", a (level, digit) pair with weights of its own, as in the paper; "tied", a node of the
    tree with the vector that the tree stores (see `dsi.generator.tied`); or "words", for docids of titles, a token of `decoder`
    with its weights there (see `dsi.generator.words`)."""
    decoder: str = "google-t5/t5-base"
    """A T5 checkpoint (Hub name or folder) to take decoder weights from, or "" for a fresh T5 stack as wide as the
    encoder."""
    num_layers: int = 0
    """Decoder layers. 0 keeps the checkpoint's number; without a checkpoint, tied tokens then read the query's embedding alone,
    and (level, digit) tokens need a number."""
    num_heads: int = 8
    """Attention heads of a fresh stack."""
    feed_forward_dim: int = 0
    """Inner width of a fresh stack's feed-forward layers; 0 for four times its width."""
    dropout: float = 0.1
    """Dropout rate in training."""

    @property
    def reads_states(self) -> bool:
        """True if there is a decoder, which reads the encoder's token states."""
        return bool(self.decoder or self.num_layers)

    def __post_init__(self) -> None:
        plain_fields(self, "generator.")
        one_of(self, "generator.", docid_tokens=("digits", "tied", "words"))
        at_least(self, "generator.", num_heads=1)
        between(self, "generator.", num_layers=(0, 1000), feed_forward_dim=(0, 1_000_000))
        if not self.decoder and self.docid_tokens == "words":
            raise ValueError(
                'generator.docid_tokens = "words" needs generator.decoder, a T5 checkpoint that has the words.'
            )
        if not self.decoder and self.num_layers < 1 and self.docid_tokens == "digits":
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
        plain_fields(self, "examples.")
        at_least(self, "examples.", document_segments=1, pseudo_queries_per_document=0)


@dataclass(frozen=True)
class ObjectiveConfig:
    """The training objective of the decoder (section `[objective]`)."""

    name: str = "ce"
    """"ce" (a softmax over the children of each node on the path, as in the paper), "estimate" (a softmax over each level's
    nodes, for tied tokens), or the name of one that another package adds."""
    distillation: float = 0.0
    """Share of the teacher in the targets; the right document has the rest. The teacher is dense search: a softmax over its
    first documents."""
    dense_temperature: float = 0.05
    """Divides the dense scores z.e_d in the teacher's softmax."""

    def __post_init__(self) -> None:
        plain_fields(self, "objective.")
        between(self, "objective.", distillation=(0, 1), dense_temperature=(1e-6, 1e6))
        objective = find_objective(self.name)
        if self.distillation and not objective.distils:
            raise ValueError(
                f"objective.distillation needs an objective that reads a teacher (ce, estimate), got {self.distillation} with "
                f"{self.name!r}; use 0."
            )


@dataclass(frozen=True)
class QueryMapConfig:
    """How the query map of documents' scores is trained (section `[query_map]`): see `dsi.training.query_map`.

    That is done after the generator, beside dense search with BM25, on the train queries.
    """

    epochs: float = 0.0
    """Passes over the train queries; 0 for none: documents keep their scores."""
    batch_size: int = 128
    """Queries per process and step."""
    learning_rate: float = 5e-4
    """Peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero."""
    weight_decay: float = 0.1
    """Of AdamW."""
    dropout: float = 0.1
    """Rate, of embeddings on their way into the map."""
    candidates: int = 100
    """Documents among which a query should find its own: the first of dense search with BM25."""
    smoothing: float = 0.1
    """Added to each document's number of train queries, before the logarithm that the training adds to its score."""
    bf16: bool = False
    """Compute in bfloat16 if the device has instructions for it."""
    seed: int = 0
    """Of shuffling."""

    def __post_init__(self) -> None:
        plain_fields(self, "query_map.")
        at_least(self, "query_map.", epochs=0, batch_size=1, weight_decay=0, candidates=2, seed=0)
        above_zero(self, ["learning_rate", "smoothing"], "query_map.")
        below_one(self, ["dropout"], "query_map.")


@dataclass(frozen=True)
class TrainingConfig:
    """How the decoder is trained (section `[training]`)."""

    batch_size: int = 64
    """Examples per process and step."""
    epochs: float = 50.0
    """Passes over all examples; 0 leaves tied tokens as they are, a descent by the encoder's own scores."""
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
    evaluate_every: int = 0
    """Steps after which Hit@1 is measured on dev queries (200 at most), by the search of section `[search]`; the state that was
    best is kept. 0 for never: the last state is kept."""
    patience: int = 0
    """Measurements in a row without a new best after which training ends early; 0 for none."""
    seed: int = 0
    """Of initialisation and shuffling."""

    def __post_init__(self) -> None:
        plain_fields(self, "training.")
        at_least(self, "training.", batch_size=1, epochs=0, weight_decay=0, seed=0, evaluate_every=0, patience=0)
        if self.patience and not self.evaluate_every:
            raise ValueError(f"training.patience needs training.evaluate_every above 0, got {self.patience} with 0.")
        above_zero(self, ["learning_rate"], "training.")
        below_one(self, ["state_dropout"], "training.")


def check_together(
    generator: GeneratorConfig, objective: ObjectiveConfig, training: TrainingConfig, query_map: QueryMapConfig
) -> None:
    """Raise ValueError if settings of different sections contradict each other."""
    if not training.epochs and generator.docid_tokens != "tied":
        raise ValueError(
            'training.epochs must be above 0, got 0: only generator.docid_tokens = "tied" makes sense without training.'
        )
    trained = find_objective(objective.name)
    if (trained.score == "estimate") != (generator.docid_tokens == "tied"):
        raise ValueError(
            'An objective with score "estimate" and generator.docid_tokens "tied" go together: both score nodes by their '
            f"vectors; got objective.name {objective.name!r} with {generator.docid_tokens!r}."
        )
    if query_map.epochs and generator.docid_tokens != "tied":
        raise ValueError(
            'query_map.epochs trains scores of documents, which need generator.docid_tokens = "tied", got '
            f"{generator.docid_tokens!r}; use 0."
        )
    if not training.train_encoder:
        return
    if generator.docid_tokens == "tied":
        raise ValueError(
            "training.train_encoder changes the encoder whose embeddings tied tokens use; "
            'set it to false, or use generator.docid_tokens = "digits".'
        )
    if objective.distillation:
        raise ValueError(
            "training.train_encoder changes the encoder whose scores objective.distillation teaches; set one of them."
        )
    if trained.frozen_encoder:
        raise ValueError(
            f"objective.name {objective.name!r} reads the encoder's states or embeddings, which training.train_encoder "
            "changes; use another objective, or a frozen encoder."
        )
