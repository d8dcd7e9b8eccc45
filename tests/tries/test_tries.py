"""Tries of identifiers: masks, steps, marks, filters, priors, and the texts that a tokenizer must give back."""

import doctest
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dsi.store.retriever import load
from dsi.tries import Trie, trie
from tests.support.identifiers import JSON, TAGS, Count, by_chance, titles
from tests.support.oracles import legal_tokens
from tests.support.serving import save_index

TITLES = titles(300)


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level BPE that joins marks and letters."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = [*TITLES, *(f'<doc>{text}</doc> {{"doc_id": "{text}"}}' for text in TITLES), "/a)</doc>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>")


@st.composite
def token_lists(draw):
    """Different identifiers of tokens from 3 to 6; some begin others."""
    drawn = draw(st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=4), min_size=1, max_size=10))
    return [list(own) for own in {tuple(own) for own in drawn}]


@settings(max_examples=80, deadline=None)
@given(token_lists(), st.sampled_from([([1], ()), ([1], [2]), ([1, 2], [2, 2, 0]), ([1], [0, 2])]), st.data())
def test_masks_and_steps_are_those_of_a_literal_reading_of_all_that_was_written(identifiers, marks, data):
    closing, opening = marks
    trie = Trie.from_tokens(identifiers, closing, opening=opening, vocabulary=9)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(identifiers), max_size=len(identifiers))))
    kept[0] = True
    subset = [own for own, keep in zip(identifiers, kept, strict=True) if keep]
    for some, legal in ((trie, identifiers), (trie.only(kept), subset)):
        written, state = [], some.start(1)
        for _ in range(14):
            allowed = legal_tokens(legal, closing, opening, 9, written)
            assert set(some.mask(state)[0].nonzero()[:, 0].tolist()) == allowed
            token = data.draw(st.sampled_from([*sorted(allowed), *opening]))
            written.append(token)
            state = some.step(state, torch.tensor([token]))
        drafts = some.step(some.start(1), torch.tensor([written]))
        assert drafts[0, -1] == state[0]
        assert some.mask(drafts).shape == (1, 14, 9)


def test_states_are_numbers_that_beams_reorder_and_that_say_which_identifier_was_closed():
    identifiers = [[5, 6], [5, 6, 7], [8]]
    trie = Trie.from_tokens(identifiers, [1])
    written = torch.tensor([[5, 6, 1, 1], [5, 6, 7, 1], [8, 1, 0, 0], [9, 9, 9, 9]])
    states = trie.step(trie.start(4), written)
    assert trie.number(states).tolist() == [[-1, -1, 0, 0], [-1, -1, -1, 1], [-1, 2, 2, 2], [-1, -1, -1, -1]]
    forked = states[:, 1][torch.tensor([1, 1, 0])]
    assert torch.equal(trie.mask(forked), trie.mask(states)[:, 1][[1, 1, 0]])
    assert trie.to("cpu").nbytes == trie.nbytes == 8 * (len(trie.keys) + 6)


def test_the_whole_distribution_of_a_tiny_trie_is_that_of_its_identifiers():
    identifiers = [[2, 3], [2, 3, 4], [2], [5, 2, 3]]
    trie = Trie.from_tokens(identifiers, [1], vocabulary=6)
    torch.manual_seed(0)
    table = torch.randn(7, 6)  # logits by the token before; 6 at the start
    state, total = trie.start(1), 0.0
    for own in identifiers:
        state, before, probability = trie.start(1), 6, 1.0
        literal, begun = 1.0, []
        for token in (*own, 1):
            probability *= trie.constrain(table[before][None], state).softmax(-1)[0, token].item()
            allowed = sorted(legal_tokens(identifiers, [1], (), 6, begun))
            literal *= (table[before, token].exp() / table[before, allowed].exp().sum()).item()
            state, before, begun = trie.step(state, torch.tensor([token])), token, [*begun, token]
        assert probability == pytest.approx(literal, rel=1e-5)
        total += probability
    assert total == pytest.approx(1.0, rel=1e-5)


def test_a_prior_adds_to_each_token_the_best_score_below_it():
    identifiers = [[2, 3], [2, 4], [5]]
    trie = Trie.from_tokens(identifiers, [1], vocabulary=6)
    scores = torch.tensor([[1.0, 2.0, -3.0], [0.0, -1.0, 7.0]])
    prior = trie.prior(scores)
    state = trie.step(trie.start(4), torch.tensor([[2], [5], [2], [2]]))[:, 0]
    state[0] = trie.start(1)[0]
    found = trie.constrain(torch.ones(4, 6), state, prior, 0.5)
    none = -torch.inf
    assert found.tolist() == [
        [none, none, 2.0, none, none, -0.5],
        [none, -0.5, none, none, none, none],
        [none, none, none, 1.0, 0.5, none],
        [none, none, none, 1.0, 0.5, none],
    ]
    assert trie.only([False, False, True]).constrain(torch.ones(4, 6), state, prior)[2].isinf().all(-1).tolist() is True
    with pytest.raises(ValueError, match="prior has 2 queries, of which 3 rows are no multiple"):
        trie.constrain(torch.ones(3, 6), state[:3], prior)
    with pytest.raises(ValueError, match="scores must be finite"):
        trie.prior(torch.tensor([[1.0, torch.inf, 0.0]]))


