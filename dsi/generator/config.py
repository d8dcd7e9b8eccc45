"""Config of the docid generator: pseudo-queries, the decoder, its objective and its training.

Each class is one section of a configuration file. Knows nothing of models or data.
"""

from typing import Annotated, Literal

from pydantic import Field

from dsi.docids.extensions import GENERATORS, extension_names
from dsi.docids.files.checks import check_name, shown
from dsi.docids.files.declarations import Amount, Count, NameOrPath, Positive, Remedy, Share, Whole, settings
from dsi.generator.objectives import find_objective

EXTRACTIVE = "extractive"
TOKENS = ("tied", "digits")
"""Docid tokens of the library."""


@settings("pseudo_queries")
class PseudoQueriesConfig:
    """How pseudo-queries are made (section `[pseudo_queries]`)."""

    method: NameOrPath = "none"
    """"extractive" (spans and keywords of the text), "none", or a seq2seq or causal model (Hub name or folder) that turns a
    document into a query. Only a generator that is trained reads them."""
    per_document: Annotated[int, Field(ge=1, le=100_000), Remedy('method = "none" makes none')] = 3
    """Queries per document."""
    prompt: str = "Document: {document}\nQuery: {query}\n\n"
    """What a causal model reads: so each of some examples, the collection's own train queries if there are some, and then a
    document up to where its query begins. The model writes to the end of the line."""
    first: Whole = 0
    """Train only on pseudo-queries that find their document in this many first answers by the encoder and words, with a margin
    of .02; 0 trains on all."""

    def __post_init__(self) -> None:
        check_name("pseudo_queries.method", self.method, '"extractive", "none" or a seq2seq or causal model')
        before, query, after = self.prompt.partition("{query}")
        if not query or before.count("{document}") != 1 or "{document}" in after or "{query}" in after:
            raise ValueError(
                f"pseudo_queries.prompt must have {{document}} and, below it, {{query}}, once each, got {shown(self.prompt)}; "
                r'the default is "Document: {document}\nQuery: {query}\n\n".'
            )


@settings("generator")
class GeneratorConfig:
    """The decoder (section `[generator]`)."""

    docid_tokens: str = "tied"
    """What a docid token is: "tied", a node of the tree with the vector that the tree stores (see `dsi.generator.tied`);
    "digits", a (level, digit) pair with weights of its own, as in the paper; or the name of those that another package adds."""
    reads: Literal["states", "text"] = "states"
    """What the decoder reads: "states", the encoder's token states, as in the paper; or "text", the text itself: then `decoder`
    is any causal or sequence-to-sequence model of transformers, with its own tokenizer (see `dsi.generator.pretrained`)."""
    decoder: NameOrPath = ""
    """A model (Hub name or folder): with `reads` = "states" a T5 checkpoint to take decoder weights from, or "" for a fresh T5
    stack as wide as the encoder."""
    num_layers: Annotated[int, Field(ge=0, le=1000)] = 0
    """Decoder layers. 0 keeps the checkpoint's number; without a checkpoint, tied tokens then read the query's embedding alone,
    and (level, digit) tokens need a number. With `reads` = "text", the upper layers of a causal model that are trained: docid
    tokens enter below them, and what the layers below make of a text is computed once; 0 trains all weights."""

    @property
    def reads_states(self) -> bool:
        """True if there is a decoder, which reads the encoder's token states."""
        return self.reads == "states" and bool(self.decoder or self.num_layers)

    def __post_init__(self) -> None:
        if self.docid_tokens not in TOKENS and self.docid_tokens not in (names := extension_names(GENERATORS, TOKENS)):
            raise ValueError(
                f"generator.docid_tokens must be one of {', '.join(names)}, got {shown(self.docid_tokens)}; those of another "
                "package need that package."
            )
        if self.reads == "text":
            self._check_text()
        if not self.decoder and self.num_layers < 1 and self.docid_tokens == "digits":
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")

    def _check_text(self) -> None:
        """Raise ValueError if the settings of a model that reads texts contradict each other."""
        if not self.decoder:
            raise ValueError(
                'generator.reads = "text" needs generator.decoder, a causal or sequence-to-sequence model, got "".'
            )
        if self.docid_tokens != "digits":
            raise ValueError(
                f'generator.reads = "text" needs generator.docid_tokens "digits", got {self.docid_tokens!r}; build on '
                "`--config language-model`."
            )


@settings("objective")
class ObjectiveConfig:
    """The training objective of the decoder (section `[objective]`)."""

    name: str = "estimate"
    """"ce" (a softmax over the children of each node on the path, as in the paper), "estimate" (a softmax over each level's
    nodes, for tied tokens), or the name of one that another package adds."""
    distillation: Share = 0.7
    """Share of the teacher in the targets; the right document has the rest. The teacher is dense search: a softmax over the
    scores of its first documents, divided by `contrastive.temperature`."""

    def __post_init__(self) -> None:
        objective = find_objective(self.name)
        if self.distillation and not objective.distils:
            raise ValueError(
                f"objective.distillation needs an objective that reads a teacher (ce, estimate), got {self.distillation} with "
                f"{self.name!r}; use 0."
            )


CE = ObjectiveConfig(name="ce", distillation=0.0)
"""The paper's objective: a decoder of (level, digit) tokens, trained alone."""


@settings("training")
class TrainingConfig:
    """How the decoder is trained: on train queries, pseudo-queries and documents, if at all (section `[training]`)."""

    documents: bool = True
    """Add indexing examples (document -> docid) to the retrieval examples (query -> docid)."""
    batch_size: Count = 128
    """Examples per process and step."""
    epochs: Amount = 0.0
    """Passes over all examples; 0 leaves tied tokens as they are: the walk goes by the encoder's own scores."""
    learning_rate: Positive = 1e-3
    """Peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero."""
    gradient_checkpointing: bool = False
    """Compute the layers of a model that reads texts twice a step: less memory, for a third more time."""
    train_encoder: bool = False
    """Train the encoder together with the decoder, on texts instead of cached states (DSI, Tay et al. 2022); search
    such an index with the decoder only."""


def check_together(generator: GeneratorConfig, objective: ObjectiveConfig, training: TrainingConfig) -> None:
    """Raise ValueError if settings of different sections contradict each other."""
    trained = find_objective(objective.name)
    if (trained.score == "estimate") != (generator.docid_tokens == "tied"):
        raise ValueError(
            'An objective with score "estimate" and generator.docid_tokens "tied" go together: both score nodes by their '
            f"vectors; got objective.name {objective.name!r} with {generator.docid_tokens!r}; take an objective with that "
            "score, or other tokens (`--config digits`)."
        )
    if not training.epochs and generator.docid_tokens != "tied":
        raise ValueError(
            'training.epochs must be above 0, got 0: only generator.docid_tokens = "tied" makes sense without training.'
        )
    _check_reading(generator, objective, training)
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


def _check_reading(generator: GeneratorConfig, objective: ObjectiveConfig, training: TrainingConfig) -> None:
    """Raise ValueError if a generator that reads texts is to be trained as it cannot be, or another one as only such can."""
    if generator.reads == "states" and training.gradient_checkpointing:
        raise ValueError(
            'training.gradient_checkpointing is for generator.reads "text", got "states"; set it to false.'
        )
    if generator.reads == "text" and (objective.name != "ce" or training.train_encoder):
        raise ValueError(
            'generator.reads = "text" needs objective.name "ce", which scores one path, and training.train_encoder false, as '
            f"it reads no states of the encoder; got {objective.name!r} and {str(training.train_encoder).lower()}."
        )
