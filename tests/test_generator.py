"""The generator: T5 weights taken over, a proper distribution, cached states against fresh ones, the order of batches."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from dsi_experiments.benchmarks.reference import transformers_loss
from transformers import T5ForConditionalGeneration

from contrastive import blocks
from contrastive.encoder import Encoder
from docids.tree import DocidTree
from dsi.commands.main import main
from dsi.generator.config import (
    ExamplesConfig,
    GeneratorConfig,
    ObjectiveConfig,
    QueryMapConfig,
    TrainingConfig,
    check_together,
)
from dsi.generator.kinds import load_generator
from dsi.generator.model import DocidGenerator
from dsi.generator.states import StateCache, write_states
from dsi.training.examples import DocidExamples, LengthBucketSampler, Texts
from dsi.training.objective import DenseLogits, GeneratorLoss, drop_states
from dsi.training.teacher import Teacher
from dsi.training.trainer import WholeModel, train_generator
from dsi.trees.families import FamilyTree
from tests.conftest import WIDTH, random_generator, random_queries, random_tree
from tests.oracles import chain_logits, document_log_p
from tests.oracles import children_of as nodes_below

CPU = torch.device("cpu")
FRESH = GeneratorConfig(decoder="", num_layers=1, num_heads=4)
CE = ObjectiveConfig()
TEXTS = ["the danube passes four capitals", "neon", "helium fills balloons and airships", "a river"]


def states_of(encoder: Encoder, folder: Path) -> StateCache:
    """The cached states of `TEXTS` as queries."""
    return StateCache(write_states(encoder, "query", TEXTS, folder / "states"))


def test_decoder_weights_of_a_t5_checkpoint_are_taken_over(t5_folder):
    tree = random_tree(60)
    generator = DocidGenerator.create(GeneratorConfig(decoder=str(t5_folder)), tree, WIDTH)
    theirs = T5ForConditionalGeneration.from_pretrained(str(t5_folder)).decoder.state_dict()
    ours = generator.decoder.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if "embed_tokens" not in name:
            assert torch.equal(ours[name], tensor), name
    assert generator.head.weight.shape == (tree.vocab_size, WIDTH)
    shallow = DocidGenerator.create(GeneratorConfig(decoder=str(t5_folder), num_layers=1), tree, WIDTH)
    assert len(shallow.decoder.block) == 1
    assert torch.equal(
        shallow.decoder.block[0].layer[2].DenseReluDense.wi.weight, theirs["block.0.layer.2.DenseReluDense.wi.weight"]
    )


def test_the_output_layer_gives_what_t5_would_give_on_the_same_states(t5_folder):
    # Same decoder, same inputs: our hidden states are T5's; so the taken-over weights are also wired up as T5 wires them.
    tree = random_tree(60)
    generator = DocidGenerator.create(GeneratorConfig(decoder=str(t5_folder)), tree, WIDTH).eval()
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
        DocidGenerator.create(GeneratorConfig(decoder=str(t5_folder)), tree, 99)
    with pytest.raises(ValueError, match="num_heads must divide the encoder's width 30, got 8"):
        DocidGenerator.create(GeneratorConfig(decoder="", num_layers=1), tree, 30)
    with pytest.raises(ValueError, match="ask for fewer num_layers"):
        DocidGenerator.create(GeneratorConfig(decoder=str(t5_folder), num_layers=5), tree, WIDTH)
    with pytest.raises(ValueError, match="num_layers must be at least 1 without a T5 checkpoint"):
        GeneratorConfig(decoder="")


def children_of(tree: DocidTree, parents: torch.Tensor) -> torch.Tensor:
    """[batch, n, largest fan-out] the children of inner nodes [batch, n], -1 where there is none."""
    digits, known = torch.arange(max(tree.fan_out)), parents.clamp(min=0)
    exists = (digits < torch.from_numpy(tree.num_children)[known][:, :, None]) & (parents >= 0)[:, :, None]
    return (torch.from_numpy(tree.first_child)[known][:, :, None].long() + digits).masked_fill(~exists, -1)


def loss_of(
    generator: DocidGenerator,
    tree: DocidTree,
    batch: dict[str, torch.Tensor],
    objective: ObjectiveConfig = CE,
    dense: DenseLogits | None = None,
    model: torch.nn.Module | None = None,
) -> float:
    """The training loss of a batch as `DocidExamples.collate` makes it."""
    with torch.no_grad():
        loss = GeneratorLoss(generator, tree, objective, CPU, dense)
        return float(loss(model or generator, batch, 0.99))


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
    ours = GeneratorLoss(generator, tree, CE, CPU)(generator, batch, 0.0)
    theirs = transformers_loss(generator, tree, states, mask, positions)
    torch.testing.assert_close(ours, theirs)
    weights = [states, *generator.parameters()]
    for one, other in zip(torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_training_benchmark_compares_the_same_loss(tmp_path, capsys):
    sizes = ["--shapes", "small", "--tokens", "4", "--documents", "50", "--rounds", "1"]
    assert main(["benchmark-training", *sizes, "--results", str(tmp_path / "training.json")]) == 0
    assert capsys.readouterr().out.count("x  yes") == 2
    rows = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert [(row["bfloat16"], row["same_loss"]) for row in rows] == [(False, True), (True, True)]


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
    tree = random_tree(64, method="balanced")
    decoder = {"decoder": str(t5_folder)} if from_t5 else {"decoder": "", "num_layers": 2, "num_heads": 4}
    generator = DocidGenerator.create(GeneratorConfig(**decoder), tree, WIDTH).eval()
    states, mask, _ = random_queries(1)
    everything = (states.expand(64, -1, -1), mask.expand(64, -1))
    loss = loss_of(generator, tree, batch_of(everything, list(range(64))))
    assert loss == pytest.approx(math.log(64), abs=2.5)  # unit logits at three levels add half a nat each


def test_cached_states_give_the_losses_of_recomputed_ones(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1)
    tree = random_tree(20)
    generator = DocidGenerator.create(GeneratorConfig(decoder="", num_layers=2, num_heads=4), tree, WIDTH).eval()
    documents = write_states(encoder, "document", TEXTS[:2], tmp_path / "documents")
    queries = write_states(encoder, "query", TEXTS[2:], tmp_path / "queries")
    assert (len(documents), len(queries)) == (2, 2)
    cache = StateCache([*documents, *queries])
    examples = DocidExamples(cache, np.array([3, 7, 11, 19]), np.zeros(4, dtype=int), tree)
    batch = examples.collate([0, 1, 2, 3])
    assert batch["relevant"].tolist() == [[3], [7], [11], [19]]
    for row, kind in enumerate(["document", "document", "query", "query"]):
        states, mask, _, _ = encoder.forward([TEXTS[row]], kind)
        fresh = loss_of(generator, tree, batch_of((states, mask), [[3, 7, 11, 19][row]]))
        cached = loss_of(generator, tree, {name: tensor[[row]] for name, tensor in batch.items()})
        assert fresh == pytest.approx(cached, abs=2e-3)  # float16 on disk
        np.testing.assert_allclose(batch["embeddings"][row], encoder.encode([TEXTS[row]], kind)[0], atol=1e-6)
    assert cache.lengths.tolist() == [
        int(encoder.forward([t], k)[1].sum()) for t, k in zip(TEXTS, ["document"] * 2 + ["query"] * 2, strict=True)
    ]


@pytest.mark.parametrize(("documents", "branching"), [(37, 3), (60, 4), (4, 4)])
def test_dense_logits_along_a_path_are_the_softmax_of_flat_dense_search_and_frequencies(documents, branching):
    tree = random_tree(documents, branching=branching, leaf=2)
    parents, digits = tree.paths(np.arange(documents))
    query = random_queries(1)[2]
    frequencies = torch.randn(2, documents)
    dense = DenseLogits(tree, 0.3, frequencies, CPU)
    kinds = torch.ones(documents, dtype=torch.long)
    logits = dense(query.expand(documents, -1), children_of(tree, torch.from_numpy(parents).long()), kinds)
    found = torch.zeros(documents)
    for document in range(documents):
        for level, node in enumerate(parents[document]):
            if node >= 0:
                own = logits[document, level, : tree.num_children[node]].log_softmax(0)
                found[document] += own[digits[document, level]]
    expected = (query @ torch.from_numpy(tree.embeddings[:]).T / 0.3 + frequencies[1]).log_softmax(dim=1)[0]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)

    # In the generator they are added to the decoder's logits: a decoder that says nothing leaves dense search.
    generator = random_generator(tree)
    states, mask, _ = random_queries(1)
    with torch.no_grad():
        generator.head.weight.zero_()
    for document in range(0, documents, 5):
        batch = {**batch_of((states, mask), [document]), "embeddings": query, "kinds": kinds[:1]}
        silent = loss_of(generator, tree, batch, ObjectiveConfig(dense_temperature=0.3), dense)
        assert silent == pytest.approx(-expected[document].item(), abs=1e-3)


def test_training_on_top_of_dense_search_starts_from_it_and_improves_on_it(encoder, tmp_path):
    tree = random_tree(20)
    examples = DocidExamples(states_of(encoder, tmp_path), np.array([0, 5, 11, 19]), np.zeros(4, dtype=int), tree)
    dense = DenseLogits(tree, 0.5, examples.log_frequencies(), CPU)
    batch = examples.collate([0, 1, 2, 3])
    together = {}
    for temperature in (0.0, 0.5):
        objective = ObjectiveConfig(dense_temperature=temperature)
        training = TrainingConfig(batch_size=4, epochs=60.0, learning_rate=3e-3)
        generator = DocidGenerator.create(FRESH, tree, WIDTH)
        train_generator(generator, examples, objective, training, tmp_path / f"work-{temperature}")
        together[temperature] = loss_of(generator, tree, batch, objective, dense)
    with torch.no_grad():
        generator.head.weight.zero_()
    assert together[0.5] < 0.1 < loss_of(generator, tree, batch, objective, dense)
    assert together[0.5] < together[0.0]  # a standalone decoder does not know what dense search says


def test_a_teacher_shares_the_targets_on_every_node_of_the_path(encoder, tmp_path):
    tree = random_tree(20)
    generator, queries = random_generator(tree), random_queries(20)
    parents, digits = (torch.from_numpy(each).long() for each in tree.paths(np.arange(20)))
    teacher = Teacher.dense(queries[2].numpy(), tree.embeddings[:], 6, 0.5)
    taught = {name: torch.from_numpy(own) for name, own in teacher.batch(range(20)).items()}
    objective = ObjectiveConfig(dense_temperature=0.5, distillation=0.3)
    found = loss_of(generator, tree, {**batch_of(queries, list(range(20))), **taught}, objective)
    logits, total = chain_logits(tree, generator, *queries[:2], digits), 0.0
    scores = queries[2].numpy() @ tree.embeddings[:].T
    for row in range(20):
        best = np.argsort(-scores[row], kind="stable")[:6]
        shares = np.exp(scores[row, best] / 0.5)
        shares /= shares.sum()
        for level in range(int((digits[row] >= 0).sum())):
            own = list(nodes_below(tree, int(parents[row, level])))
            targets = []
            for digit, child in enumerate(own):
                inner = child < tree.num_inner
                start = int(tree.doc_start[child]) if inner else child - tree.num_inner
                end = int(tree.doc_end[child]) if inner else start + 1
                mass = sum(share for document, share in zip(best, shares, strict=True) if start <= document < end)
                targets.append(0.7 * (digit == digits[row, level]) + 0.3 * mass)
            log_p = logits[row, level, : len(own)].log_softmax(0).tolist()
            total -= sum(t * p for t, p in zip(targets, log_p, strict=True)) / sum(targets) / 20
    assert found == pytest.approx(float(total), rel=1e-4)

    # Taught alone, the decoder comes to say what dense search says.
    states = states_of(encoder, tmp_path)
    teacher = Teacher.dense(states.embeddings, tree.embeddings[:], 20, 0.5)
    examples = DocidExamples(
        states, np.array([0, 5, 11, 19]), np.zeros(4, dtype=int), tree, relevant={}, teacher=teacher
    )
    objective = ObjectiveConfig(dense_temperature=0.5, distillation=1.0)
    training = TrainingConfig(batch_size=4, epochs=150.0, learning_rate=3e-3)
    student, batch = DocidGenerator.create(FRESH, tree, WIDTH), examples.collate([0, 1, 2, 3])
    before = loss_of(student, tree, batch, objective)
    train_generator(student, examples, objective, training, tmp_path / "work")
    entropy = sum(entropy_on_path(tree, batch, row) for row in range(4)) / 4
    assert loss_of(student, tree, batch, objective) - entropy < 0.05 < before - entropy


def entropy_on_path(tree: DocidTree, batch: dict[str, torch.Tensor], row: int) -> float:
    """Entropy of the teacher's shares of the children of each node on a row's path, summed: the least possible loss."""
    families = FamilyTree(tree, CPU)
    path = families.pack(families.above(batch["relevant"][row : row + 1]))
    mass = families.mass(path, batch["taught"][row : row + 1], batch["taught_weights"][row : row + 1])[0]
    shares = mass[mass.sum(dim=1) > 0]
    shares = shares / shares.sum(dim=1, keepdim=True)
    return float(-(shares * shares.clamp(min=1e-30).log()).sum())


def test_encoder_and_decoder_train_together_from_texts(encoder, tmp_path):
    tree = random_tree(20)
    kinds = ["document", "document", "query", "query"]
    texts = Texts(encoder, [("document", TEXTS[:2]), ("query", TEXTS[2:])])
    examples = DocidExamples(texts, np.array([0, 5, 11, 19]), np.zeros(4, dtype=int), tree)
    training = TrainingConfig(batch_size=2, epochs=40.0, learning_rate=3e-3, train_encoder=True)
    generator, before = DocidGenerator.create(FRESH, tree, WIDTH), encoder.fingerprint
    first = WholeModel(encoder.model, generator).eval()
    batch = examples.collate([0, 1, 2, 3])
    together = loss_of(generator, tree, batch, model=first)
    alone = []
    for row, kind in enumerate(kinds):  # prompts and tokens are those of the frozen encoder
        states, mask, _, _ = encoder.forward([TEXTS[row]], kind)
        alone.append(loss_of(generator, tree, batch_of((states, mask), [[0, 5, 11, 19][row]])))
    assert sum(alone) / 4 == pytest.approx(together, abs=1e-4)
    train_generator(generator, examples, CE, training, tmp_path / "work", encoder)
    assert encoder.fingerprint != before
    assert loss_of(generator, tree, batch, model=first.eval()) < 0.1 < together


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distillation": 0.5}, r"distillation needs a dense_temperature above 0, got 0.5 with dense_temperature 0"),
        ({"distillation": 2.0, "dense_temperature": 0.1}, r"distillation must be in \[0, 1\], got 2.0"),
        ({"dense_temperature": -1.0}, "dense_temperature must be at least 0, got -1"),
        ({"name": "best"}, r"objective must be one of ce, plt, tdm, .*, got 'best'"),
        ({"name": "otm", "dense_temperature": 0.1}, "works with objective \"ce\", or with distillation, got 'otm'"),
        (
            {"name": "otm", "dense_temperature": 0.1, "distillation": 0.5},
            r"distillation needs an objective with a softmax \(ce, dtr, estimate\), got 'otm'",
        ),
        ({"teacher_documents": 0}, "objective.teacher_documents must be at least 1, got 0"),
        ({"training_beam": 0}, "objective.training_beam must be at least 1, got 0"),
        ({"warm_start": 1.0}, r"warm_start must be in \[0, 1\), got 1.0"),
    ],
)
def test_objectives_whose_settings_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ObjectiveConfig(**settings)


def test_settings_of_training_and_examples_are_checked():
    with pytest.raises(ValueError, match=r"training.state_dropout must be in \[0, 1\), got 1.0"):
        TrainingConfig(state_dropout=1.0)
    with pytest.raises(ValueError, match=r"training.epochs must be at least 0, got -1"):
        TrainingConfig(epochs=-1.0)
    with pytest.raises(ValueError, match=r'must be above 0, got 0: only generator.docid_tokens = "tied" makes sense'):
        check_together(FRESH, CE, TrainingConfig(epochs=0.0), QueryMapConfig())
    with pytest.raises(ValueError, match=r"examples\.document_segments must be at least 1, got 0"):
        ExamplesConfig(document_segments=0)
    together = TrainingConfig(train_encoder=True)
    with pytest.raises(
        ValueError, match=r"'otm' searches with the encoder's states, which training\.train_encoder changes"
    ):
        check_together(FRESH, ObjectiveConfig("otm"), together, QueryMapConfig())
    with pytest.raises(ValueError, match="train_encoder changes the encoder"):
        check_together(FRESH, ObjectiveConfig(dense_temperature=0.1), together, QueryMapConfig())


def test_dropped_states_are_a_share_of_the_tokens_and_never_all(encoder, tmp_path):
    torch.manual_seed(0)
    mask = torch.arange(50) < torch.randint(1, 51, (400, 1))
    kept = drop_states(mask, 0.3)
    assert not (kept & ~mask).any()
    assert kept[:, 0].all()
    assert (kept[:, 1:].sum() / mask[:, 1:].sum()).item() == pytest.approx(0.7, abs=0.02)

    # It takes part in training, and only there.
    tree = random_tree(20)
    examples = DocidExamples(states_of(encoder, tmp_path), np.array([0, 5, 11, 19]), np.zeros(4, dtype=int), tree)
    losses = []
    for share in (0.0, 0.9):
        training = TrainingConfig(batch_size=4, epochs=40.0, learning_rate=3e-3, state_dropout=share)
        generator = DocidGenerator.create(FRESH, tree, WIDTH)
        losses.append(train_generator(generator, examples, CE, training, tmp_path / f"work-{share}")["loss"])
    assert losses[1] > losses[0] + 0.1


def test_frequencies_are_counted_by_kind_of_example(encoder, tmp_path):
    examples = DocidExamples(
        states_of(encoder, tmp_path),
        np.array([0, 5, 5, 0]),
        np.array([0, 1, 1, 1]),
        random_tree(6),
    )
    expected = [[1.5, 0.5, 0.5, 0.5, 0.5, 0.5], [1.5, 0.5, 0.5, 0.5, 0.5, 2.5]]
    torch.testing.assert_close(examples.log_frequencies(smoothing=0.5), torch.tensor(expected).log())
    assert examples.collate([3, 0])["kinds"].tolist() == [1, 0]


def test_examples_must_fit_the_cache(encoder, tmp_path):
    with pytest.raises(ValueError, match="3 positions for 4 texts"):
        DocidExamples(states_of(encoder, tmp_path), np.arange(3), np.zeros(3, dtype=int), random_tree(20))
    with pytest.raises(
        ValueError, match="Docid positions are 0 to 19 in this tree, an example asks for 20; build the docids"
    ):
        DocidExamples(
            states_of(encoder, tmp_path),
            np.arange(17, 21),
            np.zeros(4, dtype=int),
            random_tree(20),
        )


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
    examples = DocidExamples(states_of(encoder, tmp_path), np.array([0, 5, 11, 19]), np.zeros(4, dtype=int), tree)
    training = TrainingConfig(batch_size=2, epochs=40.0, learning_rate=3e-3)

    def create() -> DocidGenerator:
        return DocidGenerator.create(FRESH, tree, WIDTH)

    whole = create()
    record = train_generator(whole, examples, CE, training, tmp_path / "whole")
    assert loss_of(whole, tree, examples.collate([0, 1, 2, 3])) < 0.1

    # The checkpoints of the whole run are what a killed run would have left; go on from the last but one.
    checkpoints = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (tmp_path / "resumed").mkdir()
    checkpoint = checkpoints[0].rename(tmp_path / "resumed" / checkpoints[0].name)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["log_history"][-1]["seconds"] += 1000  # as if it had taken long so far
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    resumed = create()
    again = train_generator(resumed, examples, CE, training, tmp_path / "resumed")
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
    with pytest.raises(FileNotFoundError, match=r"dsi train --stage generator"):
        load_generator(tmp_path / "nothing", "cpu")
