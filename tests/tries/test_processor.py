"""Identifiers from `generate`: the processor against `prefix_allowed_tokens_fn`."""

import copy
import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList, T5ForConditionalGeneration
from transformers.generation import PrefixConstrainedLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from dsi.tries import Trie
from dsi.tries import processor as bridge
from dsi.tries.processor import TrieProcessor
from tests.support.small import random_generator, random_queries, random_tree
from tests.support.transformers_reference import GenerateBaseline

END, VOCABULARY = 1, 20


@st.composite
def token_lists(draw):
    """Different identifiers of tokens from 2 on; some begin others."""
    drawn = draw(st.lists(st.lists(st.integers(2, 7), min_size=1, max_size=4), min_size=1, max_size=12))
    return [list(own) for own in {tuple(own) for own in drawn}]


def slow_allowed(identifiers):
    """`prefix_allowed_tokens_fn` from nested dictionaries, for prompts of one token."""
    trie = {}
    for own in identifiers:
        node = trie
        for token in (*own, END):
            node = node.setdefault(token, {})

    def allowed(_, prefix):
        node = trie
        for token in prefix.tolist()[1:]:
            node = node.get(token, {})
        return list(node) or [END]

    return allowed


@settings(max_examples=60, deadline=None)
@given(token_lists(), st.data())
def test_the_scores_of_every_prefix_are_those_of_transformers_own_constraint(identifiers, data):
    length = data.draw(st.integers(0, 6))
    prefixes = [own[:length] for own in identifiers if len(own) >= length]
    prefixes += [([*own, END] + [0] * 6)[:length] for own in identifiers if len(own) < length]  # finished, and padded
    prefixes += data.draw(st.lists(st.lists(st.integers(0, 9), min_size=length, max_size=length), max_size=4))
    input_ids = torch.tensor([[0, *own] for own in prefixes])
    scores = torch.randn(len(prefixes), VOCABULARY)
    expected = PrefixConstrainedLogitsProcessor(slow_allowed(identifiers), 1)(input_ids, scores)
    found = TrieProcessor(Trie.from_tokens(identifiers, [END]), prompt_length=1)(input_ids, scores)
    assert torch.equal(found, expected)


@pytest.fixture(scope="module")
def t5(tiny_t5_config):
    torch.manual_seed(0)
    config = copy.deepcopy(tiny_t5_config)
    config.vocab_size = VOCABULARY
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(5)
    return model


@settings(max_examples=15, deadline=None)
@given(token_lists(), st.integers(1, 5))
def test_generate_writes_the_same_as_with_transformers_own_constraint(t5, identifiers, beams):
    queries = torch.randint(2, VOCABULARY, (3, 5))
    options = {
        "num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 5, "length_penalty": 0.0, "do_sample": False,
        "return_dict_in_generate": True, "output_scores": True,
    }  # fmt: skip
    processors = LogitsProcessorList([TrieProcessor(Trie.from_tokens(identifiers, [END]))])
    ours = t5.generate(queries, logits_processor=processors, **options)
    theirs = t5.generate(queries, prefix_allowed_tokens_fn=slow_allowed(identifiers), **options)
    assert torch.equal(ours.sequences, theirs.sequences)
    if beams > 1:
        assert torch.equal(ours.sequences_scores, theirs.sequences_scores)
        real = ours.sequences_scores > -1e8
        written = {tuple(token for token in row if token > END) for row in ours.sequences[real].tolist()}
        assert written <= set(map(tuple, identifiers))


def test_sampling_a_batch_of_identifiers_of_several_lengths(t5):
    identifiers = [[2], [3, 4, 5], [3, 4, 6, 7]]
    processors = LogitsProcessorList([TrieProcessor(Trie.from_tokens(identifiers, [END]))])
    torch.manual_seed(0)
    written = t5.generate(
        torch.randint(2, VOCABULARY, (20, 5)), logits_processor=processors, do_sample=True, max_new_tokens=6
    )
    found = {tuple(token for token in row if token > END) for row in written.tolist()}
    assert len(found) > 1
    assert found <= set(map(tuple, identifiers))


