"""Tied tokens: the loss by its definition, training, settings."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from dsi_experiments.rerankers.features import DigitScores, Siblings, siblings

from dsi.config import Config
from dsi.docids.tree import DocidTree
from dsi.generator.config import CE, GeneratorConfig, ObjectiveConfig, TrainingConfig, check_together
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.objectives import Estimate, Task
from dsi.generator.states import Embeddings
from dsi.generator.tied import LevelOutputs, TiedGenerator
from dsi.search.engines import create_engine
from dsi.search.generate import TiedEngine
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.training.examples import DocidExamples
from dsi.training.teacher import Teacher
from dsi.training.trainer import train_generator
from tests.support.oracles import bonus
from tests.support.small import WIDTH, random_queries, random_tied, random_tree

TIED = GeneratorConfig(docid_tokens="tied", decoder="")


def query_batch(batch: int, *, seed: int = 0) -> QueryBatch:
    states, mask, embeddings = random_queries(batch, seed=seed)
    return QueryBatch(torch.arange(batch), states, mask, embeddings, ["text"] * batch)


def training_batch(tree: DocidTree, generator: TiedGenerator) -> dict[str, torch.Tensor]:
    batch = query_batch(3)
    relevant = torch.tensor([[7, -1], [21, 3], [tree.num_places - 1, -1]])
    teacher = Teacher.dense(batch.embeddings.numpy(), tree.embeddings[:], 0.5, 4)
    taught = {name: torch.from_numpy(own) for name, own in teacher.batch([0, 1, 2]).items()}
    states = {"token_states": batch.states, "states_mask": batch.mask} if generator.reads_states else {}
    return {"embeddings": batch.embeddings, **states, "relevant": relevant, **taught}


def literal_loss(tree: DocidTree, outputs: LevelOutputs, batch: dict[str, torch.Tensor], share: float) -> torch.Tensor:
    total = torch.zeros(())
    for row in range(3):
        gold = [int(d) for d in batch["relevant"][row] if d >= 0]
        weights = {d: (1 - share) / len(gold) for d in gold}
        for d, w in zip(batch["taught"][row].tolist(), batch["taught_weights"][row].tolist(), strict=True):
            weights[d] = weights.get(d, 0.0) + share * w
        for level in range(tree.depth - 1):
            nodes = range(tree.levels[level + 1].start, tree.levels[level + 1].stop)
            query, size_weight = outputs.queries[row, level], outputs.size_weights[level]
            scores = [
                query @ torch.from_numpy(tree.centroids[node]) + size_weight * bonus(tree, node) for node in nodes
            ]
            log_p = (outputs.scales[level] * torch.stack(scores)).log_softmax(0)
            mass = [sum(w for d, w in weights.items() if tree.doc_start[n] <= d < tree.doc_end[n]) for n in nodes]
            if sum(mass):
                total = total - sum(m / sum(mass) * p for m, p in zip(mass, log_p, strict=True) if m)
    return total / 3


@pytest.mark.parametrize("layers", [0, 1])
def test_loss_and_gradients_are_those_of_the_definition(layers):
    tree = random_tree(40, branching=3, leaf=2)
    generator = random_tied(tree, layers=layers)
    batch = training_batch(tree, generator)
    ours = Estimate(Task(generator, tree, distillation=0.7)).loss(generator, batch, 0.0)
    outputs = generator(batch["embeddings"], batch.get("token_states"), batch.get("states_mask"))
    theirs = literal_loss(tree, outputs, batch, 0.7)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    names, weights = zip(*((n, w) for n, w in generator.named_parameters()), strict=True)
    found, expected = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (ours, theirs))
    for name, one, other in zip(names, found, expected, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


def test_a_sampled_level_has_the_labels_and_random_nodes(monkeypatch):
    from dsi.generator import objectives as module

    tree = random_tree(60, branching=3, leaf=2)
    generator = random_tied(tree)
    objective = Estimate(Task(generator, tree))
    batch = training_batch(tree, generator)
    whole = objective.loss(generator, batch, 0.0)
    monkeypatch.setattr(module, "_LARGEST_LEVEL", 2)
    monkeypatch.setattr(module, "_SAMPLE", 5000)
    torch.testing.assert_close(
        objective.loss(generator, batch, 0.0), whole
    )  # so many draws that every node is among them
    monkeypatch.setattr(module, "_SAMPLE", 0)
    assert objective.loss(generator, batch, 0.0) < whole  # fewer nodes to choose among


def test_the_teacher_gives_the_best_documents_and_their_shares():
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, WIDTH)).astype(np.float32) for n in (30, 17))
    teacher = Teacher.dense(queries, documents, 0.5, 5)
    scores = queries @ documents.T
    for row in range(30):
        best = np.argsort(-scores[row])[:5]
        shares = np.exp((scores[row, best] - scores[row, best[0]]) / 0.5)
        assert teacher.positions[row].tolist() == best.tolist()
        np.testing.assert_allclose(teacher.weights[row], shares / shares.sum(), rtol=1e-4)
    assert Teacher.dense(queries, documents, 0.5, 99).positions.shape == (30, 17)


def examples_for(tree: DocidTree, count: int = 400, seed: int = 0) -> DocidExamples:
    """Queries that are a rotation of their document's embedding: flat dense search is wrong, a linear map is right."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(np.random.default_rng(7).normal(size=(WIDTH, WIDTH)))
    positions = rng.integers(tree.num_places, size=count)
    queries = (tree.embeddings[positions] @ rotation + rng.normal(size=(count, WIDTH)) * 0.1).astype(np.float32)
    return DocidExamples(Embeddings([queries]), positions, tree)


