"""Identifiers that a language model may write: a trie, and a logits processor of transformers (`dsi.tries.processor`)."""

from dsi.tries.trie import Trie

__all__ = ["Trie"]
