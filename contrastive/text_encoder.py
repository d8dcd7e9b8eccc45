"""What an encoder knows of texts, whatever computes its vectors: where they are cut, and which tokens they have.

Arrays are NumPy's, so that a search needs neither torch nor transformers. Knows nothing of docids or of decoders.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from dsi.contrastive.config import LONGEST_INPUT, LONGEST_PROMPT, EncoderConfig
from dsi.contrastive.cutting import MORE, DocumentCut, Lengths, cut_documents, has_words, head_of
from dsi.contrastive.model_files import TEXTS
from dsi.contrastive.readable import shares_read
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import catching_panics
from dsi.docids.types import Bools, Floats, Ints

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

PLURALS = {"query": "queries", "document": "documents"}
"""{kind of text: its plural, for progress bars}."""

_USUAL = (
    ("query", "which noble gas glows in signs"),
    ("query", "capital cities on the Danube"),
    (
        "document",
        "The Danube flows through ten countries, and through Vienna, Bratislava and Budapest, to the Black Sea.",
    ),
    ("document", "Neon is a noble gas. It glows reddish orange in advertising signs when a current flows through it."),
)
"""Texts from which the usual length of an embedding is taken, where lengths count, and how far scores lie apart."""
_CHARACTERS = 16
"""Characters of a text that are read for a token at first."""
_COUNTED = 2_048
"""Texts whose tokens are in memory at a time while they are counted."""
_LEAST_ROOM = 16
"""Tokens that a text has beside prompt and special tokens, at least."""


class EncodedTexts(NamedTuple):
    """What one pass of an encoder gives."""

    states: Floats  # [n, length, state_dim] token states
    mask: Bools  # [n, length] True at real tokens
    embeddings: Floats  # [n, embedding_dim]
    words: Bools  # [n, length] True at real tokens that are not special ones such as [CLS]


class Outputs(NamedTuple):
    """What a model gives for texts."""

    numbers: Ints  # [n, length] of tokens
    mask: Bools  # [n, length] True at real tokens
    states: Floats  # [n, length, state_dim]
    vectors: Floats  # [n, dim] as the model makes them


class TokenSpan(NamedTuple):
    """Where a token lies in a text: characters start to end, none in the prompt; and whether it is a special one."""

    start: int
    end: int
    is_special: bool


class Vocabulary(NamedTuple):
    """A tokenizer, and what its file does not say."""

    tokenizer: "tokenizers.Tokenizer"  # its padding and truncation are set at every call
    special: Sequence[int]  # numbers of special tokens
    unknown: int | None = None  # number of the token for what it does not know, if it has one
    side: str = "right"  # where texts that are too long are cut, "right" or "left"
    marks: bool = True  # whether texts are encoded with special tokens


class TextEncoder(ABC):
    """Makes embeddings and token states of texts.

    Dot products of its embeddings are what the model compares texts by. For cosines, embeddings have length 1. For dot products
    they keep their lengths, in units of their usual length, so that weights beside them mean the same for every model; with
    `encoder.pooling = "mean"`, the paper's, lengths stay as they are.
    """

    device: Any  # where it computes
    embedding_dim: int
    state_dim: int  # width of a token state
    max_length: int | None  # tokens of a text that it reads, with special ones; None if it reads any text to its end
    batch_size = 16  # texts per forward pass: on a CPU what its caches hold (1.3 times as fast as 64)

    def __init__(
        self, config: EncoderConfig, prompts: dict[str, str], vocabulary: Vocabulary, *, is_cosine: bool
    ) -> None:
        self.config, self.prompts, self.vocabulary, self.is_cosine = config, prompts, vocabulary, is_cosine
        self._source: tuple[Any, ...] | None = None
        self._warned_long_query = False
        self._tokenizing = threading.Lock()  # a call sets the tokenizer's padding and truncation

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what `load` was given; the process that reads it loads it once."""
        if self._source is None:
            raise ValueError("A model is pickled as the folder or name that it was loaded from; save and load it.")
        return _reloaded, (type(self), self._source, self.fingerprint)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """sha256 of weights, prompts and similarity: encoders with the same one give the same embeddings."""

    @abstractmethod
    def run(self, texts: Sequence[str], kind: str) -> Outputs:
        """Return what the model gives for texts, after their prompt, of one pass."""

    @abstractmethod
    def for_search(self, dtype: str = "float32") -> Self:
        """Return a copy for fast inference in a dtype; later changes to the weights do not affect it."""

    def for_documents(self, texts: int) -> Self:
        """Return a copy for a stage that encodes a number of texts."""
        return self.for_search()

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the encoder into a folder of an index; the same encoder gives the same files."""

    def check(self) -> None:
        """Raise ValueError unless the encoder gives finite embeddings and states of its stated widths."""
        for kind in PLURALS:
            states, _, embeddings, _ = self.forward(TEXTS, kind)
            sizes, expected = [states.shape[-1], embeddings.shape[-1]], [self.state_dim, self.embedding_dim]
            if sizes != expected:
                raise ValueError(f"The encoder's states and embeddings are {sizes} wide, and should be {expected}.")
            if not all(np.isfinite(output).all() for output in (states, embeddings)):
                raise ValueError("The encoder gives embeddings that are not finite.")

    def document_texts(self, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
        """Return the title, a space, and the first `document_length` tokens of the text, for each document."""
        return [first for (first,) in self.piece_texts(titles, texts, 1)]

    def piece_texts(self, titles: Sequence[str], texts: Sequence[str], pieces: int) -> list[list[str]]:
        """Return the pieces of each document as `cut` finds them, each after the title."""
        cuts = self.cut(titles, texts, pieces)
        return [cut.texts(*of) for *of, cut in zip(titles, texts, cuts, strict=True)]

    def cut(self, titles: Sequence[str], texts: Sequence[str], pieces: int) -> list[DocumentCut]:
        """Return where each document is cut into pieces that the encoder reads to their ends, at most `pieces` of them.

        A document that is read whole, its text of at most `document_length` tokens, is one piece. Of any other, a piece has
        `piece_length` tokens of the text, more where there would be more than a hundred, after the title, of which it reads a
        quarter of the model's tokens. A text that a hundred do not cover is cut stretch by stretch, into a hundred each.
        With `pieces` = 1 it is the title with the first `document_length` tokens, as long as that may be.
        """
        lengths = Lengths(self.config.document_length, self.config.piece_length, pieces)
        return cut_documents(titles, texts, self.token_offsets, lengths, self._room)

    @property
    def _room(self) -> int:
        """Tokens of title and text that the model reads beside prompt and special tokens."""
        limit = self.max_length
        (prompt,) = self.token_offsets([self.prompts["document"]], LONGEST_PROMPT)
        marks = self.vocabulary.tokenizer.num_special_tokens_to_add(False) if self.vocabulary.marks else 0
        reserved = len(prompt) + marks
        return max(_LEAST_ROOM, min(limit or LONGEST_INPUT, LONGEST_INPUT) - reserved)

    def query_texts(self, queries: Sequence[str]) -> list[str]:
        """Return the first `query_length` tokens of each query; warns once if a query is cut."""
        return self.read_queries(queries)[0]

    def read_queries(self, queries: Sequence[str]) -> "tuple[list[str], list[tokenizers.Encoding]]":
        """Return `query_texts`, and the tokens of each, without prompt and special ones."""
        length = self.config.query_length
        encoded = self._first_tokens(queries, length + MORE)
        ends = [max((end for _, end in encoding.offsets[:length]), default=0) for encoding in encoded]
        texts = [query[:end] for query, end in zip(queries, ends, strict=True)]
        long = [number for number, encoding in enumerate(encoded) if len(encoding) > length]
        for number, new in zip(long, self._tokens([texts[n] for n in long], LONGEST_INPUT, marks=False), strict=True):
            encoded[number] = new
        if not self._warned_long_query and any(has_words(queries[n][len(texts[n]) :]) for n in long):
            logger.warning("Queries longer than %d tokens are cut there (encoder.query_length).", length)
            self._warned_long_query = True
        return texts, encoded

    def shares_read(self, texts: Sequence[str], encoded: "Sequence[tokenizers.Encoding] | None" = None) -> Floats:
        """[n] how much of each text the encoder reads, between 0 and 1, as its tokens tell."""
        encoded = self._tokens(texts, LONGEST_INPUT, marks=False) if encoded is None else encoded
        return shares_read(texts, encoded, self.vocabulary.unknown, self._vocabulary_size)

    @cached_property
    def _vocabulary_size(self) -> int:
        return self.vocabulary.tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str], kind: str, *, progress: bool = False) -> Floats:
        """Return embeddings [len(texts), embedding_dim] of texts made by `document_texts` or `query_texts`.

        `kind`: "document" or "query", which sets the prompt.
        """
        texts, embeddings = list(texts), np.empty((len(texts), self.embedding_dim), dtype=np.float32)
        with Bar(f"embeddings of {PLURALS[kind]}", unit="text", total=len(texts), enabled=progress) as bar:
            for places in self._passes(texts):
                embeddings[places] = self.forward([texts[place] for place in places], kind).embeddings
                bar.update(len(places))
        return embeddings

    def forward(self, texts: Sequence[str], kind: str) -> EncodedTexts:
        """Return token states and embeddings of texts, of one pass."""
        numbers, mask, states, vectors = self.run(texts, kind)
        special = self._special  # ascending, and -1
        words = mask & (special[np.searchsorted(special[:-1], numbers)] != numbers)
        return EncodedTexts(states, mask, self._comparable(vectors), words)

    @cached_property
    def _special(self) -> Ints:
        """Numbers of special tokens, ascending, and -1."""
        return np.append(np.unique(np.array(self.vocabulary.special, dtype=np.int64)), -1)

    def _comparable(self, vectors: Floats) -> Floats:
        """Return the vectors [n, embedding_dim] whose dot products compare texts, of what the model gives [n, dim]."""
        vectors = vectors[:, : self.embedding_dim]
        if self.is_cosine:
            return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return vectors / np.float32(self.usual_length)

    @cached_property
    def usual_length(self) -> float:
        """Median length of the embeddings of a few texts; 1 for cosines, and with pooling "mean"."""
        if self.is_cosine or self.config.pooling == "mean":
            return 1.0
        vectors = np.concatenate([self.run([text], kind).vectors for kind, text in _USUAL])[:, : self.embedding_dim]
        return max(1e-6, float(np.sort(np.linalg.norm(vectors, axis=1))[(len(vectors) - 1) // 2]))

    @cached_property
    def spread(self) -> float:
        """How far the score of a document that answers a query lies above that of another one, by two pairs of texts."""
        vectors = np.concatenate([self.forward([text], kind).embeddings for kind, text in _USUAL])
        scores = vectors[:2] @ vectors[2:].T  # [queries, documents]
        return float(scores[0, 1] + scores[1, 0] - scores[0, 0] - scores[1, 1]) / 2

    def spans(self, text: str, kind: str) -> list[TokenSpan]:
        """Return where each real token of a text lies, in the order of the states of `forward`."""
        prompt, limit = self.prompts[kind], self.max_length or LONGEST_INPUT
        (encoded,) = self._tokens([prompt + text], min(limit, LONGEST_INPUT), marks=self.vocabulary.marks)
        special, length = {*self.vocabulary.special}, len(prompt)
        return [
            TokenSpan(max(0, start - length), max(0, end - length), token in special)
            for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True)
        ]

    def token_states(
        self, texts: Sequence[str], kind: str, *, progress: str = "", special: bool = True
    ) -> Iterator[tuple[int, Floats, Floats]]:
        """Yield (position in `texts`, states [length, state_dim], embedding [embedding_dim]) of every text, longest first.

        `kind`: "document" or "query", which sets the prompt; `progress`: what a progress bar says; "" shows none;
        `special`: also yield the states of special tokens such as [CLS].
        """
        with Bar(progress, unit="text", total=len(texts), enabled=bool(progress)) as bar:
            for places in self._passes(texts):
                encoded = self.forward([texts[place] for place in places], kind)
                masks = encoded.mask if special else encoded.words
                for place, states, mask, vector in zip(places, encoded.states, masks, encoded.embeddings, strict=True):
                    yield place, states[mask], vector
                bar.update(len(places))

    def _passes(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the positions of the texts of each forward pass, those with most tokens first."""
        counts = [
            len(encoding)
            for start in range(0, len(texts), _COUNTED)
            for encoding in self._tokens(texts[start : start + _COUNTED], self.max_length or LONGEST_INPUT, marks=False)
        ]
        order = np.argsort(-np.array(counts, dtype=np.int64), kind="stable").tolist()
        for batch in passes([counts[place] for place in order], self.batch_size):
            yield order[batch]

    def token_offsets(self, texts: Sequence[str], most: int) -> list[list[tuple[int, int]]]:
        """Return the first and last character of each of the first `most` tokens of texts, which are read no further."""
        return [encoding.offsets for encoding in self._first_tokens(texts, most)]

    def _first_tokens(self, texts: Sequence[str], most: int) -> "list[tokenizers.Encoding]":
        """Return the first `most` tokens of texts, which are read no further."""
        by_number: dict[int, tokenizers.Encoding] = {}
        rest, size = list(range(len(texts))), _CHARACTERS * most
        while rest:
            heads = [head_of(texts[number], size) for number in rest]
            encoded = self._tokens(heads, most, marks=False)
            by_number |= dict(zip(rest, encoded, strict=True))
            pairs = zip(rest, heads, strict=True)
            rest = [n for n, head in pairs if len(by_number[n]) < most and len(head) < len(texts[n])]
            size *= 4
        return [by_number[number] for number in range(len(texts))]

    def _tokens(self, texts: Sequence[str], most: int, *, marks: bool) -> "list[tokenizers.Encoding]":
        """Return the tokens of texts, at most `most` of each; with `marks` also special ones."""
        tokenizer = self.vocabulary.tokenizer
        with self._tokenizing, catching_panics():
            tokenizer.no_padding()
            tokenizer.enable_truncation(most, direction=self.vocabulary.side)
            return tokenizer.encode_batch(list(texts), add_special_tokens=marks)


def passes(counts: Sequence[int], size: int) -> Iterator[slice]:
    """Yield the texts of each forward pass, given how many tokens they have, in descending order.

    A pass has `size` texts and as many tokens of padding, at most: more padding costs more than another pass.

    >>> list(passes([9, 9, 8, 4, 4], 4))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    start = padding = 0
    for number, count in enumerate(counts):
        padding += counts[start] - count
        if number - start == size or padding > size:
            yield slice(start, number)
            start, padding = number, 0
    if len(counts):
        yield slice(start, len(counts))


@lru_cache(maxsize=2)
def _reloaded(kind: Any, source: tuple[Any, ...], fingerprint: str) -> Any:
    """Return an encoder that another process pickled."""
    encoder = kind.load(*source)
    if encoder.fingerprint != fingerprint:
        raise ValueError(f"{source} is another model here than where the work was given out; use the same files.")
    return encoder
