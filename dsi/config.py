"""The configuration of a run: the config of every part, read from and written to TOML. Knows nothing of what the parts do."""

import dataclasses
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field

from dsi.contrastive.config import ContrastiveConfig, EncoderConfig, TokensConfig
from dsi.docids.extensions import GENERATORS, extension_names, extension_room, is_import_path
from dsi.docids.files.checks import check_name, shown, user_path
from dsi.docids.files.declarations import (
    Amount,
    Count,
    NameOrPath,
    Positive,
    Remedy,
    Setting,
    Share,
    Whole,
    create_settings,
    declarations,
    section_kinds,
    settings,
)
from dsi.docids.files.reading import check_file
from dsi.docids.files.storage import write_text
from dsi.docids.query_memory import MemoryConfig
from dsi.docids.schemes import DocidsConfig
from dsi.docids.vectors import VectorsConfig
from dsi.docids.words.bm25 import LexicalConfig
from dsi.search.request import LEXICAL_WEIGHT, MEMORY_WEIGHT, TOKEN_WEIGHT, SearchConfig

CONFIGS = Path(__file__).parent / "configs"
"""Folder of the configurations that ship with the package, NAME.toml each."""
_LARGEST = 2**14
"""Bytes of a configuration, at most; the parser takes minutes for a megabyte of dots."""

_NO_TRAINING = {
    "pseudo_queries": {"method": "none"},
    "contrastive": {"loss": "none"},
    "tokens": {"epochs": 0.0},
    "training": {"epochs": 0.0},
    "memory": {"train_queries": False},
}

