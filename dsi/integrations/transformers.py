"""`generate` of transformers over identifiers: a logits processor for any model, and search with seq2seq models of others.

Knows the docid tree; our own generators and their search take no part.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

from dsi.contrastive.devices import check_device, choose_device
from dsi.contrastive.encoder import quiet_transformers
from dsi.docids.files.checks import plain, text
from dsi.docids.files.progress import progress
from dsi.docids.tree import DocidTree
from dsi.integrations.tries import Trie, token_rows
from dsi.search.queries import ids_and_texts

_BATCH = 32
_QUERY_LENGTH = 512
_DROPPED = -1e8
"""Beams that `generate` dropped have scores of -1e9 and less."""


class DocidLogitsProcessor(LogitsProcessor):
    """Lets `generate` write identifiers only, as `prefix_allowed_tokens_fn` over a trie does, without a loop over beams.

    Example:
        >>> processor = DocidLogitsProcessor.from_identifiers([[5, 6], [5, 7, 8]], end=1)
        >>> processor(torch.tensor([[0, 5]]), torch.zeros(1, 9)).isfinite().nonzero()[:, 1].tolist()
        [6, 7]

    Args:
        trie: the identifiers.
        prompt_length: tokens before the identifier: 1 for an encoder-decoder, the length of the prompt for a decoder.
    """

    def __init__(self, trie: Trie, *, prompt_length: int = 1) -> None:
        self.trie, self.prompt_length = trie, plain(int, prompt_length, "prompt_length")

    @classmethod
    def from_identifiers(
        cls, identifiers: Sequence[Sequence[int]], end: int, *, prompt_length: int = 1
    ) -> "DocidLogitsProcessor":
        """Return a processor for identifiers.

        Args:
            identifiers: the tokens of each, without the end token.
            end: the token that ends an identifier, the model's `eos_token_id`.
            prompt_length: tokens before the identifier.

        Raises:
            ValueError: no identifiers, or one that is empty, equal to another or the start of another.
        """
        names = [f"number {number}" for number in range(len(identifiers))]
        return cls(Trie.from_rows(token_rows(identifiers, names, end), end), prompt_length=prompt_length)

    @classmethod
    def from_tree(
        cls, tree: DocidTree, tokens: Sequence[Sequence[int]], end: int, *, prompt_length: int = 1
    ) -> "DocidLogitsProcessor":
        """Return a processor for the docids of a tree; those of removed documents are no identifiers.

        Args:
            tree: the docids.
            tokens: for each level the token of each digit.
            end: the token that ends a docid.
            prompt_length: tokens before the docid.

        Raises:
            ValueError: the tokens are not those of the tree's levels and digits.
        """
        sizes = [len(level_tokens) for level_tokens in tokens]
        if len(sizes) != tree.depth or any(size < most for size, most in zip(sizes, tree.fan_out, strict=True)):
            raise ValueError(f"tokens must have {tree.fan_out} digits by level, got {sizes}.")
        if any(
            len(set(level_tokens)) < len(level_tokens) or min(level_tokens) < 0 or end in level_tokens
            for level_tokens in tokens
        ):
            raise ValueError("tokens must be different for the digits of a level, at least 0, and none the end token.")
        _, digits = tree.paths(tree.by_row)  # [places, depth]
        rows = np.full(digits.shape, -1, dtype=np.int64)
        for level, level_tokens in enumerate(tokens):
            rows[:, level] = np.where(
                digits[:, level] < 0, -1, np.asarray(level_tokens, dtype=np.int64)[digits[:, level]]
            )
        return cls(Trie.from_rows(rows, end), prompt_length=prompt_length)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [n, vocabulary] with -inf for every token that goes on with no identifier.

        Args:
            input_ids: [n, length] the prompt and what was generated.
            scores: [n, vocabulary] of the next token.

        Raises:
            ValueError: the vocabulary lacks a token of the identifiers, or `input_ids` is shorter than the prompt.
        """
        depth = input_ids.shape[1] - self.prompt_length
        if depth < 0 or self.trie.largest >= scores.shape[1]:
            raise ValueError(
                f"The identifiers need tokens up to {self.trie.largest} after a prompt of {self.prompt_length}; the model has "
                f"{scores.shape[1]} tokens, and {input_ids.shape[1]} were given."
            )
        if self.trie.keys.device != scores.device:
            self.trie = self.trie.to(scores.device)
        tokens = self.trie.allowed(self.trie.follow(input_ids[:, self.prompt_length :]), depth)  # [n, widest]
        return torch.full_like(scores, -math.inf).scatter_(1, tokens, scores.gather(1, tokens))


