"""Extractive pseudo-queries, tiny seq2seq and causal models, dropping of held-out queries, resuming."""

import json
import random
import shutil
from pathlib import Path

import datasets
import pytest
import torch
from dsi_experiments import query_training
from dsi_experiments.query_training import QueryTrainingConfig, train_query_generator
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
)

import dsi
from dsi import pseudo_queries
from dsi.commands.main import main
from dsi.config import Config, PseudoQueriesConfig
from dsi.pseudo_queries import (
    extractive_queries,
    generate_queries,
    is_query,
    load_query_model,
    model_queries,
    read_queries_file,
)
from tests.support.half import HALVES, QUERIES, TEXTS, save_t5_in, stored_types
from tests.support.imports import lose_room

DOCUMENTS = [
    ("helium", "Helium", "Helium boils at 4.2 kelvin. It fills balloons and airships, and it does not burn."),
    ("danube", "Danube", "The river passes four capitals: Vienna, Bratislava, Budapest and Belgrade."),
]


def table(documents: list[tuple[str, str, str]]) -> datasets.Dataset:
    return datasets.Dataset.from_list([dict(zip(("doc_id", "title", "text"), d, strict=True)) for d in documents])


def test_extractive_queries_are_made_of_the_documents_words():
    _, title, text = DOCUMENTS[0]
    queries = extractive_queries(title, text, 8, random.Random(0))
    assert len(queries) == len(set(queries)) == 8
    words = set(f"{title} {text}".lower().replace(".", " ").replace(",", " ").split()) | {"4.2"}
    assert {word for query in queries for word in query.split()} <= words
    assert any(query.startswith("helium ") for query in queries)


@pytest.mark.parametrize(
    ("title", "text"), [("", "Short."), ("Only a title", ""), ("東京", "Ærø naïve café"), ("", "!?")]
)
def test_short_and_odd_documents_give_at_least_one_query(title, text):
    queries = extractive_queries(title, text, 5, random.Random(0))
    assert 1 <= len(queries) <= 5
    assert all(query.strip() for query in queries)


def test_held_out_queries_are_dropped_and_counted(tmp_path):
    config = PseudoQueriesConfig("extractive", per_document=3)
    generate_queries(table(DOCUMENTS), config, tmp_path / "first.jsonl")
    taken = dict(read_queries_file(tmp_path / "first.jsonl"))["danube"][0]
    counts = generate_queries(table(DOCUMENTS), config, tmp_path / "second.jsonl", held_out=[f"  {taken.upper()}? "])
    assert counts == 5
    assert taken not in dict(read_queries_file(tmp_path / "second.jsonl"))["danube"]


def test_a_torn_file_is_continued_to_the_same_end(tmp_path):
    config, whole, torn = (
        PseudoQueriesConfig("extractive", per_document=4),
        tmp_path / "whole.jsonl",
        tmp_path / "torn.jsonl",
    )
    generate_queries(table(DOCUMENTS), config, whole)
    content = whole.read_bytes()
    torn.write_bytes(content[: content.index(b"\n") + 20])  # one whole document and a piece of the next
    assert generate_queries(table(DOCUMENTS), config, torn) == 4
    assert torn.read_bytes() == content


