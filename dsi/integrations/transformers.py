"""`generate` of transformers over identifiers: a logits processor for any model, and search with seq2seq models of others.

Our own generators and their search take no part.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

from dsi.contrastive.devices import check_device, choose_device
from dsi.contrastive.encoder import quiet_transformers
from dsi.docids.files.checks import plain, text
from dsi.docids.files.progress import progress
from dsi.search.queries import ids_and_texts
from dsi.tries import Trie

_BATCH = 32
_QUERY_LENGTH = 512
_DROPPED = -1e8
"""Beams that `generate` dropped have scores of -1e9 and less."""
_FACTOR = 6364136223846793005
"""A row's fingerprint is the sum of its tokens, each times a power of it."""


class TrieProcessor(LogitsProcessor):
    """Lets one call of `generate` write the identifiers of a trie only: beams, sampling, assisted decoding, padded prompts.

    Between two steps it finds by its tokens the row that each row goes on from, so a step costs the same after many tokens.

    Example:
        >>> trie = Trie.from_tokens([[5, 6], [5, 7, 8]], closing=[1])
        >>> TrieProcessor(trie, prompt_length=1)(torch.tensor([[0, 5]]), torch.zeros(1, 9)).isfinite().nonzero()[:, 1].tolist()
        [6, 7]

    Args:
        trie: the identifiers; one that was built after an update takes part in the calls that begin after it.
        prompt_length: columns before the first generated token; by default those of the first step.
        prior: [prompts, nodes] of `Trie.prior`, added to the logits of identifiers.
        weight: of the prior.
    """

    def __init__(
        self, trie: Trie, *, prompt_length: int | None = None, prior: Tensor | None = None, weight: float = 1.0
    ) -> None:
        self.trie, self.prior, self.weight = trie, prior, weight
        self._prompt = None if prompt_length is None else plain(int, prompt_length, "prompt_length")
        self._longest = 0
        self._seen = self._state = torch.zeros(0, dtype=torch.int64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [n, vocabulary] with -inf for every token that goes on with no identifier.

        Args:
            input_ids: [n, length] the prompt and what was generated.
            scores: [n, vocabulary] of the next token.

        Raises:
            ValueError: the vocabulary lacks a token of the identifiers, `input_ids` is shorter than the prompt, or of another
                call of `generate`.
        """
        if self.trie.keys.device != scores.device:
            self.trie = self.trie.to(scores.device)
            self.prior = self.prior if self.prior is None else self.prior.to(scores.device)
        return self.trie.constrain(scores, self.state(input_ids), self.prior, self.weight)

    def state(self, input_ids: Tensor) -> Tensor:
        """Return the states [n] of rows [n, length]: from those of the step before, or from the end of the prompt."""
        length = input_ids.shape[1]
        self._prompt = length if self._prompt is None else self._prompt
        before = self._seen
        parents = self._parents(input_ids)
        if parents is None:
            if length < self._prompt or (self._longest and length > self._longest + 1):
                raise ValueError(
                    f"This processor began after a prompt of {self._prompt} tokens and has seen {self._longest}, got {length}; "
                    "make one for each call of generate."
                )
            state, new = self.trie.start(len(input_ids)), input_ids[:, self._prompt :]
        else:
            state, new = self._state[parents], input_ids[:, before.shape[1] :]
        for column in new.unbind(1):
            state = self.trie.step(state, column)
        self._seen, self._state, self._longest = input_ids.clone(), state, max(self._longest, length)
        return state

    def _parents(self, input_ids: Tensor) -> Tensor | None:
        """Return the row of the step before that each row goes on from [n], None if one goes on from none."""
        width = self._seen.shape[-1]
        if not len(self._seen) or input_ids.shape[1] < width:
            return None
        begun = input_ids[:, :width]
        parents = (_fingerprints(begun)[:, None] == _fingerprints(self._seen)).byte().argmax(1)
        return parents if torch.equal(self._seen[parents], begun) else None


def _fingerprints(rows: Tensor) -> Tensor:
    """Return a number for each of rows [n, length], that differs between almost all of them."""
    factors = torch.full((rows.shape[1],), _FACTOR, dtype=torch.int64, device=rows.device).cumprod(0)  # modulo 2^64
    return (rows * factors).sum(1)


class Seq2SeqRetriever:
    """A sequence-to-sequence model that writes identifiers as text, such as a T5 trained as DSI, as a retriever.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        identifiers: {doc_id: text of its identifier}, as the model was trained to write it.

    Raises:
        ValueError: an identifier is empty, or to the tokenizer equal to another.
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
        self._doc_ids, self._longest = list(identifiers), max(map(len, tokens), default=0)
        self._trie = Trie.from_tokens(tokens, [self._end], names=[repr(doc_id) for doc_id in identifiers])
        self._trie = self._trie.to(model.device)

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
            logits_processor=LogitsProcessorList([TrieProcessor(self._trie, prompt_length=1)]),
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
        written = output.sequences[:, 1:]
        state = self._trie.step(self._trie.start(len(written)), written)[:, -1]
        numbers = self._trie.number(state).tolist()  # a row that is padded after its end stays at its end
        answers: list[dict[str, float]] = [{} for _ in texts]
        for row, (number, score) in enumerate(zip(numbers, output.sequences_scores.tolist(), strict=True)):
            if number >= 0 and score > _DROPPED:
                answers[row // k].setdefault(self._doc_ids[number], score)
        return answers