class Seq2SeqRetriever:
    """A sequence-to-sequence model that writes identifiers as text, such as a T5 trained as DSI, as a retriever.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        identifiers: {doc_id: text of its identifier}, as the model was trained to write it.

    Raises:
        ValueError: an identifier is empty, or to the tokenizer equal to another or the start of another.
    """

    def __init__(self, model: Any, tokenizer: Any, identifiers: Mapping[str, str]) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self._end = tokenizer.eos_token_id
        if self._end is None:
            raise ValueError("The tokenizer has no end token, which identifiers need; set its eos_token.")
        tokens = [
            self._tokens(text(identifier, f"The identifier of {doc_id!r}"))
            for doc_id, identifier in identifiers.items()
        ]
        rows = token_rows(tokens, [repr(doc_id) for doc_id in identifiers], self._end)
        self._processor = DocidLogitsProcessor(Trie.from_rows(rows, self._end))
        self._doc_ids = {tuple(row): doc_id for doc_id, row in zip(identifiers, tokens, strict=True)}
        self._longest = rows.shape[1]

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, identifiers: Mapping[str, str], *, device: str | None = None
    ) -> "Seq2SeqRetriever":
        """Load a model.

        Args:
            folder: of the model, or its name on the Hub.
            identifiers: {doc_id: text of its identifier}.
            device: "cpu", "cuda", …; the best available by default.

        Raises:
            ValueError: no sequence-to-sequence model there, a device that cannot be used, or identifiers as above.
        """
        check_device(device)
        try:
            with quiet_transformers():
                model = AutoModelForSeq2SeqLM.from_pretrained(str(folder))
                tokenizer = AutoTokenizer.from_pretrained(str(folder))
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise ValueError(f"{folder} is not a sequence-to-sequence model of transformers ({reason}).") from None
        return cls(model.to(choose_device(device)), tokenizer, identifiers)

    def _tokens(self, identifier: str) -> list[int]:
        """Return the tokens of an identifier as a label of training, without the end token."""
        tokens: list[int] = self.tokenizer(identifier)["input_ids"] if identifier.strip() else []
        return tokens[:-1] if tokens and tokens[-1] == self._end else tokens

    @torch.no_grad()
    def run(self, queries: Mapping[str, str], k: int = 10, beam_width: int = 10) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: log probability}} for {query_id: text}, the format of `eval` and of TREC tools.

        Args:
            queries: cut to the model's length, 512 tokens at most.
            k: documents per query.
            beam_width: of the search, at least k is used.

        Raises:
            TypeError: queries are no mapping.
            ValueError: a query that is not a text, k or beam_width below 1.
        """
        if not isinstance(queries, Mapping):
            raise TypeError(f"run() takes {{query_id: text}}, got {type(queries).__name__}.")
        if min(plain(int, k, "k"), plain(int, beam_width, "beam_width")) < 1:
            raise ValueError(f"k and beam_width must be at least 1, got {k} and {beam_width}.")
        query_ids, texts = ids_and_texts(queries)
        asked = {query_id: text for query_id, text in zip(query_ids, texts, strict=True) if text.strip()}
        results: dict[str, dict[str, float]] = {query_id: {} for query_id in query_ids}
        for start in progress(range(0, len(asked), _BATCH), "search", unit="batch"):
            part = dict(islice(asked.items(), start, start + _BATCH))
            answers = self._search(list(part.values()), min(k, len(self._doc_ids)), max(k, beam_width))
            results.update(zip(part, answers, strict=True))
        return results

    def _search(self, texts: list[str], k: int, beam_width: int) -> list[dict[str, float]]:
        """Return {doc_id: log probability} for each text."""
        length = min(self.tokenizer.model_max_length, _QUERY_LENGTH)
        read = self.tokenizer(texts, truncation=True, max_length=length, padding=True, return_tensors="pt")
        output = self.model.generate(
            input_ids=read["input_ids"].to(self.model.device),
            attention_mask=read["attention_mask"].to(self.model.device),
            logits_processor=LogitsProcessorList([self._processor]),
            num_beams=beam_width,
            num_return_sequences=k,
            max_new_tokens=self._longest + 1,
            eos_token_id=self._end,
            min_length=0,
            length_penalty=0.0,  # the score is the sum of the log probabilities
            early_stopping=False,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        rows = output.sequences[:, 1:].tolist()
        answers: list[dict[str, float]] = [{} for _ in texts]
        for number, (row, score) in enumerate(zip(rows, output.sequences_scores.tolist(), strict=True)):
            doc_id = self._doc_ids.get(tuple(row[: row.index(self._end)] if self._end in row else row))
            if doc_id is not None and score > _DROPPED:
                answers[number // k].setdefault(doc_id, score)
        return answers
