"""Language models as generators: their walk against plain passes, training, whole indexes, and what is refused."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, MambaConfig, MambaModel, PreTrainedTokenizerFast

import dsi
from dsi.config import Config, GeneratorConfig, TrainingConfig
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.updating import add_documents
from dsi.generator.examples import DocidExamples, Texts
from dsi.generator.families import FamilyTree
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.objectives import CrossEntropy, Task
from dsi.generator.trainer import train_generator
from dsi.language_models import PROMPTS, LanguageModel, available_memory, check_memory
from dsi.search.queries import encode_queries
from dsi.search.request import SearchConfig, SearchRequest
from tests.support import own_parts
from tests.support.language_models import (
    KINDS,
    document_log_p,
    pretrained_generator,
    save_language_model,
)
from tests.support.small import WIDTH, beam_search_for, random_batch, random_tree, thin_out

ALONE = SearchConfig(alpha=1.0, beta=0.0, beam_width=60)
QUERIES = ["neon", "the danube passes four capitals of europe", "helium fills balloons", ""]


@pytest.fixture(scope="module")
def models(tmp_path_factory, tokenizer_folder):
    """{kind: folder of a tiny model}."""
    folder = tmp_path_factory.mktemp("language-models")
    return {kind: save_language_model(folder / kind, kind, tokenizer_folder) for kind in KINDS}


def batch_of(queries):
    """Encoded queries; an empty one is read as a mark."""
    return random_batch(len(queries))._replace(texts=queries, read=[query or "?" for query in queries])


@pytest.mark.parametrize("kind", KINDS)
def test_the_walk_gives_the_probabilities_of_plain_passes_without_a_cache(models, kind):
    tree = random_tree(40, branching=3, leaf=2)
    assert tree.depth >= 4
    generator, batch = pretrained_generator(models[kind], tree), batch_of(QUERIES)
    search = beam_search_for(tree, generator)
    expected = torch.stack([document_log_p(generator, tree, query or "?") for query in QUERIES])
    torch.testing.assert_close(expected.exp().sum(dim=1), torch.ones(len(QUERIES)))
    ordered, order = expected.sort(dim=1, descending=True)
    for method in ("generate", "exact"):
        found = search.methods[method].retrieve(batch, SearchRequest(40, ALONE))
        np.testing.assert_allclose(found.scores, ordered, atol=1e-4, rtol=1e-4)
    narrow = search.methods["generate"].retrieve(batch, SearchRequest(3, dataclasses.replace(ALONE, beam_width=4)))
    np.testing.assert_allclose(narrow.scores, np.take_along_axis(expected.numpy(), narrow.positions, axis=1), atol=1e-4)
    followed = search.follow(batch, SearchRequest(40, ALONE), tree.doc_rows[order.numpy()])
    np.testing.assert_allclose(followed.scores, ordered, atol=1e-4, rtol=1e-4)


def test_queries_are_read_as_the_encoder_cuts_them(sentence_t5_folder):
    short = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), query_length=3), device="cpu")
    encoded = encode_queries(short, ["of the in danube", "the", ""])
    (batch,) = encoded.batches
    assert dict(zip(batch.numbers.tolist(), batch.read, strict=True)) == {0: "of the in", 1: "the", 2: "?"}
    assert [list(own.batches[0].read) for own in encoded.each()] == [["of the in"], ["the"], ["?"]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_docid_alone(models, kind):
    tree = random_tree(30, branching=3, leaf=2)
    generator = pretrained_generator(models[kind], tree)
    expected = [
        document_log_p(generator, tree, query)[place] for query, place in zip(QUERIES[:3], [3, 29, 11], strict=True)
    ]
    batch = generator.tokenize([PROMPTS["query"] + query for query in QUERIES[:3]])
    with torch.no_grad():
        loss = CrossEntropy(Task(generator, tree)).loss(
            generator, {**batch, "relevant": torch.tensor([[3], [29], [11]])}, 0.0
        )
    assert float(loss) == pytest.approx(-float(torch.stack(expected).mean()), rel=1e-4)


def test_added_documents_share_the_probability_of_their_siblings(models):
    tree, batch = random_tree(30, branching=3, leaf=2), batch_of(QUERIES)
    generator = pretrained_generator(models["llama"], tree)
    grown = add_documents(tree, np.random.default_rng(1).normal(size=(6, WIDTH)).astype(np.float32))
    found = beam_search_for(grown, generator).methods["exact"].retrieve(batch, SearchRequest(36, ALONE))
    np.testing.assert_allclose(np.exp(found.scores).sum(axis=1), 1.0, atol=1e-4)


def test_docid_tokens_begin_as_long_as_the_words_of_the_model(models):
    generator = pretrained_generator(models["llama"], random_tree(60, branching=4, leaf=60 // 4))
    words = generator.model.get_input_embeddings().weight
    assert float(generator.embedding.weight.detach().std()) == pytest.approx(float(words.detach().std()), rel=0.2)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_training_lowers_the_loss_and_a_killed_one_resumes(models, kind, tmp_path):
    tree = random_tree(12, branching=3, leaf=3)
    texts = [f"{word} {other}" for word in ("neon", "river", "capital") for other in ("of", "and", "the", "in")]

    def train(name: str, dies_at: int | None = None):
        generator = create_generator(GeneratorConfig("digits", "text", str(models[kind])), tree, WIDTH, "ce")
        examples = DocidExamples(Texts(generator.tokenize, PROMPTS, [("query", texts)]), np.arange(12), tree)
        settings = TrainingConfig(batch_size=4, epochs=20.0, learning_rate=3e-3)
        steps, collate = [], examples.collate

        def counted(rows):
            steps.append(rows)
            if len(steps) == dies_at:
                raise KeyboardInterrupt
            return collate(rows)

        examples.collate = counted
        record = train_generator(generator, examples, settings, tmp_path / name)
        return generator, record, len(steps)

    whole, record, steps = train("whole")
    assert steps == record["steps"] == 60
    with torch.no_grad():
        batch = {**whole.tokenize([PROMPTS["query"] + text for text in texts]), "relevant": torch.arange(12)[:, None]}
        last = float(CrossEntropy(Task(whole, tree)).loss(whole, batch, 0.0))
    assert last < 0.5 * record["loss"] < 0.5 * np.log(12) * 2
    with pytest.raises(KeyboardInterrupt):
        train("killed", dies_at=40)
    again, resumed, steps = train("killed")
    assert steps == 60 - 36  # checkpoints are at every sixth step
    assert resumed["steps"] == 60
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(dict(again.named_parameters())[name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.programs
@pytest.mark.parametrize("kind", ["llama", pytest.param("t5", marks=pytest.mark.slow)])
def test_an_index_with_a_language_model_is_trained_fused_explained_updated_and_kept(
    beir, sentence_t5_folder, models, kind, tmp_path
):
    changes = {
        "encoder": {"name": str(sentence_t5_folder), "document_length": 16},
        "pseudo_queries": {"method": "none"},
        "contrastive": {"loss": "none"},
        "generator": {"decoder": str(models[kind])},
        "training": {"epochs": 20.0, "batch_size": 16, "learning_rate": 3e-3},
        "search": {"alpha": 1.0, "beta": 0.0, "beam_width": 10},
    }
    config = dataclasses.replace(Config.named("language-model"), dev_queries=0).with_changes(changes)
    collection = dsi.read_collection(beir())
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    queries, right = collection.query_texts("train"), collection.qrels["train"]
    run = retriever.run(queries, 10)
    hits = sum(max(run[query_id], key=run[query_id].get) in right[query_id] for query_id in queries) / len(queries)
    assert hits > 0.5  # chance is 1 in 40

    # fused: eq. 12 adds both parts, each with its weight
    retriever.search_config = dataclasses.replace(retriever.search_config, alpha=0.7, beta=np.inf, ann_temperature=0.1)
    query = next(iter(queries.values()))
    hit = retriever.search(query, k=3)[0]
    parts = hit.explain().parts
    assert set(parts) == {"generator", "encoder"}
    assert sum(parts.values()) == pytest.approx(hit.score, abs=1e-4)
    assert hit.title in str(retriever.explain(query, k=3))
    allowed = [hit.doc_id for hit in retriever.search(query, k=40)][5:9]
    assert {hit.doc_id for hit in retriever.search(query, k=4, allow=allowed)} == set(allowed)

    # updated, and kept
    run = retriever.run(queries, 10)
    retriever.add([{"doc_id": "neretva", "title": "Neretva", "text": "A river in Bosnia and Croatia."}])
    assert "neretva" in [hit.doc_id for hit in retriever.search("Neretva a river in Bosnia and Croatia", k=41)]
    retriever.save(tmp_path / "kept")
    again = dsi.load(tmp_path / "kept", device="cpu")
    assert again.run(queries, 10) == retriever.run(queries, 10)
    retriever.remove(["neretva"])
    assert retriever.run(queries, 10) == run

    # a decoder that is missing on disk
    shutil.rmtree(tmp_path / "kept" / "generator" / "language_model")
    with pytest.raises(FileNotFoundError, match="language_model"):
        dsi.load(tmp_path / "kept", device="cpu")


def test_an_objective_of_ones_own_trains_a_model_that_reads_texts(beir, sentence_t5_folder, models, tmp_path):
    config = Config.named("language-model").with_changes(
        {
            "encoder": {"name": str(sentence_t5_folder), "document_length": 16},
            "generator": {"decoder": str(models["llama"])},
            "training": {"epochs": 1.0},
        }
    )
    collection = dsi.read_collection(thin_out(beir(), dev=6, test=6))
    made = dsi.train(collection, tmp_path / "run", config=config, device="cpu", objective=own_parts.Halved)
    assert made.snapshot.generator.config.objective == "tests.support.own_parts:Halved"


def test_a_generator_is_kept_as_it_is(models, tmp_path):
    tree = random_tree(30)
    generator = pretrained_generator(models["llama"], tree)
    generator.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    generator.save_pretrained(tmp_path)
    again, batch = load_generator(tmp_path, "cpu"), batch_of(QUERIES)
    found = [
        beam_search_for(tree, own).methods["exact"].retrieve(batch, SearchRequest(30, ALONE))
        for own in (generator, again)
    ]
    np.testing.assert_array_equal(found[0].scores, found[1].scores)
    assert "chat_template" not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    halved = again.for_search(torch.bfloat16)
    assert halved.child_logits(torch.zeros(4, 1, dtype=torch.long), 0, halved.start(batch)).dtype == torch.bfloat16


# What is refused


def refused(folder, match):
    with pytest.raises(ValueError, match=match) as caught:
        create_generator(GeneratorConfig("digits", "text", str(folder)), random_tree(20), WIDTH, "ce").check("name")
    assert "\n" not in str(caught.value)


def test_a_model_that_is_neither_causal_nor_sequence_to_sequence_is_refused(tmp_path, tokenizer_folder):
    shape = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=2000, **shape)).save_pretrained(str(tmp_path))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder)).save_pretrained(str(tmp_path))
    refused(tmp_path, r"cannot generate docids: .*; name a causal or sequence-to-sequence model")


def test_a_tokenizer_without_padding_pads_with_its_end_token_or_is_refused(tmp_path, tokenizer_folder):
    folder = save_language_model(tmp_path / "end", "llama", tokenizer_folder, pad_token=None)
    generator = pretrained_generator(folder, random_tree(20))
    assert generator.tokenizer.pad_token == "</s>"
    refused(
        save_language_model(tmp_path / "neither", "llama", tokenizer_folder, pad_token=None, eos_token=None),
        "its tokenizer has no padding token",
    )


def test_weights_that_are_missing_are_refused(models, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(models["llama"], tmp_path / "llama")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: own for name, own in weights.items() if "mlp" not in name},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    refused(folder, "its files lack weights")


def test_a_model_wider_than_memory_is_refused_before_it_is_loaded(models, monkeypatch):
    monkeypatch.setattr("dsi.language_models.available_memory", lambda: 500_000)
    with pytest.raises(
        ValueError, match=r"needs 0\.\d GB to be trained, 0\.0 GB are free on cpu; choose a smaller model"
    ):
        check_memory(str(models["llama"]), torch.device("cpu"))


@pytest.mark.parametrize("settings", ['{"model_type": "nonsense"}', '{"model_type": "vit"}', "{}"])
def test_what_is_no_language_model_is_refused_in_one_line(settings, tmp_path):
    (tmp_path / "config.json").write_text(settings)
    refused(tmp_path, "cannot generate docids")
    if "vit" not in settings:  # a model, whose size is known
        with pytest.raises(ValueError, match=r"^generator\.decoder '[^\n]+' cannot generate docids: [^\n]+$"):
            check_memory(str(tmp_path), torch.device("cpu"))


def test_memory_is_limited_by_a_container(tmp_path):
    free = available_memory(tmp_path / "none")
    assert free > 10**7
    (limit := tmp_path / "memory.max").write_text("max\n")
    assert available_memory(limit) > 10**7
    limit.write_text("4096\n")
    assert available_memory(limit) == 4096


def test_a_model_without_keys_and_values_is_refused(tmp_path, tokenizer_folder):
    shape = {"hidden_size": 24, "num_hidden_layers": 1, "state_size": 4, "pad_token_id": 0, "eos_token_id": 1}
    MambaModel(MambaConfig(vocab_size=2000, **shape)).save_pretrained(str(tmp_path))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder)).save_pretrained(str(tmp_path))
    refused(
        tmp_path,
        "cannot generate docids: .*; name a causal or sequence-to-sequence model, one of attention layers alone",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_read_on_pass_the_trial(models, kind):
    pretrained_generator(models[kind], random_tree(20)).check(kind)


def test_a_model_that_reads_texts_is_no_decoder_over_states(models):
    with pytest.raises(ValueError, match=r'is of type llama, .* set generator\.reads = "text"'):
        create_generator(GeneratorConfig("digits", decoder=str(models["llama"])), random_tree(20), WIDTH, "ce")


@pytest.mark.parametrize(
    ("name", "memory", "error"),
    [
        ("none", 10**12, r"generator\.decoder names the folder"),
        ("base", 10**12, "cannot generate docids"),
        ("base", 1000, r"GB are free on cpu"),
    ],
)
def test_nothing_is_written_for_a_decoder_that_cannot_be_used(
    beir, sentence_t5_folder, sentence_bert_folder, tmp_path, monkeypatch, name, memory, error
):
    monkeypatch.setattr("dsi.language_models.available_memory", lambda: memory)
    settings = {"encoder": {"name": str(sentence_t5_folder)}, "pseudo_queries": {"method": "none"}}
    decoder = {"generator": {"decoder": str(sentence_bert_folder.parent / name)}}
    config = Config.named("language-model").with_changes(settings | decoder)
    with pytest.raises((FileNotFoundError, ValueError), match=error):
        dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=config, device="cpu")
    assert not list((tmp_path / "run").glob("[!.]*"))


def test_settings_that_contradict_each_other_are_refused(models):
    config = Config.named("language-model").with_changes({"generator": {"decoder": str(models["llama"])}})
    LanguageModel.check_config(config, torch.device("cpu"))
    for changes, match in (
        ({"generator": {"decoder": ""}}, "needs a model as generator.decoder"),
        ({"generator": {"num_layers": 2}}, "needs a model as generator.decoder, which is trained whole"),
        ({"training": {"train_encoder": True}}, "needs a training.objective of one path"),
    ):
        with pytest.raises(ValueError, match=match):
            LanguageModel.check_config(config.with_changes(changes), torch.device("cpu"))


def test_an_objective_of_several_paths_is_refused_by_a_model_that_reads_texts(models):
    tree = random_tree(20)
    generator = pretrained_generator(models["llama"], tree)
    families = FamilyTree(tree, torch.device("cpu")).pack(torch.arange(tree.num_inner)[None])  # all nodes are no path
    read = generator.tokenize(["a text"])
    with pytest.raises(
        ValueError, match="scores nodes of several paths at once, and a model that reads texts one path"
    ):
        generator(**read, tokens=families.tokens, depths=families.depths, sees=families.sees)
