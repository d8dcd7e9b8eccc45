"""Identifiers from `generate`: the processor against `prefix_allowed_tokens_fn`, and models of others as retrievers."""

import copy
import doctest
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, T5ForConditionalGeneration
from transformers.generation import PrefixConstrainedLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from dsi.commands.main import main
from dsi.docids.updating import remove_documents
from dsi.eval.measures import evaluate
from dsi.integrations import transformers as bridge
from dsi.integrations.transformers import DocidLogitsProcessor, Seq2SeqRetriever
from tests.support.small import random_generator, random_queries, random_tree
from tests.support.transformers_reference import GenerateBaseline

END, VOCABULARY = 1, 20
DOCUMENTS = {"danube": "river of vienna", "volga": "river of russia", "neon": "gas", "radon": "noble gas"}


@st.composite
def prefix_free(draw):
    """Identifiers of tokens from 2 on, none the start of another."""
    drawn = draw(st.lists(st.lists(st.integers(2, 7), min_size=1, max_size=4), min_size=1, max_size=12))
    kept = []
    for own in sorted(drawn, key=len):
        if not any(own[: len(other)] == other for other in kept):
            kept.append(own)
    return kept


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
@given(prefix_free(), st.data())
def test_the_scores_of_every_prefix_are_those_of_transformers_own_constraint(identifiers, data):
    length = data.draw(st.integers(0, 6))
    prefixes = [own[:length] for own in identifiers if len(own) >= length]
    prefixes += [([*own, END] + [0] * 6)[:length] for own in identifiers if len(own) < length]  # finished, and padded
    prefixes += data.draw(st.lists(st.lists(st.integers(0, 9), min_size=length, max_size=length), max_size=4))
    input_ids = torch.tensor([[0, *own] for own in prefixes])
    scores = torch.randn(len(prefixes), VOCABULARY)
    expected = PrefixConstrainedLogitsProcessor(slow_allowed(identifiers), 1)(input_ids, scores)
    found = DocidLogitsProcessor.from_identifiers(identifiers, END)(input_ids, scores)
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
@given(prefix_free(), st.integers(1, 5))
def test_generate_writes_the_same_as_with_transformers_own_constraint(t5, identifiers, beams):
    queries = torch.randint(2, VOCABULARY, (3, 5))
    options = {
        "num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 5, "length_penalty": 0.0, "do_sample": False,
        "return_dict_in_generate": True, "output_scores": True,
    }  # fmt: skip
    processors = LogitsProcessorList([DocidLogitsProcessor.from_identifiers(identifiers, END)])
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
    processors = LogitsProcessorList([DocidLogitsProcessor.from_identifiers(identifiers, END)])
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
    tokens = [range(first, first + size) for first, size in zip(offsets.tolist(), tree.fan_out, strict=True)]
    processor = DocidLogitsProcessor.from_tree(tree, tokens, baseline.end)
    output = baseline.model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states), attention_mask=mask.long(), num_beams=10,
        num_return_sequences=5, max_new_tokens=tree.depth + 1, length_penalty=0.0, do_sample=False, renormalize_logits=True,
        logits_processor=LogitsProcessorList([processor]), return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert torch.equal(output.sequences_scores.view(3, 5), expected[1])
    depths = tree.paths(np.arange(60))[1]
    written = [tuple(t for t in row if t not in (0, baseline.end)) for row in output.sequences.tolist()]
    of_position = [tuple(offsets[level] + d for level, d in enumerate(row) if d >= 0) for row in depths]
    assert written == [of_position[position] for position in expected[0].flatten().tolist()]


def test_removed_documents_of_a_tree_are_no_identifiers():
    tree = remove_documents(random_tree(30), np.arange(5))
    tokens = [range(2, 2 + size) for size in tree.fan_out]
    rows = DocidLogitsProcessor.from_tree(tree, tokens, END).trie
    assert int((rows.children == len(rows.starts) - 2).sum()) == 25 + 1  # an end for each document, and the end's own
    with pytest.raises(ValueError, match=r"tokens must have \[.*\] digits by level, got \[1\]"):
        DocidLogitsProcessor.from_tree(tree, [[2]], END)
    with pytest.raises(ValueError, match="different for the digits of a level"):
        DocidLogitsProcessor.from_tree(tree, [[2] * size for size in tree.fan_out], END)


