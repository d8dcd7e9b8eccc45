"""Identifiers that a language model may write, and no others: a trie of flat tensors with states, steps and masks.

A state is a number, so beams reorder, fork and drop states as any tensor:

    state = trie.start(rows)            # [rows]
    trie.mask(state)                    # [rows, vocabulary] True where a token may follow
    state = trie.step(state, token)     # [rows]; of several draft tokens [rows, n], the state after each

Outside of marks the text is free; between an opening and a closing mark only identifiers are written. Knows no model.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dsi.docids.types import Bools, Rows

_STRIDE = 2**31
"""A node and a token make one key, node * _STRIDE + token."""
_DEAD = -1
"""The state of a row that wrote a token that it must not; only the end token follows."""
_FREE = -2
"""The state of free text; _FREE - n is free text that ends with prefix n of an opening mark."""
_BLOCK = 10_000
"""Texts that are tokenized together."""
By = Literal["title", "doc_id", "words", "digits"]
"""What names a document of an index."""


@dataclass(frozen=True, eq=False)
class Trie:
    """Identifiers, each followed by its closing tokens, so that one may be the beginning of another.

    Nodes are numbered from the root, 0, level by level: edge e leads to node e + 1, so one tensor of keys is the whole trie.

    Example:
        >>> trie = Trie.from_tokens([[5, 6], [5, 6, 7]], closing=[1])
        >>> state = trie.step(trie.start(1), torch.tensor([[5, 6]]))[:, -1]
        >>> trie.mask(state).nonzero()[:, 1].tolist()
        [1, 7]
        >>> trie.number(trie.step(state, torch.tensor([1]))).tolist()
        [0]

    Attributes:
        keys: [edges] node and token of each edge, ascending.
        leaves: [identifiers] the node after the last closing token of each, ascending.
        numbers: [identifiers] the number of the identifier that ends there: its place in the list, or its row in an index.
        levels: the first edge of each level, and the number of edges.
        end: the token that follows where nothing else may.
        vocabulary: tokens of the model; a model may have more, which are never written.
        outside: [prefixes of opening marks, vocabulary] state after each token of free text; None without opening marks.
        allowed: [nodes] True above an identifier of the subset; None if all are allowed.
        generation: of the index that it was built from, which changes with every update; 0 without one.
    """

    keys: Tensor
    leaves: Tensor
    numbers: Tensor
    levels: tuple[int, ...]
    end: int
    vocabulary: int
    outside: Tensor | None = None
    allowed: Tensor | None = None
    generation: int = 0

    # Building.

    @classmethod
    def from_tokens(
        cls, identifiers: Sequence[Sequence[int]], closing: Sequence[int], *,
        opening: Sequence[int] = (), vocabulary: int = 0, names: Sequence[str] = (),
    ) -> "Trie":  # fmt: skip
        """Return the trie of identifiers given as tokens.

        Args:
            identifiers: the tokens of each.
            closing: tokens that follow an identifier: the model's end token, or a closing mark.
            opening: tokens after which an identifier begins; by default one is all that is written.
            vocabulary: of the model; needed with `opening`, by default as large as the identifiers need.
            names: of the identifiers in messages.

        Raises:
            ValueError: no identifiers or no closing tokens; an identifier that is empty, equal to another, holds a mark or a
                token out of range.
        """
        names = names or [f"number {number}" for number in range(len(identifiers))]
        marks = [list(mark) for mark in (closing, opening) if len(mark)]
        if not len(closing):
            raise ValueError("closing must have at least one token, such as the model's end token, got none.")
        for name, tokens in zip(names, identifiers, strict=True):
            if not len(tokens):
                raise ValueError(f"The identifier of {name} is empty; give it at least one token.")
            if held := [mark for mark in marks if _holds(tokens, mark)]:
                raise ValueError(f"The identifier of {name} holds the mark {held[0]}: {[*tokens]}; leave the mark out.")
        trie = cls._from_rows([[*tokens, *closing] for tokens in identifiers], int(closing[-1]), vocabulary, names)
        if not len(opening):
            return trie
        if not 0 <= min(opening) <= max(opening) < vocabulary:
            raise ValueError(f"opening must have tokens from 0 to {vocabulary - 1}, got {list(opening)}.")
        return replace(trie, outside=_outside([tuple(opening)], np.arange(vocabulary)[:, None]))

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], tokenizer: Any, *,
        opening: str | Sequence[str] = (), closing: str = "", as_json: bool = False,
    ) -> "Trie":  # fmt: skip
        """Return the trie of identifiers given as texts.

        Tokens are those that the tokenizer gives an identifier between its marks, so tokens may join an identifier and its
        closing mark. A token that would reach from free text beyond an opening mark is never written.

        Args:
            texts: the identifiers.
            tokenizer: of the model, as transformers has them.
            opening: ASCII text, or several, after which an identifier begins; by default it is all that is written.
            closing: text that follows an identifier; by default the tokenizer's end token.
            as_json: identifiers are JSON strings: their characters are escaped, a quote closes them, and one ends `opening`.

        Raises:
            ValueError: no identifiers; one that is empty, equal to another, holds a mark or a special token, or is not what its
                tokens decode to; a tokenizer without an end token; opening marks that are not ASCII.
        """
        openings = [opening] if isinstance(opening, str) else list(opening)
        end = _end_of(tokenizer)
        if not all(mark and mark.isascii() for mark in openings):
            raise ValueError(f"opening must be ASCII text, or several, got {opening!r}.")
        written = [json.dumps(text, ensure_ascii=False)[1:-1] if as_json else text for text in texts]
        closing = '"' if as_json else closing
        _check_texts(written, texts, [*([] if as_json else [*openings, closing]), *tokenizer.all_special_tokens])
        rows = list(_tokens(written, tokenizer, openings[0] if openings else "", closing))
        trie = cls._from_rows(rows if closing else [[*row, end] for row in rows], end, len(tokenizer), texts)
        if not openings:
            return trie
        return replace(trie, outside=_outside([tuple(map(ord, mark)) for mark in openings], _characters(tokenizer)))

    @classmethod
    def from_index(
        cls, retriever: Any, by: By = "title", *, tokenizer: Any, first: int | None = None, **marks: Any
    ) -> "Trie":
        """Return the trie of the documents of an index; their numbers are rows of its document table.

        Args:
            retriever: the index; of one on disk the trie has the generation.
            by: names a document by its title, its doc_id, the telling words of its clusters before its title, or its digits.
            tokenizer: of the model.
            first: for digits, the first of `tree.vocab_size` - 1 new tokens, one for each digit of each level.
            **marks: as `from_texts` takes them; for digits tokens, as `from_tokens` does.

        Raises:
            ValueError: identifiers as above; `by` is unknown; digits without `first`.
        """
        index = retriever.snapshot
        if by == "digits":
            if first is None:
                raise ValueError(
                    "by='digits' needs first, the first of the new tokens that stand for digits, got None."
                )
            return replace(_of_digits(index, tokenizer, first, marks), generation=index.generation)
        texts = _names(index, by)
        return replace(cls.from_texts(texts, tokenizer, **marks), generation=index.generation)

    @classmethod
    def _from_rows(cls, rows: Sequence[Sequence[int]], end: int, vocabulary: int, names: Sequence[str]) -> "Trie":
        """Return the trie of identifiers with their closing tokens."""
        if not len(rows):
            raise ValueError("There are no identifiers to generate; give at least one.")
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        tokens = np.fromiter((token for row in rows for token in row), dtype=np.int64, count=int(lengths.sum()))
        limit = vocabulary or _STRIDE
        if tokens.min() < 0 or tokens.max() >= limit:
            row = int(np.searchsorted(np.cumsum(lengths), np.argmax((tokens < 0) | (tokens >= limit)), side="right"))
            raise ValueError(
                f"The identifier of {names[row]} must have tokens from 0 to {limit - 1}, got {list(rows[row])}."
            )
        keys, levels, leaves = _grow(tokens, lengths)
        order = np.argsort(leaves, kind="stable")
        sorted_leaves = leaves[order]
        _check_equal(sorted_leaves, order, names)
        # a mark of several tokens can make one the beginning of another
        inner = np.isin(sorted_leaves, keys // _STRIDE)
        if inner.any():
            name = names[order[np.argmax(inner)]]
            raise ValueError(
                f"The identifier of {name} and its closing mark begin another; give one of them another text."
            )
        edges, ends, numbers = (torch.from_numpy(array) for array in (keys, sorted_leaves, order))
        return cls(edges, ends, numbers, tuple(levels), end, vocabulary or int(max(tokens.max(), end)) + 1)

    # Subsets, scores, devices.

    def only(self, allowed: Bools | Tensor) -> "Trie":
        """Return the trie of some identifiers, with a flag for each node; keys are shared.

        Args:
            allowed: True for the identifiers that may be written, by number; see `DocumentTable.allowed`.

        Raises:
            ValueError: none of them is left.
        """
        bits = self._by_leaf(torch.as_tensor(allowed, dtype=torch.bool, device=self.keys.device))
        bits = bits if self.allowed is None else bits & self.allowed[self.leaves]
        nodes = self._upwards(bits.to(torch.uint8), 0).to(torch.bool)
        if not nodes[0]:
            raise ValueError(f"The filter leaves none of {len(self.leaves):,} identifiers; give another one.")
        return replace(self, allowed=nodes)

    def prior(self, scores: Tensor) -> Tensor:
        """Return a score for every node [queries, nodes], the highest of its identifiers, for `constrain`.

        Args:
            scores: [queries, numbers] a finite score for each identifier, by number, such as log probabilities of documents.
        """
        if not bool(scores.isfinite().all()):
            raise ValueError(
                "scores must be finite; give identifiers without a score a low one, or filter them by `only`."
            )
        return self._upwards(self._by_leaf(scores.to(self.keys.device)), -torch.inf)

    def _by_leaf(self, values: Tensor) -> Tensor:
        """Return values [..., numbers] in the order of the leaves."""
        return values[..., self.numbers]

    def _upwards(self, values: Tensor, lowest: float) -> Tensor:
        """Return the largest value of the leaves at or below each node, [..., nodes] of values [..., leaves]."""
        nodes = values.new_full((*values.shape[:-1], len(self.keys) + 1), lowest)
        nodes[..., self.leaves] = values
        parents = self.keys // _STRIDE
        for start, stop in zip(self.levels[-2::-1], self.levels[:0:-1], strict=True):  # the deepest level first
            above = parents[start:stop].expand(*nodes.shape[:-1], stop - start)
            nodes.scatter_reduce_(-1, above, nodes[..., start + 1 : stop + 1].clone(), "amax")
        return nodes

    def to(self, device: torch.device | str) -> "Trie":
        """Return the trie on a device."""
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    # States.

    def start(self, rows: int) -> Tensor:
        """Return the state of each row before it writes anything, [rows]."""
        return torch.full((rows,), 0 if self.outside is None else _FREE, device=self.keys.device)

    def step(self, state: Tensor, token: Tensor) -> Tensor:
        """Return the state [rows] after a token [rows], or after each of several draft tokens [rows, n]."""
        if token.dim() == 1:
            return self._step(state, token)
        states = []
        for column in token.unbind(1):
            state = self._step(state, column)
            states.append(state)
        return torch.stack(states, 1) if states else token.new_empty(token.shape)

    def _step(self, state: Tensor, token: Tensor) -> Tensor:
        first, last = self._range(state)
        keys = state * _STRIDE + token
        edge = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        exists = self.keys[edge] == keys
        if self.allowed is not None:
            exists &= self.allowed[edge + 1]
        after = torch.where(exists, edge + 1, _DEAD)
        ended = (first == last) & (state >= 0)  # at a leaf
        if self.outside is None:
            return torch.where(ended, state, after)
        prefix = (_FREE - state).clamp(min=0)  # a leaf is followed by free text
        free = self.outside[prefix, token.clamp(max=self.vocabulary - 1)]
        return torch.where(ended | (state <= _FREE), free, after)

    def _range(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first edge of each state, and one past its last; both are equal where none is."""
        first = torch.searchsorted(self.keys, state * _STRIDE)
        return first, torch.searchsorted(self.keys, (state + 1) * _STRIDE)

    def mask(self, state: Tensor) -> Tensor:
        """Return [..., vocabulary], True for the tokens that may follow states [...]; at least one for each."""
        flat = state.reshape(-1)
        zeros = torch.zeros(len(flat), self.vocabulary, device=flat.device)
        return self.constrain(zeros, flat).isfinite().view(*state.shape, self.vocabulary)

    def constrain(self, logits: Tensor, state: Tensor, prior: Tensor | None = None, weight: float = 1.0) -> Tensor:
        """Return logits with -inf for every token that must not follow.

        Args:
            logits: [rows, tokens of the model].
            state: [rows].
            prior: [queries, nodes] of `prior`, added to the tokens of identifiers: logits + weight * score of the node. Rows
                of the same query are neighbours, as many for each.
            weight: of the prior.

        Raises:
            ValueError: the model has fewer tokens than the identifiers need, or rows that are no multiple of the queries.
        """
        if self.vocabulary > logits.shape[1]:
            raise ValueError(
                f"The identifiers need {self.vocabulary} tokens, the model has {logits.shape[1]}; take its tokenizer."
            )
        first, last = self._range(state)
        counts = last - first
        rows = torch.arange(len(state), device=state.device).repeat_interleave(counts)
        edges = torch.arange(len(rows), device=state.device) + (first - counts.cumsum(0) + counts)[rows]
        if self.allowed is not None:
            is_allowed = self.allowed[edges + 1]
            rows, edges = rows[is_allowed], edges[is_allowed]
        tokens = self.keys[edges] % _STRIDE
        values = logits[rows, tokens]
        if prior is not None:
            values = values + weight * prior[_queries(rows, len(state), prior), edges + 1].to(values.dtype)
        masked = torch.full_like(logits, -torch.inf)
        masked[rows, tokens] = values
        ended = (counts == 0).nonzero()[:, 0]
        if self.outside is None:
            masked[ended, self.end] = logits[ended, self.end]
            return masked
        dead = ended[state[ended] == _DEAD]
        masked[dead, self.end] = logits[dead, self.end]
        free = ended[state[ended] != _DEAD]
        may = self.outside[(_FREE - state[free]).clamp(min=0)] != _DEAD  # [free, vocabulary]
        masked[free, : self.vocabulary] = logits[free, : self.vocabulary].masked_fill(~may, -torch.inf)
        return masked

    def number(self, state: Tensor) -> Tensor:
        """Return the number of the identifier that each state has just closed, -1 where none is."""
        at = torch.searchsorted(self.leaves, state.contiguous()).clamp(max=len(self.leaves) - 1)
        return torch.where(self.leaves[at] == state, self.numbers[at], -1)