EXTRACTIVE = "extractive"
TOKENS = ("none", "digits")
"""Docid tokens of the library; "none" is an index without a generator."""
CROSS_ENTROPY = "ce"


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
    that another package adds, in Python the import path of its class; or "none": the index has no generator, and searches walk
    down the tree by the vectors of its nodes."""
    reads: Literal["states", "text"] = "states"
    """What the decoder reads: "states", the encoder's token states, as in the paper; or "text", the text itself: then `decoder`
    is any causal or sequence-to-sequence model of transformers, with its own tokenizer (see `dsi.language_models`)."""
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
        is_path = is_import_path(self.docid_tokens)
        if not is_path and self.docid_tokens not in (names := extension_names(GENERATORS, TOKENS)):
            raise ValueError(
                f"generator.docid_tokens must be one of {', '.join(names)}, got {shown(self.docid_tokens)}; those of another "
                "package need that package."
            )
        needs_layers = self.exists and self.reads == "states" and not is_path and not self.decoder
        if needs_layers and self.num_layers < 1:
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")
        if not self.exists and (self.decoder or self.num_layers):
            name = "decoder" if self.decoder else "num_layers"
            raise ValueError(
                f'generator.{name} is {shown(getattr(self, name))}, but generator.docid_tokens is "none": the index has no '
                "generator; build on `--config digits`."
            )


@settings("training")
class TrainingConfig:
    """How the decoder is trained: on train queries, pseudo-queries and documents (section `[training]`)."""

    objective: str = CROSS_ENTROPY
    """"ce" (a softmax over the children of each node on the path, as in the paper), the name of one that another package adds,
    or, in Python, the import path of a class."""
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
        if self.asks("frozen_encoder") and self.train_encoder:
            raise ValueError(
                f"training.objective {self.objective!r} reads the encoder's states or embeddings, which training.train_encoder "
                "changes; use another objective, or a frozen encoder."
            )

    def asks(self, *attributes: str) -> bool:
        """Return whether the objective has some of the attributes of `dsi.generator.objectives.Objective`; "ce" has none."""
        if self.objective == CROSS_ENTROPY:
            return False
        with extension_room():
            from dsi.generator.objectives import find_objective
        objective = find_objective(self.objective)
        return any(getattr(objective, name) for name in attributes)


@settings()
class Config:
    """The configuration of a run, one section (TOML table) per part; its defaults are what we recommend.

    Example:
        >>> import dsi
        >>> config = dsi.Config().with_changes({"training": {"epochs": 4.0}, "search": {"beam_width": 10}})
        >>> config.training.epochs
        4.0
    """

    seed: Whole = 0
    """Of everything that is drawn at random: pseudo-queries, docids, weights, shuffling."""
    bf16: bool = True
    """Train encoder and decoder in bfloat16 if the device has instructions for it."""
    dev_queries: Whole = 500
    """Number of train queries set aside if the collection has no dev split. On the dev queries the weights of scores, and the
    beam (with a generator: alpha and ann_temperature) are chosen after training; 0 chooses nothing."""
    dev_untaught: Share = 0.5
    """Share of the train queries set aside whose documents keep no train query. The larger it is, the less what train
    queries teach counts: an index may be asked mostly for documents that nobody has asked for."""
    text_megabytes: Whole = 1000
    """The index keeps the documents' texts, which answers show, if they take at most this many megabytes; 0 keeps none."""
    pseudo_queries: PseudoQueriesConfig = field(default_factory=PseudoQueriesConfig)
    """How pseudo-queries are made."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """Which encoder, and how much text it reads."""
    contrastive: ContrastiveConfig = field(default_factory=ContrastiveConfig)
    """Pre-training of the encoder."""
    docids: DocidsConfig = field(default_factory=DocidsConfig)
    """How docids are made."""
    vectors: VectorsConfig = field(default_factory=VectorsConfig)
    """How the vectors of documents are kept."""
    tokens: TokensConfig = field(default_factory=TokensConfig)
    """Token vectors of the documents, for late interaction."""
    lexical: LexicalConfig = field(default_factory=LexicalConfig)
    """BM25."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """What is remembered of queries."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The generator, if the index has one."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How the generator is trained."""
    search: SearchConfig = field(
        default_factory=lambda: SearchConfig(
            lexical_weight=LEXICAL_WEIGHT, token_weight=TOKEN_WEIGHT, memory_weight=MEMORY_WEIGHT
        )
    )
    """How the index is searched by default."""

    def __post_init__(self) -> None:
        check_together(self.generator, self.training)
        self._check_search()

    @property
    def docid_tokenizer(self) -> str:
        """The model whose tokenizer a docid scheme gets; "" for the encoder."""
        return "" if self.generator.docid_tokens in TOKENS else self.generator.decoder

    @property
    def has_token_vectors(self) -> bool:
        """Whether the index has token vectors, for late interaction."""
        return self.tokens.bits > 0 and not self.generator.exists

    def _check_search(self) -> None:
        """Raise ValueError if the trained index could not be searched as `[search]` and `[tokens]` say."""
        search = self.search
        if search.lexical_weight and self.lexical.model == "none":
            raise ValueError(
                f'search.lexical_weight needs a lexical part, got {search.lexical_weight} with lexical.model "none"; use 0.'
            )
        for name in ("lexical_weight", "token_weight"):
            if self.generator.exists and getattr(search, name):
                raise ValueError(
                    f'search.{name} needs generator.docid_tokens "none", got {getattr(search, name)} with '
                    f"{self.generator.docid_tokens!r}; use 0."
                )

    @classmethod
    def named(cls, name: "str | Path | Config") -> "Config":
        """Return a configuration by name (of one that ships with the package) or by file; a `Config` is returned unchanged.

        Raises:
            FileNotFoundError: neither a name nor a file; the message lists the names.
        """
        return name if isinstance(name, Config) else read_config(name)

    def without_training(self) -> "Config":
        """Return the configuration with the encoder as it is, no generator, and no pseudo-queries."""
        return self.with_changes(_NO_TRAINING)

    def with_changes(self, changes: Mapping[str, Any]) -> "Config":
        """Return a configuration with some settings replaced: {setting: value, section: {setting: value}}.

        A setting of a section may be named as for `--set` too: {"docids.max_leaf_size": 3}.
        """
        if not isinstance(changes, Mapping):
            raise TypeError(f"changes must be a mapping of settings and sections, got {changes!r}.")
        settings = dataclasses.asdict(self)
        for name, value in changes.items():
            section, dot, setting = str(name).partition(".")
            settings = _merged(settings, {section: {setting: value}} if dot and section in settings else {name: value})
        return create_settings(Config, settings)


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


def config_names() -> list[str]:
    """Return the names of the configurations that ship with the package."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def read_config(name: str | Path) -> Config:
    """Read a configuration that ships with the package, by name, or a TOML file.

    Settings it leaves out are as in its `base`, or else as in `Config()`.
    """
    path = _find(name)
    return _with_defaults(_with_base(path), str(path))