def test_docids_of_a_tree_are_searched_as_the_reference_does():
    tree = random_tree(60)
    generator = random_generator(tree)
    baseline = GenerateBaseline(generator, tree)
    states, mask, _ = random_queries(3)
    expected = baseline.search(states, mask, 5, 10)
    offsets = tree.token_offsets
    paths = tree.paths(np.arange(60))[1]
    of_position = [tuple(offsets[level] + d for level, d in enumerate(row) if d >= 0) for row in paths]
    processor = TrieProcessor(Trie.from_tokens(of_position, [baseline.end]), prompt_length=1)
    output = baseline.model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states), attention_mask=mask.long(), num_beams=10,
        num_return_sequences=5, max_new_tokens=tree.depth + 1, length_penalty=0.0, do_sample=False, renormalize_logits=True,
        logits_processor=LogitsProcessorList([processor]), return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert torch.equal(output.sequences_scores.view(3, 5), expected[1])
    written = [tuple(t for t in row if t not in (0, baseline.end)) for row in output.sequences.tolist()]
    assert written == [of_position[position] for position in expected[0].flatten().tolist()]


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=1.0, pad_token_id=0, bos_token_id=None, eos_token_id=END,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


IDENTIFIERS = [[5, 6], [5, 6, 7], [7, 8, 9, 5], [10]]


@pytest.mark.parametrize(
    "how",
    [
        {"num_beams": 1, "do_sample": False},
        {"num_beams": 3, "num_return_sequences": 3, "do_sample": False},
        {"do_sample": True, "num_return_sequences": 5},
    ],
    ids=["greedy", "beams", "sampling"],
)
@pytest.mark.parametrize("marked", [False, True])
def test_a_decoder_writes_identifiers_after_prompts_of_several_lengths(llama, how, marked):
    prompts = torch.tensor([[0, 0, 0, 11], [12, 5, 6, 13], [0, 14, 11, 12]])  # padded on the left
    marks = {"closing": [4], "opening": [3], "vocabulary": VOCABULARY} if marked else {"closing": [END]}
    processor = TrieProcessor(Trie.from_tokens(IDENTIFIERS, **marks))
    torch.manual_seed(1)
    written = llama.generate(
        prompts,
        attention_mask=(prompts > 0).long(),
        logits_processor=LogitsProcessorList([processor]),
        max_new_tokens=12,
        **how,
    )[:, 4:]
    found = set()
    for row in written.tolist():
        if not marked:
            found.add(tuple(row[: row.index(END)]))
            continue
        while 3 in row:
            row = row[row.index(3) + 1 :]
            if END in row and 4 not in row:
                break
            own = row[: row.index(4)] if 4 in row else []
            found |= {tuple(own)} if own else set()
            row = row[len(own) :]
    assert found <= set(map(tuple, IDENTIFIERS))
    assert found or marked


def test_a_row_is_followed_from_its_own_beginning_wherever_beams_put_it(llama):
    trie = Trie.from_tokens(IDENTIFIERS, [END], vocabulary=VOCABULARY)
    processor, again = TrieProcessor(trie), TrieProcessor(trie, prompt_length=2)
    rows = torch.tensor([[9, 9], [8, 8]])
    for parents, token in (([0, 1], [5, 7]), ([1, 0], [8, 6]), ([0, 0], [9, 9]), ([1, 1], [5, END])):
        scores = torch.zeros(2, VOCABULARY)
        assert torch.equal(processor(rows, scores), TrieProcessor(trie, prompt_length=2)(rows, scores))
        rows = torch.cat([rows[parents], torch.tensor(token)[:, None]], 1)
    shorter = rows[:, :3]  # drafts that were not taken
    assert torch.equal(processor(shorter, torch.zeros(2, VOCABULARY)), again(shorter, torch.zeros(2, VOCABULARY)))


def test_assisted_decoding_writes_the_same(llama):
    prompt = torch.tensor([[11, 12, 13]])
    trie = Trie.from_tokens(IDENTIFIERS, [END])
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 6, "do_sample": False}
    plain = llama.generate(prompt, logits_processor=LogitsProcessorList([TrieProcessor(trie)]), **options)
    torch.manual_seed(7)
    assistant = copy.deepcopy(llama)
    with torch.no_grad():
        assistant.lm_head.weight.add_(torch.randn_like(assistant.lm_head.weight))
    assisted = llama.generate(
        prompt, logits_processor=LogitsProcessorList([TrieProcessor(trie)]), assistant_model=assistant, **options
    )
    assert torch.equal(plain, assisted)


def test_a_processor_is_of_one_call():
    processor = TrieProcessor(Trie.from_tokens([[5, 6], [7]], [END]), prompt_length=3)
    found = processor(torch.tensor([[4, 4, 4, 5], [9, 4, 4, 7]]), torch.zeros(2, 9))
    assert [row.isfinite().nonzero().flatten().tolist() for row in found] == [[6], [END]]
    for width in (2, 6):
        with pytest.raises(
            ValueError, match=f"after a prompt of 3 tokens and has seen 4, got {width}; make one for each call"
        ):
            processor(torch.full((1, width), 4), torch.zeros(1, 9))


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(bridge, extraglobs={"torch": torch}) == (0, 2)