def _queries(rows: Tensor, count: int, prior: Tensor) -> Tensor:
    """Return the query of each row, of `count` rows in all."""
    if count % len(prior):
        raise ValueError(
            f"prior has {len(prior)} queries, of which {count} rows are no multiple; give a score for each prompt."
        )
    return rows // (count // len(prior))


def _holds(tokens: Sequence[int], mark: Sequence[int]) -> bool:
    """Return whether some tokens hold a mark."""
    return any(list(tokens[start : start + len(mark)]) == mark for start in range(len(tokens) - len(mark) + 1))


def _grow(tokens: Rows, lengths: Rows) -> tuple[Rows, list[int], Rows]:
    """Return the edges' keys, the first edge of each level, and the node where each identifier ends.

    `tokens`: [all] of one identifier after the other; `lengths`: [identifiers].
    """
    starts = np.cumsum(lengths) - lengths
    rows, nodes, leaves = np.arange(len(lengths)), np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    keys, levels = [], [0]
    for depth in range(int(lengths.max())):
        goes_on = lengths[rows] > depth
        leaves[rows[~goes_on]] = nodes[~goes_on]
        rows, nodes = rows[goes_on], nodes[goes_on]
        level, edge = np.unique(nodes * _STRIDE + tokens[starts[rows] + depth], return_inverse=True)
        nodes = levels[-1] + 1 + edge
        keys.append(level)
        levels.append(levels[-1] + len(level))
    leaves[rows] = nodes
    return np.concatenate(keys), levels, leaves