@pytest.mark.parametrize(("marks", "alone"), [(TAGS, False), (JSON, False), (TAGS, True)])
def test_random_logits_write_identifiers_of_the_set_only(tokenizer, marks, alone):
    if alone:
        marks = type(marks)({}, "", "<end>")
    trie = Trie.from_texts(TITLES, tokenizer, **marks.options)
    for some, legal in ((trie, TITLES), (trie.only(np.arange(300) < 20), TITLES[:20])):
        count = by_chance(some, tokenizer, legal, marks, 2000)
        assert count.steps >= 2000
        assert count.identifiers > 50
        assert count.illegal == []


def test_an_identifier_that_is_none_would_be_seen():
    count = Count()
    wrong = ["<doc>lake of fire</doc>", "<doc>river</doc> <doc>no", "<doc>river</do", "<doc>riv", 'x "doc_id": "river"']
    count.judge(wrong, ["river"], TAGS)
    assert count.illegal == ["<doc>lake of fire</doc>", "<doc>no"]
    count.judge(['{"doc_id": "riv", "doc_id":"river"}'], ["river"], JSON)
    assert (count.illegal[2:], count.identifiers) == (['"doc_id": "riv"'], 4)


def test_a_mark_is_seen_however_it_is_cut_into_tokens(tokenizer):
    trie = Trie.from_texts(["river", "lake"], tokenizer, opening=["<doc>", '"id": "'], closing="</doc>")
    inside = trie.mask(torch.zeros(1, dtype=torch.int64))[0]
    for text in ("<doc>", "see <<doc>", "<do<doc>", 'x "id": id "id": "'):
        for pieces in (list(text), [text[:2], text[2:]], [text]):
            tokens = [token for piece in pieces for token in tokenizer(piece, add_special_tokens=False)["input_ids"]]
            state = trie.step(trie.start(1), torch.tensor([tokens]))[:, -1]
            assert torch.equal(trie.mask(state)[0], inside)
    beyond = [token for token in range(len(tokenizer)) if "c>r" in tokenizer.decode([token])]
    state = trie.step(trie.start(1), torch.tensor([tokenizer("<do", add_special_tokens=False)["input_ids"]]))[:, -1]
    assert not trie.mask(state)[0, beyond].any()
    assert trie.mask(state)[0].any()


