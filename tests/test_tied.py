"""Tied tokens: estimates by their definition, searches against brute force, an untrained generator, training, updates."""

import copy
import dataclasses
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docids.lexical import BM25
from docids.tree import DocidTree
from docids.updating import add_documents, remove_documents
from dsi.config import Config
from dsi.generator.config import GeneratorConfig, ObjectiveConfig, RankingConfig, TrainingConfig, check_together
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.ranking import DocumentRanking
from dsi.generator.states import Embeddings, StateCache, write_states
from dsi.generator.tied import LevelQueries, TiedGenerator
from dsi.rerankers.features import _certainty
from dsi.reranking import _dense_reward
from dsi.search.added import AddedScores
from dsi.search.beams import LevelTrace
from dsi.search.queries import QueryBatch, encode_queries, with_scores
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.words import word_factors, words_of
from dsi.training.examples import DocidExamples
from dsi.training.objective import GeneratorLoss
from dsi.training.ranking import RankingExamples, RankingLoss, train_ranking
from dsi.training.teacher import Teacher
from dsi.training.trainer import train_generator
from dsi.trees.dense import DenseScores
from dsi.trees.estimates import NodeEstimates
from tests.conftest import WIDTH, random_queries, random_tied, random_tree, searcher_for
from tests.oracles import estimate, estimate_beam, estimate_log_p

CPU = torch.device("cpu")
ESTIMATE = SearchConfig(fusion="estimate", alpha=0.6, beam_width=4)
trees = st.builds(
    random_tree,
    documents=st.integers(4, 60),
    branching=st.sampled_from([2, 3, 4]),
    seed=st.integers(0, 1000),
    leaf=st.just(2),
)


def query_batch(batch: int, *, seed: int = 0, added: AddedScores | None = None) -> QueryBatch:
    states, mask, embeddings = random_queries(batch, seed=seed)
    return QueryBatch(torch.arange(batch), states, mask, embeddings, [""] * batch, added)


def said_of(generator: TiedGenerator, batch: QueryBatch) -> LevelQueries:
    with torch.no_grad():
        return generator(batch.embeddings, batch.states, batch.mask)


@torch.no_grad()
def document_scores(tree: DocidTree, generator: TiedGenerator, batch: QueryBatch, alpha: float) -> torch.Tensor:
    """[batch, documents] (1 - alpha) z.e_d + alpha (z + M z).e_d, and what is added."""
    learned = batch.embeddings + batch.embeddings @ generator.ranking.maps[0].T
    queries = (1 - alpha) * batch.embeddings + alpha * learned
    scores = queries @ torch.from_numpy(tree.embeddings[:]).T
    return scores if batch.added is None else scores + batch.added.of_all()