def _check_equal(leaves: Rows, order: Rows, names: Sequence[str]) -> None:
    """Raise ValueError if two identifiers end at the same node."""
    (equal,) = np.nonzero(leaves[1:] == leaves[:-1])
    if len(equal):
        one, other = order[equal[0]], order[equal[0] + 1]
        same = f"The identifiers of {names[one]} (at {one}) and {names[other]} (at {other}) are equal to the model"
        raise ValueError(f"{same}; give each its own ({len(equal)} such pairs).")


# Texts.


def _check_texts(written: Sequence[str], texts: Sequence[str], marks: Sequence[str]) -> None:
    """Raise ValueError if a text is empty, or holds a mark or a special token."""
    marked = re.compile("|".join(re.escape(mark) for mark in marks if mark))
    for number, text in enumerate(written):
        if not text.strip():
            raise ValueError(f"Identifier {number} must be a text that is not empty, got {texts[number]!r}.")
        if match := marked.search(text):
            raise ValueError(
                f"Identifier {number}, {texts[number]!r}, holds {match[0]!r}, a mark or special token; choose another mark."
            )


def _tokens(texts: Sequence[str], tokenizer: Any, opening: str, closing: str) -> Iterator[list[int]]:
    """Yield the tokens of each text and its closing mark, as the tokenizer gives them after the opening mark."""

    def encode(some: Sequence[str]) -> list[list[int]]:
        tokens: list[list[int]] = tokenizer(list(some), add_special_tokens=False, return_attention_mask=False)[
            "input_ids"
        ]
        return tokens

    head = encode([opening])[0] if opening else []
    for start in range(0, len(texts), _BLOCK):
        block = [text + closing for text in texts[start : start + _BLOCK]]
        rows = encode([opening + text for text in block])
        # those with a token that has letters of the mark and of the identifier
        joined = [number for number, row in enumerate(rows) if row[: len(head)] != head]
        for number, row in zip(joined, encode([block[number] for number in joined]) if joined else [], strict=True):
            rows[number] = [*head, *row]
        decoded = tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for text, again, row in zip(block, decoded, rows, strict=True):
            if again != opening + text:
                raise ValueError(
                    f"The tokenizer writes {opening + text!r} as {again!r}; leave the identifier out, or write it so."
                )
            yield row[len(head) :]


