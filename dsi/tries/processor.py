"""`generate` of transformers over identifiers: a logits processor for any model. Knows nothing of indexes."""

import torch
from torch import Tensor
from transformers import LogitsProcessor

from dsi.tries import Trie

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
        self._prompt = None if prompt_length is None else prompt_length
        self._longest = 0
        self._seen = self._state = torch.zeros(0, dtype=torch.int64)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [n, vocabulary] with -inf for tokens after `input_ids` [n, length] that go on with no identifier."""
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
