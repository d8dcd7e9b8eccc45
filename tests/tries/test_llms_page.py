"""The processors for vLLM and SGLang of docs/develop/llm-servers.md, run with stand-ins of base classes and a step."""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dsi.tries import Trie
from dsi.tries.processor import TrieProcessor

PAGE = Path(__file__).parents[2] / "docs" / "develop" / "llm-servers.md"
END, VOCABULARY = 1, 12
TRIES = {
    3: Trie.from_tokens([[5, 6], [5, 6, 7], [8]], [END], vocabulary=VOCABULARY),
    4: Trie.from_tokens([[9, 9], [10]], [END], vocabulary=VOCABULARY),
}
PROMPTS = [[2, 2], [3, 3, 3], [4], [2, 3]]
GENERATIONS = [3, 4, 0, 3]


def module(title, name, base):
    """The module of a block of the page, over a stand-in for a library's base class."""
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(rf'^```python title="{title}"\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    library = types.ModuleType(name)
    setattr(library, base, object)
    own = types.ModuleType(title.removesuffix(".py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, library)
        exec(code, own.__dict__)
    own.TRIES.update(TRIES)
    return own


def expected(row, written, logits):
    if not GENERATIONS[row]:
        return logits
    ids = torch.tensor([[*PROMPTS[row], *written]])
    return TrieProcessor(TRIES[GENERATIONS[row]], prompt_length=len(PROMPTS[row]))(ids, logits[None])[0]


@dataclass
class Both:
    """A tensor that a library keeps for the device."""

    gpu: torch.Tensor


def test_vllm_rows_are_masked_by_their_own_trie_in_any_order_and_after_preemption():
    own = module("identifiers.py", "vllm.v1.worker.gpu.sample.logits_processor", "LogitsProcessor")
    requests = types.SimpleNamespace(
        device="cpu", max_num_reqs=6, prompt_len=Both(torch.zeros(6).long()), prefill_len=Both(torch.zeros(6).long()),
        all_token_ids=Both(torch.zeros(6, 20).int()),
    )  # fmt: skip
    processor = own.Identifiers(types.SimpleNamespace(speculative_config=None), requests)
    slots, written, torch_generator = [4, 0, 5, 2], [[], [], [], []], torch.Generator().manual_seed(0)
    for row, slot in enumerate(slots):
        requests.prompt_len.gpu[slot] = requests.prefill_len.gpu[slot] = len(PROMPTS[row])
        params = types.SimpleNamespace(extra_args={"generation": GENERATIONS[row]} if GENERATIONS[row] else None)
        own.Identifiers.validate_params(params)
        assert processor.add_request(slot, params) == bool(GENERATIONS[row])
    for step in range(4):
        if step == 2:  # the first request was preempted, and is read again with what it wrote
            processor.state[slots[0]] = -1
            requests.prefill_len.gpu[slots[0]] = len(PROMPTS[0]) + 2
        order = torch.randperm(4, generator=torch_generator).tolist()
        tokens = [[*PROMPTS[row], *written[row]] for row in order]
        for row, own_tokens in zip(order, tokens, strict=True):
            requests.all_token_ids.gpu[slots[row], : len(own_tokens)] = torch.tensor(own_tokens).int()
        context = types.SimpleNamespace(
            expanded_idx_mapping=torch.tensor([slots[row] for row in order]).int(),
            pos=torch.tensor([len(own_tokens) - 1 for own_tokens in tokens]),
            input_ids=torch.tensor([own_tokens[-1] for own_tokens in tokens]).int(),
        )
        logits = torch.randn(4, VOCABULARY, generator=torch_generator)
        found = processor.apply(logits.clone(), context)
        for row, before, after in zip(order, logits, found, strict=True):
            assert torch.equal(after, expected(row, written[row], before))
            written[row].append(int(after.argmax()))
    with pytest.raises(ValueError, match=r"generation must be one of \[3, 4\], got 5"):
        own.Identifiers.validate_params(types.SimpleNamespace(extra_args={"generation": 5}))
    with pytest.raises(ValueError, match="switch speculative decoding off"):
        own.Identifiers(types.SimpleNamespace(speculative_config=object()), requests)


def test_sglang_rows_are_masked_by_their_own_trie(monkeypatch):
    own = module("sglang_identifiers.py", "sglang.srt.sampling.custom_logit_processor", "CustomLogitProcessor")
    monkeypatch.setitem(sys.modules, "sglang_identifiers", own)
    requests = [types.SimpleNamespace(output_ids=[]) for _ in PROMPTS]
    params = [
        {"generation": generation, "__req__": request} if generation else None
        for generation, request in zip(GENERATIONS, requests, strict=True)
    ]
    for _ in range(4):
        logits = torch.randn(4, VOCABULARY)
        found = own.Identifiers()(logits.clone(), params)
        for row, request in enumerate(requests):
            assert torch.equal(found[row], expected(row, request.output_ids, logits[row]))
            request.output_ids.append(int(found[row].argmax()))