def _characters(tokenizer: Any) -> Rows:
    """Return the characters that each token adds to a text, [vocabulary, longest], -1 past the end."""
    before = tokenizer("a", add_special_tokens=False)["input_ids"]
    pairs = [[*before, token] for token in range(len(tokenizer))]
    decoded = tokenizer.batch_decode(pairs, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    start = len(tokenizer.decode(before))
    rows = np.full((len(decoded), max(map(len, decoded))), -1, dtype=np.int64)
    for row, text in zip(rows, decoded, strict=True):
        row[: len(text) - start] = list(map(ord, text[start:]))
    return rows


def _outside(marks: Sequence[tuple[int, ...]], symbols: Rows) -> Tensor:
    """[prefixes of marks, vocabulary] the state after each token of free text, by the automaton of Aho and Corasick.

    The root's state where a mark ends with the token, _DEAD where it goes on after one. `marks`: the symbols of each opening
    mark; `symbols`: [vocabulary, longest] of each token, -1 past the end.
    """
    prefixes = sorted(sorted({mark[:length] for mark in marks for length in range(len(mark))}), key=len)
    alphabet = np.unique(np.concatenate([np.asarray(mark) for mark in marks]))
    complete, beyond = len(prefixes), len(prefixes) + 1
    numbers = {prefix: number for number, prefix in enumerate(prefixes)} | dict.fromkeys(marks, complete)
    moves = np.zeros((len(prefixes) + 2, len(alphabet) + 1), dtype=np.int64)  # the last column: any other symbol
    moves[complete:] = beyond
    for prefix in prefixes:
        for column, symbol in enumerate(alphabet.tolist()):
            written = (*prefix, symbol)
            ends = [written[start:] for start in range(len(written) + 1)]
            moves[numbers[prefix], column] = (
                complete if any(end in marks for end in ends) else next(numbers[end] for end in ends if end in numbers)
            )
    at = np.repeat(np.arange(len(prefixes))[:, None], len(symbols), axis=1)  # [prefixes, vocabulary]
    for symbols_at in symbols.T:
        columns = np.minimum(np.searchsorted(alphabet, symbols_at), len(alphabet) - 1)
        columns = np.where(alphabet[columns] == symbols_at, columns, len(alphabet))
        at = np.where(symbols_at < 0, at, moves[at, columns])
    return torch.from_numpy(np.where(at == complete, 0, np.where(at == beyond, _DEAD, _FREE - at)))


# Indexes.


def _names(index: Any, by: str) -> list[str]:
    """Return the name of each document of an index."""
    if by not in ("title", "doc_id", "words"):
        raise ValueError(f"by must be title, doc_id, words or digits, got {by!r}.")
    column = "title" if by == "words" else by
    rows = np.arange(len(index.documents))[:, None]
    names = [name for (name,) in index.documents.values_of(column, rows)]
    return _with_words(index, names) if by == "words" else names


def _with_words(index: Any, titles: list[str]) -> list[str]:
    """Return the telling words of each document's clusters, from the root down, and its title."""
    from dsi.store.documents.topics import Topics

    topics, words = Topics(index.tree, index.documents), {}
    names = []
    parents, _ = index.tree.paths(index.tree.positions)
    for title, path in zip(titles, parents[:, 1:].tolist(), strict=True):
        clusters = [node for node in path if node >= 0]
        for node in clusters:
            if node not in words:
                words[node] = " ".join(topics.telling_words(node, 3))
        names.append(" / ".join([*(words[node] for node in clusters), title]))
    return names


def _end_of(tokenizer: Any) -> int:
    """Return a tokenizer's end token."""
    if tokenizer.eos_token_id is None:
        raise ValueError("The tokenizer has no end token, which ends what is written; set its eos_token.")
    return int(tokenizer.eos_token_id)


def _of_digits(index: Any, tokenizer: Any, first: int, marks: dict[str, Any]) -> Trie:
    """Return the trie of the docids of an index, those of removed documents left out."""
    tree = index.tree
    _, digits = tree.paths(tree.by_row)  # [places, depth]
    tokens = np.where(digits < 0, -1, digits + tree.token_offsets - 1 + first)
    rows = [[token for token in row if token >= 0] for row in tokens.tolist()]
    marks = {
        "closing": [_end_of(tokenizer)],
        "vocabulary": max(len(tokenizer), first + tree.vocab_size - 1),
        **marks,
    }
    trie = Trie.from_tokens(rows, **marks)
    return replace(trie, numbers=torch.from_numpy(tree.doc_rows[tree.by_row].astype(np.int64))[trie.numbers])
