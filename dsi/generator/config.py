"""Config of the docid generator: pseudo-queries, the decoder, and its training.

Each class is one section of a configuration file. Knows nothing of models or data.
"""

from typing import Annotated, Literal

from pydantic import Field

from dsi.docids.extensions import GENERATORS, extension_names, is_import_path
from dsi.docids.files.checks import check_name, shown
from dsi.docids.files.declarations import Amount, Count, NameOrPath, Positive, Remedy, settings

EXTRACTIVE = "extractive"
TOKENS = ("none", "digits")
"""Docid tokens of the library; "none" is an index without a generator."""


@settings("pseudo_queries")
class PseudoQueriesConfig:
    """How pseudo-queries are made (section `[pseudo_queries]`)."""

    method: NameOrPath = "none"
    """"extractive" (spans and keywords of the text), "none", or a seq2seq or causal model (Hub name or folder) that turns a
    document into a query. The training of a generator reads them."""
    per_document: Annotated[int, Field(ge=1, le=100_000), Remedy('method = "none" makes none')] = 3
    """Queries per document."""
    prompt: str = "Document: {document}\nQuery:"
    """What a causal model reads of a document. It writes to the end of the line."""

    def __post_init__(self) -> None:
        check_name("pseudo_queries.method", self.method, '"extractive", "none" or a seq2seq or causal model')
        if self.prompt.count("{document}") != 1:
            raise ValueError(f"pseudo_queries.prompt must have {{document}} once, got {shown(self.prompt)}.")


@settings("generator")
class GeneratorConfig:
    """The decoder (section `[generator]`)."""

    docid_tokens: str = "none"
    """What a docid token is: "digits", a (level, digit) pair with weights of its own, as in the paper; the name of a generator
    that another package adds, or the import path of its class; or "none": the index has no generator, and searches walk down
    the tree by the vectors of its nodes."""
    reads: Literal["states", "text"] = "states"
    """What the decoder reads: "states", the encoder's token states, as in the paper; or "text", the text itself: then `decoder`
    is any causal or sequence-to-sequence model of transformers, with its own tokenizer (see `dsi.generator.pretrained`)."""
    decoder: NameOrPath = ""
    """A model (Hub name or folder): with `reads` = "states" a T5 checkpoint to take decoder weights from, or "" for a fresh T5
    stack as wide as the encoder."""
    num_layers: Annotated[int, Field(ge=0, le=1000)] = 0
    """Decoder layers. 0 keeps the checkpoint's number; a fresh stack needs a number, and `reads` = "text" has none."""

    @property
    def exists(self) -> bool:
        """True unless the index has no generator."""
        return self.docid_tokens != "none"

    def __post_init__(self) -> None:
        own = is_import_path(self.docid_tokens)
        if not own and self.docid_tokens not in (names := extension_names(GENERATORS, TOKENS)):
            raise ValueError(
                f"generator.docid_tokens must be one of {', '.join(names)}, got {shown(self.docid_tokens)}; those of another "
                "package need that package."
            )
        if self.reads == "text":
            self._check_text()
        elif self.exists and not own and not self.decoder and self.num_layers < 1:
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")
        elif not self.exists and (self.decoder or self.num_layers):
            name = "decoder" if self.decoder else "num_layers"
            raise ValueError(
                f'generator.{name} is {shown(getattr(self, name))}, but generator.docid_tokens is "none": the index has no '
                "generator; build on `--config digits`."
            )

    def _check_text(self) -> None:
        """Raise ValueError if the settings of a model that reads texts contradict each other."""
        if not self.decoder:
            raise ValueError(
                'generator.reads = "text" needs generator.decoder, a causal or sequence-to-sequence model, got "".'
            )
        if self.num_layers:
            raise ValueError(
                f'generator.reads = "text" trains a model whole and needs generator.num_layers 0, got {self.num_layers}.'
            )
        if self.docid_tokens != "digits":
            raise ValueError(
                f'generator.reads = "text" needs generator.docid_tokens "digits", got {self.docid_tokens!r}; build on '
                "`--config language-model`."
            )


@settings("training")
class TrainingConfig:
    """How the decoder is trained: on train queries, pseudo-queries and documents (section `[training]`)."""

    objective: str = "ce"
    """"ce" (a softmax over the children of each node on the path, as in the paper), the name of one that another package adds,
    or the import path of a class."""
    documents: bool = True
    """Add indexing examples (document -> docid) to the retrieval examples (query -> docid)."""
    batch_size: Count = 128
    """Examples per process and step."""
    epochs: Amount = 0.0
    """Passes over all examples; 0 for an index without a generator."""
    learning_rate: Positive = 1e-3
    """Peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero."""
    train_encoder: bool = False
    """Train the encoder together with the decoder, on texts instead of cached states (DSI, Tay et al. 2022); search
    such an index with the decoder only."""

    def __post_init__(self) -> None:
        from dsi.generator.objectives import find_objective  # which imports torch

        objective = find_objective(self.objective)
        if self.train_encoder and objective.frozen_encoder:
            raise ValueError(
                f"training.objective {self.objective!r} reads the encoder's states or embeddings, which training.train_encoder "
                "changes; use another objective, or a frozen encoder."
            )


def check_together(generator: GeneratorConfig, training: TrainingConfig) -> None:
    """Raise ValueError if settings of different sections contradict each other."""
    if generator.exists and not training.epochs:
        raise ValueError(
            'training.epochs must be above 0, got 0: only an index without a generator, generator.docid_tokens = "none", is '
            "searched without training one."
        )
    if not generator.exists and (training.epochs or training.train_encoder):
        name = "epochs" if training.epochs else "train_encoder"
        raise ValueError(
            f"training.{name} is {shown(getattr(training, name))}, but there is no generator to train; build on "
            "`--config digits`, or leave it out."
        )
    _check_reading(generator, training)


def _check_reading(generator: GeneratorConfig, training: TrainingConfig) -> None:
    """Raise ValueError if a generator that reads texts is to be trained as it cannot be."""
    if generator.reads != "text":
        return
    from dsi.generator.objectives import find_objective

    objective = find_objective(training.objective)
    if training.train_encoder or objective.frozen_encoder or objective.all_relevant:
        raise ValueError(
            'generator.reads = "text" needs a training.objective of one path, as "ce" is, and training.train_encoder false, as '
            f"it reads no states of the encoder; got {training.objective!r} and {str(training.train_encoder).lower()}."
        )
