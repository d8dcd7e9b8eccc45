"""The decoder run by transformers' T5 stack and `generate`: slow and obvious.

Shares the weights of a `DocidGenerator`, and none of the code that runs it. Knows no encoder and no dense scores.
"""

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from dsi.docids.tree import DocidTree

T5_VOCAB_SIZE = 32_128
"""Rows of the output layer of the published T5 checkpoints."""


def transformers_logits(
    generator: torch.nn.Module, tree: DocidTree, states: Tensor, mask: Tensor, digits: Tensor
) -> Tensor:
    """Compute logits [n, depth, largest fan_out] along n sequences of digits with transformers' decoder stack.

    They are -inf for digits that a level does not have.

    Args:
        generator: whose weights are used.
        tree: the docids.
        states: [n, length, width] encoder states.
        mask: [n, length] True at real tokens.
        digits: [n, depth], -1 past the end.
    """
    offsets = torch.from_numpy(tree.token_offsets).long().to(digits.device)
    tokens = pad((offsets + digits.clamp(min=0))[:, :-1], (1, 0))  # [n, depth], shifted right by the start token
    attended = {"encoder_hidden_states": states, "encoder_attention_mask": mask.float(), "use_cache": False}
    logits = generator.head(generator.decoder(input_ids=tokens, **attended).last_hidden_state)
    widest = max(tree.fan_out)
    levels = zip(offsets.tolist(), tree.fan_out, strict=True)
    own = [logits[:, level, first : first + size] for level, (first, size) in enumerate(levels)]
    return torch.stack([pad(each, (0, widest - each.shape[1]), value=-torch.inf) for each in own], dim=1)


def transformers_loss(
    generator: torch.nn.Module, tree: DocidTree, states: Tensor, mask: Tensor, positions: Tensor
) -> Tensor:
    """Compute the cross-entropy of docids, in nats per instance, with transformers' decoder stack (DR-SCL eq. 8).

    Args:
        generator: whose weights are used.
        tree: the docids, of any depth.
        states: [batch, length, width] encoder states.
        mask: [batch, length] True at real tokens.
        positions: [batch] docid positions.
    """
    device = states.device
    parents, digits = (torch.from_numpy(each).long().to(device) for each in tree.paths(positions.numpy(force=True)))
    logits = transformers_logits(generator, tree, states, mask, digits)
    children = torch.from_numpy(tree.num_children).long().to(device)[parents.clamp(min=0)]
    missing = torch.arange(logits.shape[2], device=device) >= children[:, :, None]
    logits = logits.float().masked_fill(missing, -torch.inf)
    total = cross_entropy(logits.flatten(0, 1), digits.flatten(), ignore_index=-1, reduction="sum")
    return total / len(positions)


class GenerateBaseline:
    """Decoder-only search by transformers' `generate`, with `prefix_allowed_tokens_fn`.

    Docid tokens are rows of a full-size T5 output layer, as in a T5 that was trained to generate docids.

    Args:
        generator: whose weights are shared.
        tree: the docids; a sequence is a docid's tokens and an end-of-sequence token.
    """

    def __init__(self, generator: torch.nn.Module, tree: DocidTree) -> None:
        config = generator.config.to_dict()
        self.end = tree.vocab_size
        vocab_size = max(T5_VOCAB_SIZE, self.end + 1)
        config.update(vocab_size=vocab_size, is_encoder_decoder=True, is_decoder=False, use_cache=True)
        config.update(num_decoder_layers=config["num_layers"], num_layers=1, pad_token_id=0, eos_token_id=self.end)
        config.update(decoder_start_token_id=0)
        for name in ("fan_out", "docids_fingerprint", "architectures", "dtype"):
            config.pop(name, None)
        self.model = T5ForConditionalGeneration(T5Config(**config)).eval()
        self.model.config.num_layers = generator.config.num_layers  # the cache is sized by it; the encoder is never run
        self.model.config.scale_decoder_outputs = False  # T5 scales for tied embeddings; ours are not tied
        self.model.decoder.block = generator.decoder.block
        self.model.decoder.final_layer_norm = generator.decoder.final_layer_norm
        other_rows = (0, 0, 0, vocab_size - tree.vocab_size)
        self.model.decoder.embed_tokens = nn.Embedding.from_pretrained(
            nn.functional.pad(generator.decoder.embed_tokens.weight.detach(), other_rows)
        )
        self.model.lm_head.weight = nn.Parameter(nn.functional.pad(generator.head.weight.detach(), other_rows))
        self.depth = tree.depth
        self._positions, self._allowed = {}, defaultdict(set)  # {tokens: position}, {prefix: tokens that may follow}
        for position, digits in enumerate(tree.paths(np.arange(tree.num_places))[1]):
            tokens = tuple(int(tree.token_offsets[level] + digit) for level, digit in enumerate(digits) if digit >= 0)
            self._positions[tokens] = position
            for length, token in enumerate((*tokens, self.end)):
                self._allowed[tokens[:length]].add(token)

    @torch.no_grad()
    def search(self, token_states: Tensor, states_mask: Tensor, k: int, beam_width: int) -> tuple[Tensor, Tensor]:
        """Return docid positions and scores, [batch, k] each on the CPU, of transformers' beam search over valid docids.

        Args:
            token_states: [batch, length, width] encoder states of the queries.
            states_mask: [batch, length] True at real tokens.
            k: documents per query.
            beam_width: number of beams.
        """
        token_states = torch.as_tensor(token_states)
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=token_states),
            attention_mask=torch.as_tensor(states_mask).long(),
            num_beams=beam_width,
            num_return_sequences=k,
            max_new_tokens=self.depth + 1,
            length_penalty=0.0,
            early_stopping=False,
            do_sample=False,
            renormalize_logits=True,  # softmax over the valid children, as in training
            prefix_allowed_tokens_fn=lambda _, prefix: list(self._allowed.get(tuple(prefix.tolist()[1:]), {self.end})),
            return_dict_in_generate=True,
            output_scores=True,
        )
        positions = [
            self._positions[tuple(t for t in row if t not in (0, self.end))] for row in output.sequences.tolist()
        ]
        shape = (len(token_states), k)
        return torch.tensor(positions).view(shape), output.sequences_scores.cpu().view(shape)