def test_a_decoder_writes_identifiers_after_its_prompt():
    processor = DocidLogitsProcessor.from_identifiers([[5, 6], [7]], END, prompt_length=3)
    found = processor(torch.tensor([[4, 4, 4, 5], [9, 4, 4, 7]]), torch.zeros(2, 9))
    assert [row.isfinite().nonzero().flatten().tolist() for row in found] == [[6], [END]]
    with pytest.raises(
        ValueError, match="need tokens up to 7 after a prompt of 3; the model has 6 tokens, and 2 were given"
    ):
        processor(torch.tensor([[4, 4]]), torch.zeros(1, 6))


@pytest.mark.parametrize(
    ("identifiers", "message"),
    [
        ([], "no identifiers to generate"),
        ([[2], []], "identifier of number 1 is empty"),
        ([[2, 3], [4], [2, 3]], "number 0 and number 2 cannot be distinguished: equal"),
        (
            [[4, 5, 2], [3], [4, 5]],
            "number 2 and number 0 cannot be distinguished: the first is the start of the second",
        ),
        ([[2, END]], r"number 0 must have tokens from 0 to 2147483647 other than the end token 1, got \[2, 1\]"),
        ([[-2]], "must have tokens from 0"),
    ],
)
def test_identifiers_that_cannot_be_told_apart_are_refused_by_name(identifiers, message):
    with pytest.raises(ValueError, match=message):
        DocidLogitsProcessor.from_identifiers(identifiers, END)


@pytest.fixture(scope="module")
def retriever(t5_folder):
    return Seq2SeqRetriever.from_pretrained(t5_folder, DOCUMENTS, device="cpu")


def test_a_model_of_others_is_searched_by_the_probability_of_identifiers(retriever, t5_folder):
    queries = {"a": "rivers", "b": "which gas is noble and heavy", "c": "vienna"}
    run = retriever.run(queries, k=10)  # more than there are documents
    assert list(run) == list(queries)
    model, tokenizer = retriever.model, retriever.tokenizer
    for query_id, doc_id in itertools.product(queries, DOCUMENTS):
        labels = [*tokenizer(DOCUMENTS[doc_id])["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(**tokenizer(queries[query_id], return_tensors="pt"), labels=torch.tensor([labels])).logits[0]
        expected = logits.log_softmax(-1)[range(len(labels)), labels].sum().item()
        assert run[query_id][doc_id] == pytest.approx(expected, abs=1e-3)
    best = {query_id: max(scores, key=scores.get) for query_id, scores in run.items()}
    assert {query_id: next(iter(found)) for query_id, found in retriever.run(queries, k=1).items()} == best
    assert evaluate(run, {query_id: {doc_id: 1} for query_id, doc_id in best.items()}, ["Hit@1"])["Hit@1"]["a"] == 1


def test_bad_calls_say_what_they_take(retriever, t5_folder, tmp_path):
    with pytest.raises(TypeError, match=r"run\(\) takes \{query_id: text\}, got list"):
        retriever.run(["rivers"])
    with pytest.raises(ValueError, match="Query 'a' must be a string, got 3"):
        retriever.run({"a": 3})
    assert retriever.run({"a": " "}) == {"a": {}}
    with pytest.raises(ValueError, match="k and beam_width must be at least 1, got 0 and 10"):
        retriever.run({"a": "rivers"}, k=0)
    assert retriever.run({}) == {}
    for identifiers, message in (
        (
            {"d1": "river", "d2": "river of"},
            "'d1' and 'd2' cannot be distinguished: the first is the start of the second",
        ),
        ({"d1": "river", "d2": "river"}, "'d1' and 'd2' cannot be distinguished: equal"),
        ({"d1": " "}, "The identifier of 'd1' is empty"),
        ({"d1": 7}, "The identifier of 'd1' must be a string, got 7"),
        ({}, "There are no identifiers"),
    ):
        with pytest.raises(ValueError, match=message):
            Seq2SeqRetriever(retriever.model, retriever.tokenizer, identifiers)
    with pytest.raises(ValueError, match=r"not a sequence-to-sequence model of transformers \(") as caught:
        Seq2SeqRetriever.from_pretrained(tmp_path, DOCUMENTS)
    assert "\n" not in str(caught.value)


def test_the_benchmark_compares_equal_scores(tmp_path, capsys):
    small = [
        "--documents",
        "200",
        "--queries",
        "2",
        "--beams",
        "3",
        "--rounds",
        "1",
        "--results",
        str(tmp_path / "a.json"),
    ]
    assert main(["benchmark-constraint", *small]) == 0
    assert capsys.readouterr().out.rstrip().endswith("yes")
    (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert row["identical"]


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(bridge, extraglobs={"torch": torch}) == (0, 2)
