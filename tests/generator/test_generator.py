"""The generator: T5 weights taken over, a proper distribution, cached states against fresh ones, the order of batches."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import T5ForConditionalGeneration

import dsi
from dsi.config import Config, GeneratorConfig, TrainingConfig, check_together, read_config
from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.encoder import Encoder
from dsi.docids.data.collection import Collection
from dsi.docids.files.processes import ALONE
from dsi.docids.tree import DocidTree, padded_places
from dsi.generator.examples import DocidExamples, LengthBucketSampler, Texts
from dsi.generator.families import FamilyTree
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.model import DocidGenerator
from dsi.generator.objectives import CrossEntropy, Task
from dsi.generator.stage import GeneratorStage
from dsi.generator.states import StateCache, write_states
from dsi.generator.trainer import WholeModel, train_generator
from dsi.training.pipeline import TrainingRun
from dsi.training.stages import StageFolders
from tests.support.oracles import chain_logits, document_log_p
from tests.support.small import WIDTH, complete_tree, random_generator, random_queries, random_tree
from tests.support.tiny_settings import VECTORS, write_settings
from tests.support.transformers_reference import transformers_loss

CPU = torch.device("cpu")
FRESH = GeneratorConfig(docid_tokens="digits", num_layers=1)
TEXTS = ["the danube passes four capitals", "neon", "helium fills balloons and airships", "a river"]


def tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))


def states_of(encoder: Encoder, folder: Path) -> StateCache:
    """The cached states of `TEXTS` as queries."""
    return StateCache(write_states(encoder, "query", TEXTS, folder / "states"))


def test_decoder_weights_of_a_t5_checkpoint_are_taken_over(t5_folder):
    tree = random_tree(60)
    generator = DocidGenerator.create(GeneratorConfig(docid_tokens="digits", decoder=str(t5_folder)), tree, WIDTH, "ce")
    theirs = T5ForConditionalGeneration.from_pretrained(str(t5_folder)).decoder.state_dict()
    ours = generator.decoder.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if "embed_tokens" not in name:
            assert torch.equal(ours[name], tensor), name
    assert generator.head.weight.shape == (tree.vocab_size, WIDTH)
    shallow = DocidGenerator.create(
        GeneratorConfig(docid_tokens="digits", decoder=str(t5_folder), num_layers=1), tree, WIDTH, "ce"
    )
    assert len(shallow.decoder.block) == 1
    assert torch.equal(
        shallow.decoder.block[0].layer[2].DenseReluDense.wi.weight, theirs["block.0.layer.2.DenseReluDense.wi.weight"]
    )


def test_the_output_layer_gives_what_t5_would_give_on_the_same_states(t5_folder):
    # Same decoder, same inputs: our hidden states are T5's; so the taken-over weights are also wired up as T5 wires them.
    tree = random_tree(60)
    generator = DocidGenerator.create(
        GeneratorConfig(docid_tokens="digits", decoder=str(t5_folder)), tree, WIDTH, "ce"
    ).eval()
    t5 = T5ForConditionalGeneration.from_pretrained(str(t5_folder)).eval()
    states, mask, _ = random_queries(2)
    inputs = torch.randn(2, 3, WIDTH)
    arguments = {"inputs_embeds": inputs, "encoder_hidden_states": states, "encoder_attention_mask": mask.float()}
    with torch.no_grad():
        ours = generator.decoder(**arguments, use_cache=False).last_hidden_state
        theirs = t5.decoder(**arguments, use_cache=False).last_hidden_state
    torch.testing.assert_close(ours, theirs)


def test_widths_that_do_not_fit_are_refused(t5_folder):
    tree = random_tree(20)
    with pytest.raises(ValueError, match=rf"is {WIDTH} wide, the encoder's states 99"):
        DocidGenerator.create(GeneratorConfig(docid_tokens="digits", decoder=str(t5_folder)), tree, 99, "ce")
    with pytest.raises(ValueError, match="ask for fewer num_layers"):
        DocidGenerator.create(
            GeneratorConfig(docid_tokens="digits", decoder=str(t5_folder), num_layers=5), tree, WIDTH, "ce"
        )
    with pytest.raises(ValueError, match="num_layers must be at least 1 without a T5 checkpoint"):
        GeneratorConfig(docid_tokens="digits")


@pytest.mark.parametrize(("width", "heads"), [(768, 12), (384, 6), (128, 4), (32, 4), (30, 3), (7, 1), (2, 2)])
def test_a_fresh_decoder_has_heads_of_64_dimensions_at_least_four_that_divide_its_width(width, heads):
    generator = create_generator(FRESH, random_tree(20), width, "ce")
    assert (generator.config.num_heads, generator.config.d_kv * heads) == (heads, width)


def loss_of(
    generator: DocidGenerator,
    tree: DocidTree,
    batch: dict[str, torch.Tensor],
    model: torch.nn.Module | None = None,
) -> float:
    """The cross-entropy of a batch as `DocidExamples.collate` makes it."""
    with torch.no_grad():
        objective = CrossEntropy(Task(generator, tree))
        return float(objective.loss(model or generator, batch, 0.99))


def batch_of(queries: tuple[torch.Tensor, ...], positions: list[int]) -> dict[str, torch.Tensor]:
    return {"token_states": queries[0], "states_mask": queries[1], "relevant": torch.tensor(positions)[:, None]}


def test_the_loss_is_minus_log_of_a_distribution_over_all_documents():
    tree = random_tree(35)
    generator, queries = random_generator(tree), random_queries(3)
    log_p = document_log_p(tree, generator, *queries[:2])
    torch.testing.assert_close(log_p.exp().sum(dim=1), torch.ones(3))
    loss = loss_of(generator, tree, batch_of(queries, [4, 30, 11]))
    assert loss == pytest.approx(-log_p[[0, 1, 2], [4, 30, 11]].mean().item(), rel=1e-5)


def test_loss_and_gradients_are_those_of_transformers_own_decoder():
    tree = random_tree(60, branching=4, leaf=2)
    generator, (states, mask, _) = random_generator(tree), random_queries(3)
    states.requires_grad_()
    positions = torch.tensor([4, 30, 11])
    batch = {"token_states": states, "states_mask": mask, "relevant": positions[:, None]}
    ours = CrossEntropy(Task(generator, tree)).loss(generator, batch, 0.0)
    theirs = transformers_loss(generator, tree, states, mask, positions)
    torch.testing.assert_close(ours, theirs)
    weights = [states, *generator.parameters()]
    for one, other in zip(torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("branching", [2, 4])
def test_a_tree_of_nodes_in_one_pass_gets_the_logits_of_each_sequence_alone(branching):
    tree = random_tree(60, branching=branching, leaf=2)
    generator, (states, mask, _) = random_generator(tree), random_queries(3)
    families = FamilyTree(tree, CPU)
    documents = torch.tensor([[0, 7, 59, 7], [31, 30, 2, -1], [-1, 5, -1, -1]])
    packed = families.pack(families.above(documents))
    with torch.no_grad():
        logits = generator(states, mask, packed.tokens, packed.depths, packed.sees)["logits"]
    parents, digits = (torch.from_numpy(each).long() for each in tree.paths(np.arange(60)))
    for row in range(3):
        wanted = {int(node) for d in documents[row].tolist() if d >= 0 for node in parents[d] if node >= 0}
        assert set(packed.parents[row].tolist()) - {-1} == wanted
        for document in documents[row].tolist():
            if document < 0:
                continue
            alone = chain_logits(tree, generator, states[[row]], mask[[row]], digits[[document]])[0]
            for level, node in enumerate(parents[document].tolist()):
                if node < 0:
                    continue
                place, children = packed.parents[row].tolist().index(node), int(tree.num_children[node])
                torch.testing.assert_close(logits[row, place, :children], alone[level, :children], atol=1e-5, rtol=1e-4)
                first = int(tree.first_child[node])
                assert packed.children[row, place, :children].tolist() == list(range(first, first + children))
                assert (packed.children[row, place, children:] == -1).all()


@pytest.mark.parametrize("from_t5", [False, True])
def test_a_new_generator_starts_near_a_uniform_choice(t5_folder, from_t5):
    tree = complete_tree()
    decoder = {"decoder": str(t5_folder)} if from_t5 else {"num_layers": 2}
    generator = DocidGenerator.create(GeneratorConfig(docid_tokens="digits", **decoder), tree, WIDTH, "ce").eval()
    states, mask, _ = random_queries(1)
    everything = (states.expand(64, -1, -1), mask.expand(64, -1))
    loss = loss_of(generator, tree, batch_of(everything, list(range(64))))
    assert loss == pytest.approx(math.log(64), abs=2.5)  # unit logits at three levels add half a nat each


def test_cached_states_give_the_losses_of_recomputed_ones(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("dsi.generator.states._BLOCK", 1)
    tree = random_tree(20)
    generator = DocidGenerator.create(GeneratorConfig(docid_tokens="digits", num_layers=2), tree, WIDTH, "ce").eval()
    documents = write_states(encoder, "document", TEXTS[:2], tmp_path / "documents")
    queries = write_states(encoder, "query", TEXTS[2:], tmp_path / "queries")
    assert (len(documents), len(queries)) == (2, 2)
    cache = StateCache([*documents, *queries])
    examples = DocidExamples(cache, np.array([3, 7, 11, 19]), tree)
    batch = examples.collate([0, 1, 2, 3])
    assert batch["relevant"].tolist() == [[3], [7], [11], [19]]
    for row, kind in enumerate(["document", "document", "query", "query"]):
        states, mask, _, _ = encoder.forward([TEXTS[row]], kind)
        fresh = loss_of(generator, tree, batch_of(tensors(states, mask), [[3, 7, 11, 19][row]]))
        cached = loss_of(generator, tree, {name: tensor[[row]] for name, tensor in batch.items()})
        assert fresh == pytest.approx(cached, abs=2e-3)  # float16 on disk
        np.testing.assert_allclose(batch["embeddings"][row], encoder.encode([TEXTS[row]], kind)[0], atol=1e-6)
    assert cache.lengths.tolist() == [
        int(encoder.forward([t], k)[1].sum()) for t, k in zip(TEXTS, ["document"] * 2 + ["query"] * 2, strict=True)
    ]


def test_encoder_and_decoder_train_together_from_texts(encoder, tmp_path):
    tree = random_tree(20)
    kinds = ["document", "document", "query", "query"]
    texts = Texts(encoder.model.preprocess, encoder.model.prompts, [("document", TEXTS[:2]), ("query", TEXTS[2:])])
    examples = DocidExamples(texts, np.array([0, 5, 11, 19]), tree)
    training = TrainingConfig(batch_size=2, epochs=40.0, learning_rate=3e-3, train_encoder=True)
    generator, before = DocidGenerator.create(FRESH, tree, WIDTH, "ce"), encoder.fingerprint
    first = WholeModel(encoder.model, generator).eval()
    batch = examples.collate([0, 1, 2, 3])
    together = loss_of(generator, tree, batch, model=first)
    alone = []
    for row, kind in enumerate(kinds):  # prompts and tokens are those of the frozen encoder
        states, mask, _, _ = encoder.forward([TEXTS[row]], kind)
        alone.append(loss_of(generator, tree, batch_of(tensors(states, mask), [[0, 5, 11, 19][row]])))
    assert sum(alone) / 4 == pytest.approx(together, abs=1e-4)
    train_generator(generator, examples, training, tmp_path / "work", encoder)
    assert encoder.fingerprint != before
    assert loss_of(generator, tree, batch, model=first.eval()) < 0.1 < together


def test_settings_of_training_and_examples_are_checked():
    with pytest.raises(ValueError, match=r"training.epochs must be at least 0, got -1"):
        TrainingConfig(epochs=-1.0)
    with pytest.raises(ValueError, match=r'must be above 0, got 0: only an index without a generator, .* "none", is'):
        check_together(FRESH, TrainingConfig(epochs=0.0))
    with pytest.raises(ValueError, match=r"training.objective must be one of ce, .*, got 'best'; install it"):
        TrainingConfig(objective="best")
    with pytest.raises(
        ValueError, match=r"'otm' reads the encoder's states or embeddings, which training\.train_encoder"
    ):
        TrainingConfig(objective="otm", epochs=1.0, train_encoder=True)


def test_settings_of_a_generator_are_refused_without_one():
    for settings, message in (
        (
            {"num_layers": 2},
            r'generator\.num_layers is 2, but generator\.docid_tokens is "none": the index has no generator',
        ),
        ({"decoder": "t5"}, r"generator\.decoder is 't5', but generator\.docid_tokens is \"none\""),
        ({"docid_tokens": "tied"}, "docid_tokens must be one of none, digits, words, got 'tied'"),
    ):
        with pytest.raises(ValueError, match=message):
            GeneratorConfig(**settings)
    for settings, name in (({"epochs": 1.0}, "epochs"), ({"train_encoder": True}, "train_encoder")):
        with pytest.raises(ValueError, match=rf"training\.{name} is .*, but there is no generator to train"):
            check_together(GeneratorConfig(), TrainingConfig(**settings))
    check_together(GeneratorConfig(), TrainingConfig())


@pytest.mark.parametrize("name", ["lexical_weight", "token_weight"])
def test_parts_of_the_document_score_are_refused_with_a_generator(name):
    with pytest.raises(
        ValueError, match=rf"search\.{name} needs generator\.docid_tokens \"none\", got 0.1 with 'digits'"
    ):
        Config.named("digits").with_changes({"search": {name: 0.1}})


def test_the_sampler_is_a_permutation_with_like_lengths_together_that_depends_on_the_epoch():
    lengths = np.random.default_rng(0).integers(1, 100, size=1003)
    sampler = LengthBucketSampler(lengths, 10, seed=1)
    first, again = list(sampler), list(sampler)
    assert first == again
    assert sorted(first) == list(range(1003))
    sampler.set_epoch(1)
    assert list(sampler) != first
    spans = [np.ptp(lengths[first[i : i + 10]]) for i in range(0, 1000, 10)]
    assert np.mean(spans) < 20  # random batches of ten would span about 80


def test_training_learns_the_examples_and_resuming_changes_nothing(encoder, tmp_path):
    tree = random_tree(20)
    examples = DocidExamples(states_of(encoder, tmp_path), np.array([0, 5, 11, 19]), tree)
    training = TrainingConfig(batch_size=2, epochs=40.0, learning_rate=3e-3)

    def create() -> DocidGenerator:
        return DocidGenerator.create(FRESH, tree, WIDTH, "ce")

    whole = create()
    record = train_generator(whole, examples, training, tmp_path / "whole")
    assert loss_of(whole, tree, examples.collate([0, 1, 2, 3])) < 0.1

    # The checkpoints of the whole run are what a killed run would have left; go on from the last but one.
    checkpoints = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (tmp_path / "resumed").mkdir()
    checkpoint = checkpoints[0].rename(tmp_path / "resumed" / checkpoints[0].name)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["log_history"][-1]["seconds"] += 1000  # as if it had taken long so far
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    resumed = create()
    again = train_generator(resumed, examples, training, tmp_path / "resumed")
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert again["steps"] == record["steps"] == 80
    assert again["loss"] == pytest.approx(record["loss"], rel=1e-4)
    assert again["seconds"] > 1000 > record["seconds"]


def test_a_generator_survives_saving_and_knows_its_docids(tmp_path):
    tree = random_tree(30)
    generator = random_generator(tree)
    generator.save_pretrained(str(tmp_path / "generator"))
    loaded = load_generator(tmp_path / "generator", "cpu")
    batch = batch_of(random_queries(3), [4, 22, 29])
    assert loss_of(generator, tree, batch) == loss_of(loaded, tree, batch)
    loaded.check_tree(tree)
    with pytest.raises(ValueError, match=r"was trained for docids .* train the generator again"):
        loaded.check_tree(random_tree(30, seed=5))
    with pytest.raises(FileNotFoundError, match=r"train it first \(dsi train\)"):
        load_generator(tmp_path / "nothing", "cpu")


def test_every_piece_is_trained_with_its_own_place_and_every_query_with_the_nearest_of_its_document(
    beir, tmp_path, sentence_t5_folder, t5_folder
):
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, contrastive={"loss": "none"},
        docids={"branching": 4, "max_leaf_size": 20, "pieces": 2}, **VECTORS,
    )  # fmt: skip
    collection = dsi.read_collection(beir())
    run = TrainingRun(tmp_path / "run", collection, read_config(config), "cpu")
    run.run_stages("docids")
    encoder, tree = run.encoder(), run.tree()
    pieces = DocumentTexts(encoder, collection.documents, 2)
    nothing = (np.empty(0, dtype=int), [], "")
    folders = StageFolders(run.folder, ALONE)
    stage = GeneratorStage(run.config, collection, encoder, tree, nothing, folders, tmp_path / "documents")
    examples = stage.examples()
    np.testing.assert_allclose(
        tree.embeddings[examples.positions[: len(pieces)]], encoder.encode(pieces[:], "document"), atol=1e-5
    )
    of_queries = examples.positions[len(pieces) :]
    pairs = collection.pairs("train")
    assert tree.doc_rows[of_queries].tolist() == [row for _, row in pairs]
    vectors = examples.inputs.embeddings[len(pieces) :]
    own = np.einsum("nd,nd->n", tree.embeddings[of_queries], vectors)
    places = tree.embeddings[padded_places(tree, np.array([row for _, row in pairs]))]
    np.testing.assert_allclose(own, np.einsum("npd,nd->np", places, vectors).max(axis=1), atol=1e-6)


def test_documents_alone_are_trained_on_where_that_is_configured(sentence_bert_folder, tmp_path, caplog):
    own = {"encoder": {"name": str(sentence_bert_folder)}, "training": {"epochs": 1.0}, "docids": {"max_leaf_size": 2}}
    config = Config.named("digits").with_changes(own)
    texts = [f"Number {number} glows." for number in range(12)]
    dsi.train(Collection.from_records(texts), tmp_path / "run", config=config, device="cpu")
    assert "has no train queries: the encoder stays as it is" in caplog.text
    trained = read_config(tmp_path / "run" / "config.toml")
    assert trained == config.with_changes({"contrastive": {"loss": "none"}})
    assert json.loads((tmp_path / "run" / "generator" / "training.json").read_text())["steps"] > 0
