"""The prompts of a model of sentence-transformers: its own, unless a setting replaces them. Knows nothing of texts."""

import logging
from typing import Any

logger = logging.getLogger(__name__)

_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""{kind of text: names of its prompt, as sentence-transformers looks for them}."""


def own_prompt(model: Any, kind: str) -> str:
    """Return the prompt that a model of sentence-transformers has for a kind of text, "" if it has none."""
    default = model.default_prompt_name
    names = [
        *_PROMPTS[kind],
        *([] if default in _PROMPTS["query"] else [default]),
    ]  # of queries, it is not for documents
    return next((model.prompts[name] for name in names if model.prompts.get(name)), "")


def choose_prompt(model: Any, kind: str, given: str | None) -> str:
    """Return the prompt of the config, or else the model's own; logs a replaced one, and prompts that none chose."""
    own = own_prompt(model, kind)
    if given is not None:
        if own and own != given:
            logger.warning("encoder.%s_prompt = %r replaces the model's own prompt %r.", kind, given, own)
        return given
    others = sorted(name for name, prompt in model.prompts.items() if prompt)
    if kind == "query" and others and not own and not own_prompt(model, "document"):
        logger.warning(
            "The encoder has prompts for other tasks alone (%s); set encoder.query_prompt to use one.",
            ", ".join(others),
        )
    return own