def run_config(run: Path, name: str | Path | Config | None = None) -> Config:
    """Return the configuration for a run in a folder: the named one, by default the folder's, or else what we recommend."""
    if name is not None:
        return Config.named(name)
    return read_config(run / "config.toml") if (run / "config.toml").exists() else Config()


def read_dev_cut(run: Path) -> dict[str, Any]:
    """Return how a run has cut its dev queries, the default where it has no `config.toml`, as one that was saved elsewhere.

    Other settings are not read, as its docid scheme may be missing here.
    """
    path = run / "config.toml"
    values = _with_base(path) if path.exists() else {}
    return dev_cut(_with_defaults({name: values[name] for name in dev_cut(Config()) if name in values}, str(path)))


def dev_cut(config: Config) -> dict[str, Any]:
    """Return how dev queries are cut, as arguments of `read_collection`."""
    return {"dev_queries": config.dev_queries, "dev_untaught": config.dev_untaught}


def _with_defaults(settings: Mapping[str, Any], source: str) -> Config:
    """Return `Config()` with some settings replaced."""
    return create_settings(Config, _merged(dataclasses.asdict(Config()), settings), source)


def _find(name: str | Path) -> Path:
    """Return the file of a configuration: a path, or a name that ships with the package."""
    if not isinstance(name, str | Path):
        raise TypeError(
            f"A configuration must be a name, a file or a Config, got {name!r}; Config().with_changes(…) sets single settings."
        )
    for path in (user_path(name), CONFIGS / f"{name}.toml"):
        with suppress(OSError):  # a name that is too long for one
            if path.is_file():
                return path
    names = ", ".join(config_names())
    raise FileNotFoundError(f"The configuration {shown(str(name))} does not exist: neither a file nor one of {names}.")


def _with_base(path: Path) -> dict[str, Any]:
    """Return the settings of a file, merged over those of its base, a configuration that ships with the package."""
    check_file(path, "name a file of settings")
    if (size := path.stat().st_size) > _LARGEST:
        raise ValueError(f"{path} has {size:,} bytes, a configuration has at most {_LARGEST:,}; remove what is none.")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply; settings are TOML tables of plain values.") from None
    except ValueError as error:  # also bytes that are no UTF-8, and numbers of thousands of digits
        raise ValueError(f"{path} is not valid TOML: {str(error).split(';')[0].rstrip('.')}.") from None
    base = settings.pop("base", None)
    if base is None:
        return settings
    if base not in config_names():
        raise ValueError(f"{path}: base must be one of {', '.join(config_names())}, got {shown(base)}.")
    return _merged(_with_base(CONFIGS / f"{base}.toml"), settings)


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes applied, section by section."""
    merged = dict(settings)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = {**merged[key], **value} if both else value
    return merged


def write_config(config: Config, path: Path) -> None:
    """Write every setting, defaults included, but for those that are not set: TOML has no word for none."""
    write_text(path, tomli_w.dumps(_without_none(dataclasses.asdict(config))))


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    inner = {name: _without_none(value) if isinstance(value, dict) else value for name, value in settings.items()}
    return {name: value for name, value in inner.items() if value is not None}


def all_settings(config: Config | None = None) -> list[Setting]:
    """Return the declarations of all settings with the values of a configuration, those of no section first."""
    config = config or Config()
    every = [
        dataclasses.replace(declared, default=vars(config)[name]) for name, declared in declarations(Config).items()
    ]
    for section, kind in section_kinds(Config).items():
        values = vars(getattr(config, section))
        every += [
            dataclasses.replace(declared, section=f"{section}.", default=values[name])
            for name, declared in declarations(kind).items()
        ]
    return every