def found_by(generator: TiedGenerator, tree: DocidTree, examples: DocidExamples) -> float:
    """Share of the examples whose document lies below the nodes that a walk by the generator keeps."""
    embeddings = torch.from_numpy(examples.inputs.embeddings)
    batch = query_batch(len(embeddings))._replace(embeddings=embeddings)
    index = TiedEngine(tree, generator, None)
    scores, ends = index.walk.node_scores(batch, SearchConfig(alpha=1.0)), index.ends_above()
    nodes = [reached.nodes for reached in index.walk.descend(scores, range(len(embeddings)), 3)]
    return float(np.mean([ends[own] in kept for own, kept in zip(examples.positions, nodes, strict=True)]))


def test_training_finds_what_the_encoder_misses_and_resuming_changes_nothing(tmp_path):
    tree = random_tree(80, branching=4, leaf=4)
    examples, fresh = examples_for(tree), examples_for(tree, 100, seed=1)
    objective = ObjectiveConfig()
    training = TrainingConfig(batch_size=40, epochs=20.0, learning_rate=2e-2)

    def new() -> TiedGenerator:
        return create_generator(TIED, tree, WIDTH, objective)

    before, trained = new().eval(), new()
    record = train_generator(trained, examples, objective, training, tmp_path / "work")
    assert found_by(trained, tree, fresh) > 0.9 > 0.5 > found_by(before, tree, fresh)
    assert record["steps"] == 200
    trained.save_pretrained(str(tmp_path / "generator"))
    loaded = load_generator(tmp_path / "generator", "cpu")
    assert isinstance(loaded, TiedGenerator)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), trained.state_dict().values(), strict=True)
    )
    again = new()
    train_generator(again, examples, objective, dataclasses.replace(training), tmp_path / "work")  # its checkpoint
    assert torch.equal(again.maps, trained.maps)