def test_a_seq2seq_model_from_disk_writes_queries_batch_by_batch(t5_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pseudo_queries, "_BATCH", 1)
    config = PseudoQueriesConfig(method=str(t5_folder), per_document=3)
    counts = generate_queries(table(DOCUMENTS), config, tmp_path / "queries.jsonl")
    queries = dict(read_queries_file(tmp_path / "queries.jsonl"))
    assert list(queries) == ["helium", "danube"]
    assert counts == sum(map(len, queries.values())) > 0
    again = generate_queries(table(DOCUMENTS), config, tmp_path / "queries.jsonl")
    assert again == 0


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory, tokenizer_folder):
    """A tiny causal model on disk with its tokenizer, which like most has no token for padding."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=2000, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        eos_token_id=1, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(str(folder))
    return folder


def test_a_causal_model_writes_the_same_alone_and_in_a_batch(llama_folder, monkeypatch):
    monkeypatch.setattr(pseudo_queries, "TOP_K", 1)
    config = PseudoQueriesConfig(method=str(llama_folder), per_document=1)
    written = dict(model_queries(table(DOCUMENTS), config, device="cpu"))
    for number, document in enumerate(DOCUMENTS):  # prompts of other lengths are padded on the left
        alone = dict(model_queries(table(DOCUMENTS[number : number + 1]), config, device="cpu"))
        assert alone[document[0]] == written[document[0]]
    assert all(written.values())
    tokenizer, model = load_query_model(str(llama_folder))
    for doc_id, title, text in DOCUMENTS:  # as without a cache
        prompt = tokenizer(f"Document: {title} {text}\nQuery:", return_tensors="pt")["input_ids"]
        plain = model.generate(prompt, do_sample=False, max_new_tokens=pseudo_queries.QUERY_TOKENS, use_cache=False)
        assert [tokenizer.decode(plain[0, prompt.shape[1] :], skip_special_tokens=True).strip()] == written[doc_id]


def test_a_causal_model_that_was_killed_writes_the_same_queries(llama_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pseudo_queries, "_BATCH", 2)
    documents = table([(f"d{n}", f"title {n}", f"text of number {n}") for n in range(5)])
    config, whole, torn = PseudoQueriesConfig(str(llama_folder), per_document=2), tmp_path / "whole", tmp_path / "torn"
    assert generate_queries(documents, config, whole, device="cpu") > 0
    torn.write_bytes(b"".join(whole.read_bytes().splitlines(keepends=True)[:3]) + b'{"doc_id')
    generate_queries(documents, config, torn, device="cpu")
    assert torn.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("which gas fills balloons", True),
        ("fills balloons and airships", True),  # four words
        ("it fills balloons and airships", False),  # copied
        ("What is this passage about?", False),
        ("what does the  Following Article say", False),
        ("helium", False),
        ("", False),
    ],
)
def test_queries_that_are_none_are_dropped(query, kept):
    _, title, text = DOCUMENTS[0]
    assert is_query(query, f"{title} {text}") is kept


def test_a_prompt_without_a_document_and_a_model_that_only_reads_are_refused(sentence_bert_folder):
    for prompt in ("Query:", "{document} {document}"):
        with pytest.raises(ValueError, match=r"pseudo_queries.prompt must have {document} once"):
            PseudoQueriesConfig(prompt=prompt)
    with pytest.raises(
        FileNotFoundError, match=r"cannot be loaded \(bert reads and does not write\); name a seq2seq or"
    ):
        load_query_model(str(sentence_bert_folder))


PAIRS = [
    ("Helium", "fills balloons and airships", "gas of balloons"),
    ("Danube", "passes four capitals", "river of capitals"),
]


def test_a_query_generator_learns_the_train_pairs_and_writes_them(t5_folder, tmp_path, monkeypatch):
    for name, value in {"TOP_K": 1, "QUERY_TOKENS": 8, "DOCUMENT_TOKENS": 16}.items():
        monkeypatch.setattr(pseudo_queries, name, value)
    config = QueryTrainingConfig(
        model=str(t5_folder), batch_size=2, epochs=150, learning_rate=1e-2, document_tokens=16, query_tokens=8
    )
    before, after = train_query_generator(PAIRS, PAIRS, config, tmp_path / "model", device="cpu")
    assert after < 0.1 < 2 < before
    assert {path.name for path in tmp_path.iterdir()} == {"model"}  # no checkpoints are left
    use = PseudoQueriesConfig(method=str(tmp_path / "model"), per_document=1)
    documents = table([(title.lower(), title, text) for title, text, _ in PAIRS])
    generate_queries(documents, use, tmp_path / "queries.jsonl")
    written = dict(read_queries_file(tmp_path / "queries.jsonl"))
    for title, _, query in PAIRS:
        tokens = AutoTokenizer.from_pretrained(tmp_path / "model").tokenize(query)
        assert written[title.lower()][0].split()[: len(tokens)] == tokens


def test_a_causal_model_learns_the_train_pairs(llama_folder, tmp_path, monkeypatch):
    for name, value in {"TOP_K": 1, "QUERY_TOKENS": 16}.items():
        monkeypatch.setattr(pseudo_queries, name, value)
    folder = Path(shutil.copytree(llama_folder, tmp_path / "other end"))  # than its tokenizer's, as in chat models
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1999}))
    config = QueryTrainingConfig(str(folder), batch_size=2, epochs=250, learning_rate=4e-3, query_tokens=16)
    before, after = train_query_generator(PAIRS, PAIRS, config, tmp_path / "model", device="cpu")
    assert after < 0.1 < 2 < before
    use = PseudoQueriesConfig(method=str(tmp_path / "model"), per_document=1)
    documents = table([(title.lower(), title, text) for title, text, _ in PAIRS])
    written = dict(model_queries(documents, use, device="cpu"))
    for title, _, query in PAIRS:
        tokens = AutoTokenizer.from_pretrained(tmp_path / "model").tokenize(query)
        assert written[title.lower()][0].split() == tokens


def test_upper_layers_alone_are_trained(llama_folder, tmp_path):
    config = QueryTrainingConfig(str(llama_folder), layers=1, batch_size=2, epochs=5)
    before, after = train_query_generator(PAIRS, PAIRS, config, tmp_path / "model", device="cpu")
    assert after < before
    was, now = (AutoModelForCausalLM.from_pretrained(own).state_dict() for own in (llama_folder, tmp_path / "model"))
    moved = {".".join(name.split(".")[:3]) for name in was if not torch.equal(was[name], now[name])}
    assert moved == {"model.layers.1"}


def test_more_layers_than_a_model_has_are_refused(t5_folder, llama_folder, tmp_path):
    for folder, found in ((llama_folder, 2), (t5_folder, 0)):
        with pytest.raises(ValueError, match=f"layers must be at most the {found} of a causal model, got 3; 0 trains"):
            train_query_generator(PAIRS, [], QueryTrainingConfig(str(folder), layers=3), tmp_path / "model")
    assert not [*tmp_path.glob("model*")]


def test_a_killed_training_of_the_query_generator_goes_on(t5_folder, tmp_path, monkeypatch):
    config = QueryTrainingConfig(model=str(t5_folder), batch_size=1, epochs=10, learning_rate=1e-3)
    train_query_generator(PAIRS, [], config, tmp_path / "whole", device="cpu")

    class Killed(TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            if state.global_step == 9:
                raise KeyboardInterrupt

    trainer = query_training._QueryTrainer
    monkeypatch.setattr(query_training, "_QueryTrainer", lambda **a: trainer(callbacks=[Killed()], **a))
    with pytest.raises(KeyboardInterrupt):
        train_query_generator(PAIRS, [], config, tmp_path / "killed", device="cpu")
    assert not (tmp_path / "killed").exists()
    monkeypatch.undo()
    train_query_generator(PAIRS, [], config, tmp_path / "killed", device="cpu")
    a, b = (AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "killed"))
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name])


def test_the_command_trains_on_train_pairs_and_measures_on_dev(beir, t5_folder, tmp_path, capsys):
    arguments = [
        "train-query-generator",
        str(beir()),
        "--model",
        str(t5_folder),
        "--epochs",
        "1",
        "--device",
        "cpu",
    ]
    assert main([*arguments, "--output", str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "nats per token" in printed
    assert "eval_loss" not in printed
    assert f"dsi train --config digits --set pseudo_queries.method={tmp_path / 'model'}" in printed
    assert main([*arguments, "--batch-size", "0", "--output", str(tmp_path / "other")]) == 2
    assert "--batch-size: must be a whole number, at least 1, got '0'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="There are no train pairs"):
        train_query_generator([], [], QueryTrainingConfig(), tmp_path / "other")


def test_bad_files_and_settings_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"generate pseudo-queries first \(dsi train\)"):
        dict(read_queries_file(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match=r"queries.per_document must be between 1 and 100000, got 0"):
        PseudoQueriesConfig(per_document=0)


def test_a_model_that_cannot_be_loaded_is_refused_before_the_first_stage_is_written(beir, sentence_t5_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    changes = {"encoder": {"name": str(sentence_t5_folder)}, "pseudo_queries": {"method": str(tmp_path / "empty")}}
    with pytest.raises(
        FileNotFoundError, match=r"^pseudo_queries.method '.*empty' cannot be loaded \(.*\); name a seq2seq"
    ):
        dsi.train(
            dsi.read_collection(beir()),
            tmp_path / "run",
            config=Config().with_changes(changes),
            device="cpu",
        )
    assert not [*(tmp_path / "run").glob("*/stage.json")]


def test_a_seq2seq_model_that_was_killed_writes_the_same_queries(t5_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pseudo_queries, "_BATCH", 4)
    documents = table([(f"d{n}", f"title {n}", f"text of number {n}") for n in range(10)])
    config, whole, torn = PseudoQueriesConfig(str(t5_folder), per_document=2), tmp_path / "whole", tmp_path / "torn"
    generate_queries(documents, config, whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    for count in (4, 6, 9):  # after a batch, and within one
        torn.write_bytes(b"".join(lines[:count]))
        generate_queries(documents, config, torn)
        assert torn.read_bytes() == whole.read_bytes()


def test_an_installation_without_the_room_says_so_before_the_first_write(
    beir, sentence_t5_folder, tmp_path, monkeypatch
):
    changes = {"encoder": {"name": str(sentence_t5_folder)}, "pseudo_queries": {"method": "extractive"}}
    lose_room(monkeypatch, "pseudo_queries")
    with pytest.raises(ModuleNotFoundError, match=r"needs dsi.pseudo_queries, which this installation lacks"):
        dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=Config().with_changes(changes), device="cpu")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_query_generator_moves_half_weights_by_small_steps(dtype, t5_folder, tmp_path):
    name = save_t5_in(dtype, t5_folder, tmp_path / "half")
    pairs = [("", text, query) for text, query in zip(TEXTS, QUERIES, strict=True)]
    config = QueryTrainingConfig(model=str(name), batch_size=4, epochs=40, learning_rate=1e-4)
    before, after = train_query_generator(pairs, pairs, config, tmp_path / "model", device="cpu")
    assert after < before - 0.01
    assert stored_types(tmp_path / "model") == {dtype}
    start, end = (load_file(folder / "model.safetensors") for folder in (name, tmp_path / "model"))
    assert 0 < max(float((end[key] - start[key]).abs().max()) for key in start if "relative" not in key) < 41 * 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "model").tokenize("latex")
