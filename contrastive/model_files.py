"""Models in the folders of an index, before they are loaded: what would run code, or name other files. Imports no models.

A model that a configuration names is the user's choice; the one in an index may be a stranger's.
"""

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsi.docids.files.reading import is_inside, read_any_json

PROBE = "A noble gas: Ünïcödé, ﬁ① ½\u00a0 中文 русский हिन्दी\u200d 👩‍🚀 \U0001f680\n\t ~~ 1234567890 " + "w" * 300
"""A text with characters that no vocabulary has."""
TEXTS = (PROBE, "x", "The Danube flows through ten countries, more than any other river in the world.")
"""Texts on which models are tried."""

_RUNS = re.compile(
    r"auto_map|custom_(pipelines|generate)|trust_remote_code|quantization_config|.*backbone.*|.*implementation|.*chat_template"
    r"|(model|tokenizer|config|processor)_(args|kwargs)|(mecab|sudachi|jumanpp)_kwargs"
)
"""Settings that choose code, or are handed to whatever is called."""
_OPENS = re.compile(r"(.*_)?(file|filename|path|dir|folder|url|checkpoint|repo)")
"""Settings whose text names something to read."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_IMPORTING = ("config.json", "config_sentence_transformers.json", "router_config.json", "modules.json")
"""Files of a model in which a dotted text is imported."""
_METHODS = ("forward", "get_text_features")
TOKENIZER = "tokenizer.json"
"""A table that a library in Rust reads; it calls nothing and names no file."""
LOADING = threading.RLock()
"""Held while a global setting of a library is changed."""


# What may be in the files of a model.


def problem(path: Path) -> str:
    """Return the reason why a JSON file may not be in an index, or "": it chooses code, or names another file."""
    if path.name == TOKENIZER:
        return ""
    if path.name == "adapter_config.json":
        return "it is the adapter of a model elsewhere, and must be merged into it"
    value = read_any_json(path)
    if path.name == "modules.json" and isinstance(value, list):
        folders = [module.pop("path", "") for module in value if isinstance(module, dict)]
    elif path.name == "router_config.json" and isinstance(value, dict):
        folders = list(value.get("types") or ())
    else:
        folders = list((value.get("weight_map") or {}).values()) if isinstance(value, dict) else []
    if outside := next((folder for folder in folders if not is_inside(folder)), None):
        return f"it names {str(outside)[:60]!r}, which must lie inside the model"
    return next(_problems(value, "", imports=path.name in _IMPORTING), "")


def _problems(value: Any, name: str, *, imports: bool) -> Iterator[str]:
    if refuses(name, value):
        yield f"it sets {name!r}, which an index may not"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _problems(item, str(key), imports=imports and key not in ("prompts", "__version__"))
    elif isinstance(value, list):
        for item in value:
            yield from _problems(item, name, imports=imports)
    elif imports and isinstance(value, str) and _DOTTED.fullmatch(value) and not _may_import(value):
        yield f"it names the code {value[:60]!r}, and may name modules of sentence-transformers and activations of torch"


def refuses(name: str, value: Any) -> bool:
    """True if no file of an index may set `name` to a value."""
    if not value or type(value) in (int, float):  # such as the number of a word
        return False
    if isinstance(value, str) and ((name == "method" and value not in _METHODS) or _OPENS.fullmatch(name)):
        return True
    return bool(_RUNS.fullmatch(name))


def _may_import(name: str) -> bool:
    """True if a dotted name is a module or a tokenizer of sentence-transformers, or an activation of torch."""
    if not name.startswith(("sentence_transformers.", "torch.nn.modules.")):
        return False
    if find_spec("sentence_transformers") is None:  # then nothing of it can be imported
        return True
    from sentence_transformers.base.modules.module import Module  # takes seconds; only an index from elsewhere needs it
    from sentence_transformers.sentence_transformer.modules.tokenizer import WordTokenizer
    from sentence_transformers.util import import_from_string
    from torch import nn

    try:
        kind = import_from_string(name)
    except ImportError:
        return False
    if not isinstance(kind, type):
        return False
    if kind.__module__.startswith("sentence_transformers."):
        return issubclass(kind, Module | WordTokenizer)
    return kind is nn.Identity or (issubclass(kind, nn.Module) and kind.__module__ == "torch.nn.modules.activation")


def check_settings(paths: Iterable[Path]) -> None:
    """Raise ValueError if a JSON file of an index chooses code, or names another file."""
    for path in paths:
        if path.suffix == ".json" and (reason := problem(path)):
            raise ValueError(f"{path} cannot be in an index: {reason}; remove that, or choose a model without it.")


def file_stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what tells the files of a folder from others, links to the same ones apart."""
    files = [(path.relative_to(folder), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return tuple((str(name), stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in files)


@contextmanager
def offline() -> Iterator[None]:
    """Fetch nothing from the Hub in this block."""
    from huggingface_hub import constants

    with LOADING:  # the setting is global
        offline = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = offline