@pytest.mark.parametrize("layers", [0, 2])
def test_an_untrained_generator_descends_by_the_scores_of_the_encoder(layers):
    tree, batch = random_tree(90, branching=3, leaf=4), query_batch(5)
    config = dataclasses.replace(TIED, num_layers=layers)
    index = TiedEngine(tree, create_generator(config, tree, WIDTH, ObjectiveConfig()).eval(), None)
    found = [
        index.methods["generate"].retrieve(batch, SearchRequest(6, SearchConfig(alpha=alpha, beam_width=3)))
        for alpha in (0.0, 0.4, 1.0)
    ]
    for other in found[1:]:
        assert other.positions.tolist() == found[0].positions.tolist()
        np.testing.assert_allclose(other.scores, found[0].scores, rtol=1e-5)


def test_decoder_weights_of_a_t5_checkpoint_are_taken_over(t5_folder):
    tree = random_tree(30)
    config = GeneratorConfig(docid_tokens="tied", decoder=str(t5_folder))
    generator = TiedGenerator.create(config, tree, WIDTH, ObjectiveConfig())
    other = create_generator(GeneratorConfig(docid_tokens="digits", decoder=str(t5_folder)), tree, WIDTH, CE)
    for name, weight in generator.decoder.state_dict().items():
        if "embed_tokens" not in name:
            assert torch.equal(weight, other.decoder.state_dict()[name]), name
    with pytest.raises(ValueError, match="ask for fewer num_layers"):
        TiedGenerator.create(dataclasses.replace(config, num_layers=5), tree, WIDTH)


def test_settings_that_contradict_each_other_are_refused():
    estimate = ObjectiveConfig()
    check_together(TIED, estimate, TrainingConfig())
    digits = GeneratorConfig(docid_tokens="digits", num_layers=1)
    for generator, objective in ((digits, estimate), (TIED, CE)):
        with pytest.raises(ValueError, match=r'"estimate" and generator\.docid_tokens "tied" go together'):
            check_together(generator, objective, TrainingConfig())
    with pytest.raises(ValueError, match="changes the encoder whose embeddings tied tokens use"):
        check_together(TIED, estimate, TrainingConfig(train_encoder=True))
    with pytest.raises(ValueError, match="docid_tokens must be one of tied, digits, words, got 'letters'"):
        GeneratorConfig(docid_tokens="letters")


def test_configurations_whose_index_could_not_be_searched_are_refused():
    digits = Config.named("digits")
    for name in ("lexical_weight", "token_weight"):
        with pytest.raises(
            ValueError, match=rf"search\.{name} needs generator\.docid_tokens \"tied\", got 0.1 with 'digits'"
        ):
            digits.with_changes({"search": {name: 0.1}})


def test_generators_do_not_share_weights_with_their_search():
    generator = random_tied(random_tree(20))
    kept = copy.deepcopy(generator.maps)
    index = create_engine(generator, random_tree(20), None)
    with torch.no_grad():
        generator.maps.add_(1.0)
    assert torch.equal(index.generator.maps, kept)


def test_removed_siblings_make_no_feature_undefined():
    generative = np.array([[[0.5, 0.9, 0.25]]], dtype=np.float32)
    level = Siblings(generative, generative, np.array([[[True, False, True]]]), np.array([[0]]))
    scores = DigitScores.from_siblings([level])
    p = torch.tensor([0.5, 0.25]).softmax(0)
    np.testing.assert_allclose(scores.entropy[0, 0, 0], -(p * p.log()).sum(), rtol=1e-5)
    np.testing.assert_allclose(scores.margin[0, 0, 0], 0.25, rtol=1e-5)
    np.testing.assert_allclose(scores.generative[0, 0, 0], p.log()[0], rtol=1e-5)


def test_digit_scores_of_tied_tokens_multiply_to_a_distribution():
    tree = random_tree(40, branching=3, leaf=3)
    index, batch = TiedEngine(tree, random_tied(tree), None), query_batch(2)
    positions = np.tile(np.arange(40), (2, 1))
    scores = DigitScores.from_siblings(list(siblings(index, batch, positions)))
    for each in (scores.generative, scores.dense):
        np.testing.assert_allclose(np.exp(each.sum(axis=2)).sum(axis=1), 1, rtol=1e-4)