def test_tokens_join_an_identifier_and_its_mark_as_the_tokenizer_does(tokenizer):
    def encode(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    trie = Trie.from_texts(["lake/a)"], tokenizer, opening="<doc>", closing="</doc>")
    joined = encode("<doc>lake/a)</doc>")
    assert joined[: len(encode("<doc>"))] == encode("<doc>")
    assert len(joined) < len(encode("<doc>lake/a)")) + len(encode("</doc>"))
    assert trie.number(trie.step(trie.start(1), torch.tensor([joined])))[0].tolist() == [-1] * (len(joined) - 1) + [0]
    texts = ['say "a\\b"', "é", "(x)"]
    quoted = Trie.from_texts(texts, tokenizer, opening='"id": "', as_json=True)
    for number, text in enumerate(texts):
        tokens = [*encode('{"id": "'), *encode(json.dumps(text, ensure_ascii=False)[1:])]
        assert quoted.number(quoted.step(quoted.start(1), torch.tensor([tokens])))[0, -1] == number


@pytest.mark.parametrize(
    ("identifiers", "options", "message"),
    [
        ([], {}, "no identifiers to generate"),
        ([[2], []], {}, "identifier of number 1 is empty"),
        (
            [[2, 3], [4], [2, 3]],
            {},
            r"number 0 \(at 0\) and number 2 \(at 2\) are equal to the model; give each its own",
        ),
        ([[2, 1]], {}, r"number 0 holds the mark \[1\]: \[2, 1\]"),
        ([[2, 6, 3]], {"opening": [6], "vocabulary": 9}, r"number 0 holds the mark \[6\]"),
        ([[2], [-2]], {}, r"number 1 must have tokens from 0 to 2147483647, got \[-2, 1\]"),
        ([[2]], {"closing": []}, "closing must have at least one token"),
        ([[2]], {"opening": [9], "vocabulary": 9}, r"opening must have tokens from 0 to 8, got \[9\]"),
        ([[5], [5, 1, 3]], {"closing": [1, 3]}, "number 1 holds the mark"),
        ([[5], [5, 1]], {"closing": [1, 1]}, "number 0 and its closing mark begin another"),
    ],
)
def test_identifiers_that_cannot_be_written_are_refused_by_name(identifiers, options, message):
    with pytest.raises(ValueError, match=message):
        Trie.from_tokens(identifiers, **{"closing": [1], **options})


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["river", " "], {}, "Identifier 1 must be a text that is not empty, got ' '"),
        (["a<end>b"], {}, "Identifier 0, 'a<end>b', holds '<end>', a mark or special token"),
        (["a</doc>b"], {"opening": "<doc>", "closing": "</doc>"}, "holds '</doc>'"),
        (["river", "lake", "river"], {}, r"river \(at 0\) and river \(at 2\) are equal"),
        (["river"], {"opening": "«", "closing": "»"}, "opening must be ASCII"),
        ([], {}, "no identifiers"),
    ],
)
def test_texts_that_cannot_be_written_are_refused_before_generation(tokenizer, texts, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        Trie.from_texts(texts, tokenizer, **options)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_changes_a_text_or_has_no_end_is_refused(tokenizer):
    lower = Tokenizer(models.WordLevel({"<unk>": 0, "river": 1, "</s>": 2}, unk_token="<unk>"))
    words = PreTrainedTokenizerFast(tokenizer_object=lower, unk_token="<unk>", eos_token="</s>")
    assert Trie.from_texts(["river"], words).vocabulary == 3
    with pytest.raises(ValueError, match="The tokenizer writes 'lake' as '<unk>'"):
        Trie.from_texts(["lake"], words)
    with pytest.raises(ValueError, match="has no end token"):
        Trie.from_texts(["river"], PreTrainedTokenizerFast(tokenizer_object=lower, unk_token="<unk>"))


def test_a_filter_that_leaves_nothing_and_a_model_with_too_few_tokens_are_refused():
    trie = Trie.from_tokens([[5, 6], [7]], [1])
    with pytest.raises(ValueError, match="The filter leaves none of 2 identifiers"):
        trie.only([False, False])
    with pytest.raises(ValueError, match="The filter leaves none"):
        trie.only([True, False]).only([False, True])
    with pytest.raises(ValueError, match="need 8 tokens, the model has 7"):
        trie.constrain(torch.zeros(1, 7), trie.start(1))


def test_an_index_names_its_documents_by_title_doc_id_words_and_digits(encoder, tokenizer, tmp_path):
    retriever = save_index(encoder, tmp_path / "index")
    assert retriever.snapshot.generation == 1
    rows = range(len(retriever.snapshot.documents))
    for by in ("title", "doc_id", "words"):
        trie = Trie.from_index(retriever, by, tokenizer=tokenizer)
        assert sorted(trie.numbers.tolist()) == list(rows)
        assert trie.generation == 1
    allowed = retriever.snapshot.documents.allowed(allow=None, deny=None, where="number < 7")
    some = Trie.from_index(retriever, tokenizer=tokenizer, opening="<doc>", closing="</doc>").only(allowed)
    assert set(some.numbers[some.allowed[some.leaves]].tolist()) == set(range(7))
    digits = Trie.from_index(retriever, "digits", tokenizer=tokenizer, first=900)
    names = retriever.snapshot.documents.column("doc_id")
    for row in (0, 7, 59):
        path = [900 + int(retriever.snapshot.tree.token_offsets[level]) - 1 + digit
                for level, digit in enumerate(retriever.get(names[row]).digits)]  # fmt: skip
        written = torch.tensor([[*path, tokenizer.eos_token_id]])
        assert digits.number(digits.step(digits.start(1), written))[0, -1] == row
    assert digits.vocabulary == 900 + retriever.snapshot.tree.vocab_size - 1
    retriever.remove(["danube"])
    assert retriever.snapshot.generation == 0
    retriever.save(tmp_path / "index")
    assert Trie.from_index(retriever, tokenizer=tokenizer).generation == retriever.snapshot.generation == 2
    assert load(tmp_path / "index", device="cpu").snapshot.generation == 2
    with pytest.raises(ValueError, match="by must be title, doc_id, words or digits, got 'text'"):
        Trie.from_index(retriever, "text", tokenizer=tokenizer)
    with pytest.raises(ValueError, match="by='digits' needs first"):
        Trie.from_index(retriever, "digits", tokenizer=tokenizer)


def test_the_module_imports_torch_and_little_else():
    code = "import torch, sys, time; start = time.time(); import dsi.tries; print(time.time() - start); print(*sys.modules)"
    seconds, modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert float(seconds) < 0.3
    assert not {"transformers", "datasets", "pyarrow", "sklearn", "tokenizers"} & set(modules.split())


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(trie, extraglobs={"torch": torch}) == (0, 4)