@settings(max_examples=20, deadline=None)
@given(tree=trees, look_ahead=st.integers(0, 3), largest=st.booleans(), change=st.booleans(), seed=st.integers(0, 99))
def test_estimates_are_those_of_their_definition(tree, look_ahead, largest, change, seed):
    if change:
        rng = np.random.default_rng(seed)
        tree = remove_documents(tree, rng.choice(tree.num_documents, size=tree.num_documents // 3, replace=False))
        tree = add_documents(tree, rng.normal(size=(5, WIDTH)).astype(np.float32))
    estimates = NodeEstimates(DenseScores(tree, CPU), look_ahead, largest=largest)
    queries = random_queries(2, seed=seed)[2]
    scale, weight = torch.tensor(1.7), torch.tensor(0.3)
    for level, nodes in enumerate(tree.levels):
        own = torch.from_numpy(np.concatenate([np.arange(f, f + n) for f, n in children_slices(tree, nodes)]))
        found = estimates.of(queries, own.expand(2, -1), level, scale, weight)
        of_any_level = estimates.of(queries, own.expand(2, -1), None, scale.expand(2, 1, 1), weight.expand(2, 1, 1))
        torch.testing.assert_close(found, of_any_level)
        for column, node in enumerate(own.tolist()):
            if node >= tree.num_inner and tree.doc_rows[node - tree.num_inner] < 0:
                assert (found[:, column] == -torch.inf).all()
            elif node >= tree.num_inner or not change:
                for query in range(2):
                    expected = estimate(tree, queries[query], node, look_ahead, 1.7, 0.3, largest)
                    torch.testing.assert_close(found[query, column], expected, atol=2e-4, rtol=1e-4)
        if level + 1 < tree.depth and not change:
            inner = own[own < tree.num_inner]
            whole = estimates.of_level(queries, level, scale, weight)
            torch.testing.assert_close(whole, estimates.of(queries, inner.expand(2, -1), level, scale, weight))
            some = estimates.of_level(queries, level, scale, weight, inner[::2])
            torch.testing.assert_close(some, whole[:, ::2])


def test_vectors_of_large_levels_are_not_kept(monkeypatch):
    tree = random_tree(400, branching=4, leaf=4)
    queries, one = random_queries(3)[2], torch.ones(())
    every = torch.arange(tree.levels[2].start, tree.levels[2].stop).repeat(3, 2)
    kept = NodeEstimates(DenseScores(tree, CPU), 1)
    found = kept.of(queries, every, 1, one, 0.3 * one)
    monkeypatch.setattr("dsi.trees.estimates._KEPT", 10)
    large = NodeEstimates(DenseScores(tree, CPU), 1)
    torch.testing.assert_close(large.of(queries, every, 1, one, 0.3 * one), found)
    assert (len(kept._levels), len(large._levels)) == (1, 0)


def children_slices(tree: DocidTree, nodes: slice) -> list[tuple[int, int]]:
    return list(zip(tree.first_child[nodes].tolist(), tree.num_children[nodes].tolist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    tree=trees, look_ahead=st.integers(0, 2), beam=st.integers(1, 6), layers=st.integers(0, 1), seed=st.integers(0, 99)
)
def test_a_search_on_estimates_is_a_literal_beam_search(tree, look_ahead, beam, layers, seed):
    generator = random_tied(tree, look_ahead=look_ahead, layers=layers, seed=seed)
    extra = torch.rand(3, tree.num_documents, generator=torch.Generator().manual_seed(seed))
    batch = query_batch(3, seed=seed, added=AddedScores([""] * 3, tree, given=extra.numpy()))
    searcher, config = searcher_for(tree, generator), dataclasses.replace(ESTIMATE, beam_width=beam)
    request = SearchRequest(1, config)
    result = searcher.search(searcher.score(batch, request), dataclasses.replace(request, k=1))
    said = said_of(generator, batch)
    scores = document_scores(tree, generator, batch, config.alpha)
    for query in range(3):
        (expected,) = estimate_beam(tree, said, query, scores[query], look_ahead, beam, 1)
        assert result.positions[query].tolist() == [expected]
        torch.testing.assert_close(result.scores[query, 0], scores[query, expected], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("fusion", ["estimate", "bound"])
@pytest.mark.parametrize("look_ahead", [0, 1, 2])
def test_an_unbounded_beam_is_brute_force_and_certified(fusion, look_ahead):
    tree = random_tree(50, branching=3, leaf=2)
    batch = query_batch(
        4, added=AddedScores([""] * 4, tree, given=np.random.default_rng(0).random((4, 50), np.float32))
    )
    generator = random_tied(tree, look_ahead=look_ahead)
    searcher = searcher_for(tree, generator)
    alive = searcher.dense.alive(torch.arange(50) % 3 > 0)
    scores = document_scores(tree, generator, batch, 0.6)
    for mask in (None, alive):
        config = SearchConfig(fusion=fusion, alpha=0.6, beam_width=1000, ann_temperature=0.5)
        request = SearchRequest(7, config, mask)
        result = searcher.search(searcher.score(batch, request), request)
        allowed = scores if mask is None else scores.masked_fill(~mask[tree.num_inner :], -torch.inf)
        best = allowed.topk(7, dim=1)
        assert torch.equal(result.positions, best.indices)
        torch.testing.assert_close(result.scores, best.values / 0.5, atol=1e-4, rtol=1e-4)
        assert result.exact.all()
    narrow = SearchRequest(2, SearchConfig(fusion="estimate", alpha=0.6, beam_width=2))
    assert not searcher.search(searcher.score(batch, narrow), narrow).exact.any()  # estimates are no bounds


@pytest.mark.parametrize("layers", [0, 2])
def test_an_untrained_generator_descends_by_the_scores_of_the_encoder(layers):
    tree = random_tree(60, branching=3, leaf=3)
    config = GeneratorConfig(docid_tokens="tied", decoder="", num_layers=layers, num_heads=4, look_ahead=0)
    generator = TiedGenerator.create(config, tree, WIDTH, ObjectiveConfig("estimate")).eval()
    batch = query_batch(3)
    said = said_of(generator, batch)
    assert torch.equal(said.queries, batch.embeddings[:, None].expand(-1, tree.depth, -1))
    assert torch.equal(generator.ranking.queries(batch.embeddings, lexical=False), batch.embeddings)
    searcher = searcher_for(tree, generator)
    of_children = searcher.score(batch, SearchRequest(1, ESTIMATE)).node_scores
    without_size = dataclasses.replace(of_children, size_weights=torch.zeros(tree.depth))
    nodes = torch.arange(1, tree.levels[1].stop).expand(3, -1)
    expected = batch.embeddings @ torch.from_numpy(tree.centroids[1 : tree.levels[1].stop]).T
    torch.testing.assert_close(without_size.of(nodes, 0), expected)


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_path_scores_multiply_to_a_distribution_and_every_fusion_finds_its_best(look_ahead):
    tree = random_tree(40, branching=3, leaf=2)
    generator = random_tied(tree, objective="ce", look_ahead=look_ahead)
    batch = query_batch(3)
    log_p = estimate_log_p(tree, said_of(generator, batch), look_ahead)
    torch.testing.assert_close(log_p.exp().sum(dim=1), torch.ones(3))
    searcher, dense = searcher_for(tree, generator), batch.embeddings @ torch.from_numpy(tree.embeddings[:]).T
    for config, scores in (
        (SearchConfig(alpha=1.0, beta=0.0, beam_width=1000), log_p),
        (SearchConfig(alpha=0.4, beam_width=1000), 0.4 * log_p + 0.6 * dense),
    ):
        request = SearchRequest(5, config)
        result = searcher.search(searcher.score(batch, request), request)
        best = scores.topk(5, dim=1)
        assert torch.equal(result.positions, best.indices)
        torch.testing.assert_close(result.scores, best.values, atol=1e-4, rtol=1e-4)
        assert result.exact.all()
        one = dataclasses.replace(request, k=2, config=dataclasses.replace(config, beam_width=2))
        narrow = searcher.search(searcher.score(batch, one), one)
        assert (narrow.exact <= (narrow.positions == best.indices[:, :2]).all(dim=1)).all()
        followed = sum(searcher.follow(searcher.score(batch, request), request, torch.arange(40).expand(3, -1)))
        torch.testing.assert_close(followed[:, :, -1], scores, atol=1e-4, rtol=1e-4)


def test_paths_are_followed_by_the_scores_of_the_search():
    tree = random_tree(40, branching=3, leaf=2)
    generator, batch = random_tied(tree), query_batch(2)
    searcher, request = searcher_for(tree, generator), SearchRequest(3, ESTIMATE)
    queries, said = searcher.score(batch, request), said_of(generator, batch)
    generative, dense = searcher.follow(queries, request, torch.arange(40).expand(2, -1))
    scores = document_scores(tree, generator, batch, 0.6)
    torch.testing.assert_close(dense[:, :, -1], scores, atol=1e-4, rtol=1e-4)
    first = int(tree.paths(np.array([5]))[1][0, 0]) + 1
    expected = estimate(tree, said.queries[1, 0], first, 1, 1.0, float(said.size_weights[0]))
    torch.testing.assert_close(generative[1, 5, 0], expected, atol=1e-4, rtol=1e-4)
    assert (generative[:, :, -1] == 0).all()


def training_batch(tree: DocidTree, generator: TiedGenerator) -> dict[str, torch.Tensor]:
    batch = query_batch(3)
    relevant = torch.tensor([[7, -1], [21, 3], [tree.num_documents - 1, -1]])
    teacher = Teacher.dense(batch.embeddings.numpy(), tree.embeddings[:], 4, 0.5)
    taught = {name: torch.from_numpy(own) for name, own in teacher.batch([0, 1, 2]).items()}
    states = {"token_states": batch.states, "states_mask": batch.mask} if generator.reads_states else {}
    return {"embeddings": batch.embeddings, **states, "relevant": relevant, **taught}


def literal_loss(
    tree: DocidTree, said: LevelQueries, batch: dict[str, torch.Tensor], look_ahead: int, share: float
) -> torch.Tensor:
    total = torch.zeros(())
    for row in range(3):
        gold = [int(d) for d in batch["relevant"][row] if d >= 0]
        weights = {d: (1 - share) / len(gold) for d in gold}
        for d, w in zip(batch["taught"][row].tolist(), batch["taught_weights"][row].tolist(), strict=True):
            weights[d] = weights.get(d, 0.0) + share * w
        for level in range(tree.depth - 1):
            nodes = range(tree.levels[level + 1].start, tree.levels[level + 1].stop)
            scale, size_weight = said.scales[level], said.size_weights[level]
            scores = [estimate(tree, said.queries[row, level], n, look_ahead, scale, size_weight) for n in nodes]
            log_p = torch.stack(scores).log_softmax(0)
            mass = [sum(w for d, w in weights.items() if tree.doc_start[n] <= d < tree.doc_end[n]) for n in nodes]
            if sum(mass):
                total = total - sum(m / sum(mass) * p for m, p in zip(mass, log_p, strict=True) if m)
    return total / 3


@pytest.mark.parametrize(("look_ahead", "layers"), [(0, 0), (1, 0), (2, 0), (1, 1)])
def test_loss_and_gradients_are_those_of_the_definition(look_ahead, layers):
    tree = random_tree(40, branching=3, leaf=2)
    generator = random_tied(tree, look_ahead=look_ahead, layers=layers)
    batch = training_batch(tree, generator)
    objective = ObjectiveConfig("estimate", distillation=0.7, dense_temperature=0.5)
    ours = GeneratorLoss(generator, tree, objective, CPU)(generator, batch, 0.0)
    said = generator(batch["embeddings"], batch.get("token_states"), batch.get("states_mask"))
    theirs = literal_loss(tree, said, batch, look_ahead, 0.7)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    names, weights = zip(
        *((n, w) for n, w in generator.named_parameters() if n != "biases" and not n.startswith("ranking.")),
        strict=True,
    )
    found, expected = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (ours, theirs))
    for name, one, other in zip(names, found, expected, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


def test_a_sampled_level_has_the_labels_and_random_nodes(monkeypatch):
    from dsi.training import objective as module

    tree = random_tree(60, branching=3, leaf=2)
    generator = random_tied(tree)
    loss = GeneratorLoss(generator, tree, ObjectiveConfig("estimate"), CPU)
    batch = training_batch(tree, generator)
    whole = loss(generator, batch, 0.0)
    monkeypatch.setattr(module, "_LARGEST_LEVEL", 2)
    monkeypatch.setattr(module, "_SAMPLE", 5000)
    torch.testing.assert_close(loss(generator, batch, 0.0), whole)  # so many draws that every node is among them
    monkeypatch.setattr(module, "_SAMPLE", 0)
    assert loss(generator, batch, 0.0) < whole  # fewer nodes to choose among


def test_the_teacher_gives_the_best_documents_and_their_shares():
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, WIDTH)).astype(np.float32) for n in (30, 17))
    teacher = Teacher.dense(queries, documents, 5, 0.5)
    scores = queries @ documents.T
    for row in range(30):
        best = np.argsort(-scores[row])[:5]
        shares = np.exp((scores[row, best] - scores[row, best[0]]) / 0.5)
        assert teacher.positions[row].tolist() == best.tolist()
        np.testing.assert_allclose(teacher.weights[row], shares / shares.sum(), rtol=1e-4)
    assert Teacher.dense(queries, documents, 99, 0.5).positions.shape == (30, 17)
    last = Teacher.dense(queries, documents, 3, 1.0, rescore=lambda rows, positions: -positions.astype(np.float32))
    assert (last.weights.argmax(axis=1) == last.positions.argmin(axis=1)).all()


def examples_for(tree: DocidTree, count: int = 400, seed: int = 0) -> DocidExamples:
    """Queries that are a rotation of their document's embedding: flat dense search is wrong, a linear map is right."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(np.random.default_rng(7).normal(size=(WIDTH, WIDTH)))
    positions = rng.integers(tree.num_documents, size=count)
    queries = (tree.embeddings[positions] @ rotation + rng.normal(size=(count, WIDTH)) * 0.1).astype(np.float32)
    return DocidExamples(Embeddings([queries]), positions, np.zeros(count, dtype=int), tree)


def found_by(generator: TiedGenerator, tree: DocidTree, examples: DocidExamples) -> float:
    """Share of the examples whose document's cluster the search reaches."""
    embeddings = torch.from_numpy(examples.inputs.embeddings)
    batch = QueryBatch(torch.arange(len(embeddings)), embeddings[:, None], torch.ones(len(embeddings), 1, dtype=torch.bool),
                       embeddings, [""] * len(embeddings))  # fmt: skip
    request = SearchRequest(3, SearchConfig(fusion="estimate", alpha=0.0, beam_width=3))
    searcher = searcher_for(tree, generator)
    trace = []
    searcher.search(searcher.score(batch, request), request, trace)
    reached = torch.stack([(level.nodes == own[:, None]).any(dim=1) for level in trace for own in [
        torch.from_numpy(examples.positions) + tree.num_inner]])  # fmt: skip
    return float(reached.any(dim=0).float().mean())


def test_training_finds_what_the_encoder_misses_and_resuming_changes_nothing(tmp_path):
    tree = random_tree(80, branching=4, leaf=4)
    examples, fresh = examples_for(tree), examples_for(tree, 100, seed=1)
    config, objective = GeneratorConfig(docid_tokens="tied", decoder=""), ObjectiveConfig("estimate")
    training = TrainingConfig(batch_size=40, epochs=20.0, learning_rate=2e-2)

    def new() -> TiedGenerator:
        return create_generator(config, tree, WIDTH, objective)

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
    train_generator(
        again, examples, objective, dataclasses.replace(training), tmp_path / "work"
    )  # the finished checkpoint
    assert torch.equal(again.maps, trained.maps)


def test_decoder_weights_of_a_t5_checkpoint_are_taken_over(t5_folder):
    tree = random_tree(30)
    config = GeneratorConfig(docid_tokens="tied", decoder=str(t5_folder))
    generator = TiedGenerator.create(config, tree, WIDTH, ObjectiveConfig("estimate"))
    other = create_generator(GeneratorConfig(decoder=str(t5_folder)), tree, WIDTH, ObjectiveConfig())
    for name, weight in generator.decoder.state_dict().items():
        if "embed_tokens" not in name:
            assert torch.equal(weight, other.decoder.state_dict()[name]), name
    with pytest.raises(ValueError, match="ask for fewer num_layers"):
        TiedGenerator.create(dataclasses.replace(config, num_layers=5), tree, WIDTH)


def test_documents_added_later_are_scored_like_all_others():
    tree = random_tree(60, branching=3, leaf=3)
    generator = random_tied(tree)
    with torch.no_grad():
        for weight in (generator.maps, generator.ranking.maps):
            weight.zero_()
    rng = np.random.default_rng(3)
    new = rng.normal(size=(20, WIDTH)).astype(np.float32)
    new /= np.linalg.norm(new, axis=1, keepdims=True) / 8  # longer than all others, so each is its own best answer
    larger = add_documents(tree, new)
    searcher = searcher_for(larger, generator)
    embeddings = torch.from_numpy(new)
    batch = QueryBatch(
        torch.arange(20), embeddings[:, None], torch.ones(20, 1, dtype=torch.bool), embeddings, [""] * 20
    )
    request = SearchRequest(1, SearchConfig(fusion="estimate", beam_width=6))
    result = searcher.search(searcher.score(batch, request), request)
    expected = [int(larger.positions[60 + n]) for n in range(20)]
    assert (result.positions[:, 0] == torch.tensor(expected)).float().mean() >= 0.9


def test_searches_that_a_generator_cannot_do_are_refused():
    tree = random_tree(30)
    tied = searcher_for(tree, random_tied(tree))
    tied.check(ESTIMATE)
    tied.check(SearchConfig(fusion="paper", alpha=0.0))
    with pytest.raises(ValueError, match=r'gives nodes no probabilities, which fusion "paper" with alpha 0.7'):
        tied.check(SearchConfig(fusion="paper"))
    for beta in (0.0, 1.0):
        with pytest.raises(
            ValueError, match=f'beta must be inf with a generator whose objective is "estimate", got {beta:g}'
        ):
            tied.check(SearchConfig(alpha=1.0, beta=beta))
    path = searcher_for(tree, random_tied(tree, objective="ce"))
    path.check(SearchConfig(alpha=1.0, beta=0.0))
    with pytest.raises(ValueError, match='fusion "estimate" needs a generator with objective "estimate"'):
        path.check(ESTIMATE)


def test_settings_that_contradict_each_other_are_refused():
    tied, estimate_ = GeneratorConfig(docid_tokens="tied", decoder=""), ObjectiveConfig("estimate")
    check_together(tied, estimate_, TrainingConfig(), RankingConfig(epochs=1.0))
    with pytest.raises(ValueError, match=r'needs generator\.docid_tokens = "tied", got \'digits\''):
        check_together(GeneratorConfig(decoder="", num_layers=1), estimate_, TrainingConfig(), RankingConfig())
    with pytest.raises(ValueError, match="changes the encoder whose embeddings tied tokens use"):
        check_together(tied, ObjectiveConfig(), TrainingConfig(train_encoder=True), RankingConfig())
    with pytest.raises(ValueError, match=r'which need objective\.name "estimate", got \'ce\'; use 0'):
        check_together(tied, ObjectiveConfig(), TrainingConfig(), RankingConfig(epochs=1.0))
    with pytest.raises(ValueError, match="docid_tokens must be one of digits, tied, words, got 'letters'"):
        GeneratorConfig(docid_tokens="letters")
    with pytest.raises(ValueError, match="look_ahead must be at least 0, got -1"):
        GeneratorConfig(look_ahead=-1)


def test_generators_do_not_share_weights_with_their_search():
    tree = random_tree(20)
    generator = random_tied(tree)
    searcher, kept = searcher_for(tree, generator), copy.deepcopy(generator.maps)
    with torch.no_grad():
        generator.maps.add_(1.0)
    assert torch.equal(searcher.decoder.generator.maps, kept)
    assert math.isclose(float(generator.config.look_ahead), 1)


# The ranking of documents.


def word_index() -> BM25:
    texts = ["rivers of europe", "noble gases and rivers", "the danube passes four capitals", "helium and neon"]
    return BM25([str(n) for n in range(4)], texts)


def test_words_are_the_mean_states_of_their_tokens(encoder):
    lexical, queries = word_index(), ["rivers and capitals", "unknown", "the neon neon"]
    texts = encoder.query_texts(queries)
    states, mask, _ = encoder.forward(texts, "query")
    words = words_of(queries, lexical, encoder, states.shape[1])
    assert words.reads.shape == (3, 2, states.shape[1])
    assert words.read.tolist() == [[True, True], [False, False], [True, True]]
    found, spans = words.states(states), encoder.token_spans(texts, "query")
    for row, query in enumerate(queries):
        for column, term in enumerate(lexical.terms(query)):
            own = [
                n for n, (start, end) in enumerate(spans[row]) if end > start and start < term.end and end > term.start
            ]
            assert own
            torch.testing.assert_close(found[row, column], states[row, own].mean(dim=0))
            assert words.rarity[row, column].item() == pytest.approx(term.rarity)
    assert all(len(own) == int(kept.sum()) for own, kept in zip(spans, mask, strict=True))


def test_words_beyond_the_cut_keep_their_weight(encoder):
    lexical, query = word_index(), "capitals " * 40 + "neon"
    texts = encoder.query_texts([query])
    states, mask, embeddings = encoder.forward(texts, "query")
    batch = QueryBatch(torch.arange(1), states, mask, embeddings, [query])
    ranking = DocumentRanking(WIDTH, WIDTH)
    with torch.no_grad():
        ranking.word_bias.fill_(math.log(3.0))
    (factors,) = word_factors(batch, lexical, encoder, ranking, 0.5)
    assert factors[0] == pytest.approx(2.0)  # 1 + 0.5 * (3 - 1)
    assert factors[-1] == 1.0


def ranking_examples(encoder, folder: Path, config: RankingConfig, lexical: BM25 | None) -> RankingExamples:
    texts = ["rivers of europe", "capitals on the danube", "gases", "neon"]
    states = StateCache(write_states(encoder, "query", texts, folder / "states"))
    documents = encoder.encode(["rivers", "noble gases", "danube capitals", "helium neon", "sand", "stars"], "document")
    documents = np.stack([documents, documents[::-1] / 2], axis=1)  # at two places each
    if lexical is None:
        return RankingExamples(texts, states, [[0], [2], [1, 3], [3]], documents, None, 0.0, encoder, config)
    padded = BM25([*lexical.doc_ids, "4", "5"], ["rivers of europe", "noble gases and rivers",
                  "the danube passes four capitals", "helium and neon", "sand", "stars"])  # fmt: skip
    return RankingExamples(texts, states, [[0], [2], [1, 3], [3]], documents, padded, 0.1, encoder, config)


@pytest.mark.parametrize("with_words", [False, True])
def test_the_loss_of_the_ranking_is_its_definition(encoder, tmp_path, with_words):
    config = RankingConfig(epochs=1.0, candidates=3, smoothing=0.5)
    examples = ranking_examples(encoder, tmp_path, config, word_index() if with_words else None)
    ranking = DocumentRanking(WIDTH, WIDTH)
    with torch.no_grad():
        for weight in ranking.parameters():
            weight.normal_(std=0.3)
    loss = RankingLoss(ranking, 0.0).eval()
    found = loss(**examples.collate([0, 1, 2, 3]))["loss"]
    counts, total = [1, 1, 1, 2, 0, 0], 0.0
    for kind, (row, text) in product(range(1 + with_words), enumerate(examples.texts)):
        own = list(examples.candidates[row])
        assert set(examples.relevant[row]) <= set(own)
        states, _, z = encoder.forward([text], "query")
        scores = []
        for document in own:
            places = torch.from_numpy(examples.documents[document])
            score = float((places @ (z[0] + ranking.maps[kind] @ z[0])).max().detach())
            if kind and examples.lexical is not None:
                spans = encoder.token_spans([text], "query")[0]
                for n, term in enumerate(examples.lexical.terms(text)):
                    read = [m for m, (a, b) in enumerate(spans) if b > a and a < term.end and b > term.start]
                    state = torch.cat([states[0, read].mean(dim=0), torch.tensor([term.rarity / 5])])
                    factor = float((ranking.word_weights @ state + ranking.word_bias).exp())
                    score += 0.1 * factor * examples.lexical.parts(text, np.array([document]))[n, 0]
            scores.append(20 * score + math.log(counts[document] + 0.5))
        log_p = torch.tensor(scores).log_softmax(0)
        right = [n for n, document in enumerate(own) if document in examples.relevant[row]]
        total -= float(log_p[right].mean()) / 4
    assert float(found) == pytest.approx(total, rel=2e-3)  # states are float16 on disk
    assert (examples.candidates[0] == 0).any()


def test_the_ranking_learns_its_queries_and_starts_from_the_search_it_is_on_top_of(encoder, tmp_path):
    config = RankingConfig(epochs=150.0, candidates=6, batch_size=4, learning_rate=1e-2, dropout=0.0)
    examples = ranking_examples(encoder, tmp_path, config, word_index())
    ranking = DocumentRanking(WIDTH, WIDTH)
    z = torch.from_numpy(examples.states.embeddings)
    assert torch.equal(ranking.queries(z, lexical=True), z)
    assert (ranking.factors(torch.randn(3, WIDTH), torch.rand(3)) == 1).all()
    train_ranking(ranking, examples, config, tmp_path / "work", use_cpu=True)
    with torch.no_grad():
        batch = examples.collate([0, 1, 2, 3])
        loss = RankingLoss(ranking, 0.0)
        loss.log_scales.fill_(math.log(100.0))
        assert float(loss(**{**batch, "log_counts": torch.zeros(4, 6)})["loss"]) < 1.0  # one query has two answers


def test_bound_search_finds_the_best_documents_under_the_learned_scores(encoder):
    tree = random_tree(6, branching=2, leaf=2)
    generator = random_tied(tree)
    with torch.no_grad():
        generator.ranking.word_weights.normal_(std=0.3)
    lexical = BM25(
        [str(n) for n in range(6)], ["rivers", "noble gases", "danube capitals", "helium neon", "sand", "stars"]
    )
    queries = ["rivers and capitals", "neon gases"]
    encoded = encode_queries(encoder, queries)
    ranking = generator.ranking
    searcher, request = (
        searcher_for(tree, generator),
        SearchRequest(6, SearchConfig(alpha=0.5, lexical_weight=0.2, beam_width=6)),
    )

    def factors(batch: QueryBatch, own: BM25) -> list[np.ndarray]:
        return word_factors(batch, own, encoder, ranking, 0.5)

    for batch in with_scores(encoded, tree, lexical, 0.2, None, factors):
        result = searcher.search(searcher.score(batch, request), request)
        for row, text in enumerate(batch.texts):
            z = batch.embeddings[row]
            own = [1 + 0.5 * (f - 1) for f in learned_factors(encoder, ranking, lexical, text)]
            for position, score in zip(result.positions[row].tolist(), result.scores[row].tolist(), strict=True):
                document = int(tree.doc_rows[position])
                parts = lexical.parts(text, np.array([document]))[:, 0]
                expected = float((z + 0.5 * ranking.maps[1] @ z) @ torch.from_numpy(tree.embeddings[position]))
                expected += 0.2 * sum(f * part for f, part in zip(own, parts, strict=True))
                assert score == pytest.approx(expected, abs=1e-4)
        assert result.exact.all()


@torch.no_grad()
def learned_factors(encoder, ranking: DocumentRanking, lexical: BM25, text: str) -> list[float]:
    states, _, _ = encoder.forward([text], "query")
    words = words_of([text], lexical, encoder, states.shape[1])
    return ranking.factors(words.states(states), words.rarity)[0].tolist()


def test_configurations_whose_index_could_not_be_searched_are_refused():
    estimating = {
        "generator": {"docid_tokens": "tied", "decoder": ""},
        "objective": {"name": "estimate"},
        "search": {"fusion": "bound"},
    }
    Config().with_changes(estimating)
    for search in ({"fusion": "paper"}, {"beta": 0.0}, {"beta": 2.0}):
        with pytest.raises(ValueError, match=r"needs search\.fusion .* with search\.beta inf, got"):
            Config().with_changes({**estimating, "search": search})
    with pytest.raises(ValueError, match=r'search\.fusion "estimate" needs objective\.name "estimate", got \'ce\''):
        Config().with_changes({"search": {"fusion": "estimate"}})
    with pytest.raises(ValueError, match=r"objective\.teacher teaches only with objective\.distillation above 0"):
        ObjectiveConfig("estimate", teacher="some/model")


def test_a_lexical_part_without_words_joins_the_ranking_as_a_whole(encoder, tmp_path):
    class Whole:
        """Scores of another kind than BM25's."""

        def scores(self, queries: list[str]) -> np.ndarray:
            return np.tile(np.arange(6, dtype=np.float32), (len(queries), 1))

    config = RankingConfig(epochs=1.0, candidates=3)
    examples = dataclasses.replace(
        ranking_examples(encoder, tmp_path, config, None), lexical=Whole(), lexical_weight=0.5
    )
    assert {4, 5} <= set(examples.candidates[0].tolist())  # the largest of these scores, and the right document
    batch = examples.collate([0, 1])
    expected = 0.5 * torch.from_numpy(examples.candidates[[0, 1]]).float()
    torch.testing.assert_close(batch["word_scores"][:, 0], expected)
    ranking = DocumentRanking(WIDTH, WIDTH)
    loss = RankingLoss(ranking, 0.0)(**batch)["loss"]
    loss.backward()
    assert ranking.maps.grad[1].abs().sum() > 0  # the map beside them is trained


def test_removed_siblings_make_no_feature_undefined():
    nodes, removed = torch.tensor([[5, 6, 7]]), torch.tensor([[0.5, -torch.inf, 0.25]])
    kept = torch.tensor([[True, False, False]])
    entropy, margin = _certainty(LevelTrace(nodes, removed, torch.zeros(1, 3), kept), 1)
    p = torch.tensor([0.5, 0.25]).softmax(0)
    torch.testing.assert_close(entropy, -(p * p.log()).sum()[None, None])
    torch.testing.assert_close(margin, torch.tensor([[0.25]]))


def test_look_ahead_by_reward_returns_what_flat_search_with_the_learned_scores_returns():
    tree = random_tree(20, branching=3, leaf=2)
    batch = query_batch(2)
    generator = random_tied(tree)
    searcher = searcher_for(tree, generator)
    config = SearchConfig(alpha=0.7, ann_temperature=0.5)
    reward = _dense_reward(searcher, batch, SearchRequest(1, config, method="mcts"))
    expected = document_scores(tree, generator, batch, 0.7)
    queries, positions = np.array([0, 1, 1]), np.array([3, 7, 19])
    np.testing.assert_allclose(reward(queries, positions), expected[queries, positions], rtol=1e-4, atol=1e-5)
