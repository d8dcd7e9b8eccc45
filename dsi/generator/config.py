"""Config of the docid generator: the decoder, its objective, its training and that of the query map.

Each class is one section of a configuration file. Knows nothing of models or data.
"""

from typing import Annotated, Literal

from pydantic import Field

from docids.files.checks import check_name
from docids.files.declarations import Amount, Count, Positive, Share, Whole, settings
from dsi.trees.objectives import find_objective

SMALLEST_TEMPERATURE = 1e-6


@settings("generator")
class GeneratorConfig:
    """The decoder (section `[generator]`)."""

    docid_tokens: Literal["tied", "digits", "words"] = "tied"
    """What a docid token is: "tied", a node of the tree with the vector that the tree stores (see `dsi.generator.tied`);
    "digits", a (level, digit) pair with weights of its own, as in the paper; or "words", for docids of titles, a token of
    `decoder` with its weights there (see `dsi.generator.words`)."""
    decoder: str = ""
    """A T5 checkpoint (Hub name or folder) to take decoder weights from, or "" for a fresh T5 stack as wide as the
    encoder."""
    num_layers: Annotated[int, Field(ge=0, le=1000)] = 0
    """Decoder layers. 0 keeps the checkpoint's number; without a checkpoint, tied tokens then read the query's embedding alone,
    and (level, digit) tokens need a number."""

    @property
    def reads_states(self) -> bool:
        """True if there is a decoder, which reads the encoder's token states."""
        return bool(self.decoder or self.num_layers)

    def __post_init__(self) -> None:
        if not self.decoder and self.docid_tokens == "words":
            raise ValueError(
                'generator.docid_tokens = "words" needs generator.decoder, a T5 checkpoint that has the words.'
            )
        if not self.decoder and self.num_layers < 1 and self.docid_tokens == "digits":
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")


@settings("objective")
class ObjectiveConfig:
    """The training objective of the decoder (section `[objective]`)."""

    name: str = "estimate"
    """A row of `dsi.trees.objectives`: "estimate" for tied tokens; for others "ce" as in the paper, or an objective for search
    with a beam."""
    training_beam: Count = 10
    """Beam width of the search in objectives that train on the decoder's own beam."""
    random_paths: Count = 10
    """Random documents per example whose paths are trained on, in objectives with random candidates."""
    warm_start: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Share of the steps that train "tdm" first ("ce" with margins), in objectives that need a warmed-up decoder."""
    ramp: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the remaining steps over which targets move from z to zhat, in objectives with "mixed" targets."""
    dense_temperature: Annotated[float, Field(ge=0, le=1e6)] = 0.05
    """Temperature of the dense scores z.e_d. With distillation, of the teacher. Without, above 0, train on top of dense search:
    each child's logit gets the log-sum-exp of z.e_d / dense_temperature over the documents d below it, so that the decoder
    learns what the encoder's scores miss. 0 trains a standalone decoder, as the paper does."""
    distillation: Share = 0.7
    """Share of the teacher in the targets of a softmax; the label of the right document has the rest. The teacher's mass on a
    node is that of the documents below it, in a softmax over its best documents."""
    teacher: str = "dense"
    """Whose scores are distilled: "dense" (z.e_d), or those that a sentence-transformers CrossEncoder (Hub name or local
    folder) gives the documents that dense search finds first; set dense_temperature to the scale of its scores then."""
    teacher_documents: Count = 10
    """Number of documents per text that the teacher scores."""

    def __post_init__(self) -> None:
        objective = find_objective(self.name)
        check_name("objective.teacher", self.teacher, '"dense" or a sentence-transformers CrossEncoder')
        if 0 < self.dense_temperature < SMALLEST_TEMPERATURE:  # dense scores could overflow float32
            raise ValueError(
                f"objective.dense_temperature must be 0 or between 1e-6 and 1e6, got {self.dense_temperature}."
            )
        if self.distillation and not self.dense_temperature:
            raise ValueError(
                f"objective.distillation needs a dense_temperature above 0, got {self.distillation} with dense_temperature 0."
            )
        if self.teacher != "dense" and not self.distillation:
            raise ValueError(
                f"objective.teacher teaches only with objective.distillation above 0, got {self.teacher!r} with 0."
            )
        if self.distillation and objective.loss == "bce":
            raise ValueError(
                f"objective.distillation needs an objective with a softmax (ce, dtr, estimate), got {self.name!r}."
            )
        if self.dense_temperature and not self.distillation and self.name != "ce":
            raise ValueError(
                f'objective.dense_temperature works with objective "ce", or with distillation, got {self.name!r}: dense scores '
                "are added inside a softmax over children."
            )


CE = ObjectiveConfig(name="ce", dense_temperature=0.0, distillation=0.0)
"""The paper's objective: a decoder of (level, digit) tokens, trained alone."""


@settings("query_map")
class QueryMapConfig:
    """How the query map of documents' scores is trained (section `[query_map]`): see `dsi.training.query_map`.

    That is done after the generator, beside dense search with BM25, on the train queries.
    """

    epochs: Amount = 10.0
    """Passes over the train queries; 0 for none: documents keep their scores."""


@settings("training")
class TrainingConfig:
    """On what the decoder is trained beside the train queries, and how (section `[training]`)."""

    documents: bool = True
    """Add indexing examples (document -> docid) to the retrieval examples (query -> docid)."""
    pseudo_queries_per_document: Whole = 3
    """At most this many pseudo-queries per document become retrieval examples; 0 for none."""
    batch_size: Count = 128
    """Examples per process and step."""
    epochs: Amount = 2.0
    """Passes over all examples; 0 leaves tied tokens as they are, a descent by the encoder's own scores."""
    learning_rate: Positive = 1e-3
    """Peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero."""
    train_encoder: bool = False
    """Train the encoder together with the decoder, on texts instead of cached states (DSI, Tay et al. 2022); search
    such an index with the decoder only."""


def check_together(
    generator: GeneratorConfig, objective: ObjectiveConfig, training: TrainingConfig, query_map: QueryMapConfig
) -> None:
    """Raise ValueError if settings of different sections contradict each other."""
    if not training.epochs and generator.docid_tokens != "tied":
        raise ValueError(
            'training.epochs must be above 0, got 0: only generator.docid_tokens = "tied" makes sense without training.'
        )
    if (objective.name == "estimate") != (generator.docid_tokens == "tied"):
        raise ValueError(
            'objective.name "estimate" and generator.docid_tokens "tied" go together: both score nodes by their vectors; got '
            f"{objective.name!r} with {generator.docid_tokens!r}."
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
    if objective.dense_temperature:
        raise ValueError(
            "training.train_encoder changes the encoder whose scores objective.dense_temperature uses; set one of them."
        )
    if "beam" in find_objective(objective.name).candidates:
        raise ValueError(
            f"objective.name {objective.name!r} searches with the encoder's states, which training.train_encoder changes; "
            "use an objective without beam candidates, or a frozen encoder."
        )
