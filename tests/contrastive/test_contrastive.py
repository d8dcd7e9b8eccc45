"""Both losses against loops written from the formulas, the rows they are fed, and a short training."""

import dataclasses
import json
import math
import os
import random
from datetime import timedelta

import datasets
import numpy as np
import pytest
import torch
from dsi_experiments.benchmarks.memory import own_memory, watching_memory

from dsi.contrastive import blocks, training
from dsi.contrastive.blocks import DocumentTexts, encode_blocks, in_blocks
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.losses import (
    CHUNK,
    DPRLoss,
    SupervisedContrastiveLoss,
    _chunks,
    dpr_loss,
    supervised_contrastive_loss,
)
from dsi.contrastive.text_encoder import TextEncoder
from dsi.contrastive.trainers import trainer_settings
from dsi.contrastive.training import (
    ContrastiveConfig,
    contrastive_loss,
    contrastive_rows,
    drawn_documents,
    hard_negatives,
    several_relevant,
    train_encoder,
)
from dsi.docids.data.collection import MadeTexts
from dsi.docids.files.processes import Processes
from dsi.docids.files.progress import Bar
from dsi.docids.files.storage import write_json
from dsi.docids.words.bm25 import BM25
from tests.support.kills import fork, status_of
from tests.support.small import PROMPTS


def slow_scl(z: torch.Tensor, labels: list[int], t: float) -> torch.Tensor:
    """DR-SCL eq. 7, one term at a time, averaged over the anchors that have a positive."""
    total, anchors = torch.zeros(()), 0
    for i in range(len(labels)):
        others = [a for a in range(len(labels)) if a != i]
        positives = [s for s in others if labels[s] == labels[i]]
        if not positives:
            continue
        anchors += 1
        denominator = sum(torch.exp(z[i] @ z[a] / t) for a in others)
        for s in positives:
            total = total - torch.log(torch.exp(z[i] @ z[s] / t) / denominator) / len(positives)
    return total / max(anchors, 1)


def slow_dpr(q: torch.Tensor, d: torch.Tensor, labels: list[int], t: float) -> torch.Tensor:
    """DR-SCL eq. 6, other documents of the same label left out of the denominator, averaged."""
    total = torch.zeros(())
    for i in range(len(q)):
        against = [a for a in range(len(labels)) if a == i or labels[a] != labels[i]]
        denominator = sum(torch.exp(q[i] @ d[a] / t) for a in against)
        total = total - torch.log(torch.exp(q[i] @ d[i] / t) / denominator)
    return total / len(q)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 1, 2, 0, 1, 0, 9], [3, 3, 3]])
def test_scl_equals_the_formula_in_value_and_gradient(labels, temperature):
    torch.manual_seed(0)
    fast = torch.randn(len(labels), 5, dtype=torch.float64, requires_grad=True)
    slow = fast.detach().clone().requires_grad_()
    a, b = supervised_contrastive_loss(fast, torch.tensor(labels), temperature), slow_scl(slow, labels, temperature)
    a.backward()
    b.backward()
    assert a.item() == pytest.approx(b.item(), rel=1e-10)
    torch.testing.assert_close(fast.grad, slow.grad)


def test_scl_without_any_positive_is_zero_and_has_no_bad_gradient():
    z = torch.randn(3, 4, requires_grad=True)
    loss = supervised_contrastive_loss(z, torch.tensor([0, 1, 2]))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(z.grad, torch.zeros_like(z))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("further", [0, 2])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 1, 2, 1]])
def test_dpr_equals_the_formula_in_value_and_gradient(labels, further, temperature):
    torch.manual_seed(0)
    sizes = len(labels) - further, len(labels)  # documents that answer no query are negatives
    q, d = (torch.randn(size, 5, dtype=torch.float64, requires_grad=True) for size in sizes)
    q2, d2 = q.detach().clone().requires_grad_(), d.detach().clone().requires_grad_()
    a, b = dpr_loss(q, d, torch.tensor(labels), temperature), slow_dpr(q2, d2, labels, temperature)
    a.backward()
    b.backward()
    assert a.item() == pytest.approx(b.item(), rel=1e-10)
    torch.testing.assert_close(q.grad, q2.grad)
    torch.testing.assert_close(d.grad, d2.grad)


def test_perfect_separation_costs_nothing():
    z = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    assert supervised_contrastive_loss(z, torch.tensor([0, 0, 1, 1]), 0.01).item() == pytest.approx(0, abs=1e-6)
    # With all rows equal every one of the 3 others is as likely: log 3.
    assert supervised_contrastive_loss(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])).item() == pytest.approx(
        math.log(3)
    )


def test_the_modules_embed_documents_queries_and_negatives(encoder):
    texts = ["neon gas", "river danube"], ["red glow", "long river"], ["river danube", "a third text"]
    views = [encoder.model.preprocess(own) for own in texts]
    labels = torch.tensor([[4, 4, 9], [9, 9, 2]])
    embeddings = [encoder.model(dict(view))["sentence_embedding"] for view in views]
    scl = SupervisedContrastiveLoss(encoder.model, 0.5)([dict(v) for v in views], labels)
    assert scl.item() == pytest.approx(slow_scl(torch.cat(embeddings), [4, 9, 4, 9, 9, 2], 0.5).item(), rel=1e-5)
    dpr = DPRLoss(encoder.model, 0.5)([dict(v) for v in views], labels)
    assert dpr.item() == pytest.approx(
        slow_dpr(embeddings[1], torch.cat(embeddings[::2]), [4, 9, 9, 2], 0.5).item(), rel=1e-5
    )
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        DPRLoss(encoder.model, 0)


class Vectors(torch.nn.Linear):
    def forward(self, features):
        return {"sentence_embedding": super().forward(features["x"])}


def losses_of_a_batch(rank=None):
    """(loss, gradient) of both losses on a batch of eight rows; of one of two processes, which has half of the rows."""
    own, found = slice(None) if rank is None else slice(rank * 4, rank * 4 + 4), []
    for kind in (SupervisedContrastiveLoss, DPRLoss):
        torch.manual_seed(0)
        x, labels, model = (
            torch.randn(2, 8, 6),
            torch.tensor([[0, 1, 2, 3, 4, 4, 5, 0]] * 2).T,
            Vectors(6, 5),
        )
        loss = kind(model, 0.5)
        wrapped = loss if rank is None else torch.nn.parallel.DistributedDataParallel(loss)
        mask = torch.ones(len(labels[own]), 1)
        value = wrapped([{"x": view[own], "attention_mask": mask} for view in x], labels[own])
        value.backward()
        found.append((value.item(), model.weight.grad.flatten().tolist()))
    return found


def test_two_processes_see_one_global_batch(tmp_path):
    """Positives and negatives of the other process count: loss and gradients equal those of the whole batch."""

    def work(rank):
        meeting, patience = f"file://{tmp_path / 'meeting'}", timedelta(minutes=2)
        torch.distributed.init_process_group("gloo", meeting, timeout=patience, rank=rank, world_size=2)
        write_json(tmp_path / f"{rank}.json", losses_of_a_batch(rank))

    children = [fork(lambda rank=rank: work(rank)) for rank in range(2)]
    assert [status_of(child) for child in children] == [0, 0]
    for rank in range(2):
        half = json.loads((tmp_path / f"{rank}.json").read_text())
        for (value, gradient), (expected, expected_gradient) in zip(half, losses_of_a_batch(), strict=True):
            assert value == pytest.approx(expected, rel=1e-5)
            assert gradient == pytest.approx(expected_gradient, rel=1e-4, abs=1e-5)


def test_every_row_holds_positives_and_every_train_query_comes_once():
    queries = {0: ["q0a", "q0b"], 2: ["q2"]}
    rows = contrastive_rows(["d0", "d1", "d2", "d3"], queries, {"q0a": [1, 3], "q0b": [2, 1], "q2": [3, 0]})
    assert list(rows["view_1"]) == ["q0a", "q0b", "q2"]
    assert list(rows["label"]) == [[0, 0, 1, 3, 0], [0, 0, 2, 1, 1], [2, 2, 3, 0, 2]]
    for row in rows:
        assert [row[f"view_{view}"] for view in (0, 2, 3)] == [f"d{row['label'][view]}" for view in (0, 2, 3)]


@pytest.mark.parametrize("seed", [0, 1])
def test_hard_negatives_are_among_the_best_of_bm25_and_answer_nothing(seed, monkeypatch):
    monkeypatch.setattr(training, "HARD", 3)
    monkeypatch.setattr(training, "_BLOCK", 2)
    texts = ["neon gas", "neon sign", "argon gas", "neon lamp gas", "the danube", "a river", "neon neon gas"]
    words = BM25([str(row) for row in range(7)], texts)
    queries = {0: ["neon gas", "sign"], 6: ["neon gas"], 4: ["danube river"]}
    found = hard_negatives(words, queries, 2, seed=seed)
    assert set(found) == {"neon gas", "sign", "danube river"}
    for text, rows in found.items():
        relevant = {row for row, own in queries.items() if text in own}
        scores = words.scores([text])[0]
        best = [row for row in np.argsort(-scores, kind="stable").tolist() if row not in relevant][:3]
        assert len(set(rows)) == 2
        assert set(rows) <= set(best)
    assert hard_negatives(words, queries, 2, seed=seed) == found
    assert hard_negatives(words, queries, 0) == {}
    assert len(hard_negatives(words, queries, 9)["neon gas"]) == 3  # no more are hard


@pytest.mark.parametrize("count", [1, 2])
def test_batches_are_drawn_from_all_documents_and_all_queries(count):
    queries = {0: [f"a{n}" for n in range(8)], 2: ["a0", "b"], 3: [f"c{n}" for n in range(6)]}
    found = drawn_documents(queries, 7, count, seed=1)
    assert len(found) == 15
    for text, rows in found.items():
        assert len(set(rows)) == count
        assert not {row for row, own in queries.items() if text in own} & set(rows)
    times = np.bincount([row for rows in found.values() for row in rows], minlength=7)[[1, 4, 5, 6]]
    assert times.min() >= 2 * count  # those without a query come in every turn
    assert times.max() - times.min() <= 1
    assert drawn_documents(queries, 7, count, seed=1) == found
    assert drawn_documents(queries, 7, count, seed=2) != found
    assert drawn_documents({0: ["a"], 1: ["a"]}, 3, 5) == {"a": [2]}
    assert len(contrastive_rows([f"d{row}" for row in range(7)], queries, found)) == 16


def test_all_texts_need_a_document_beside_each_query():
    with pytest.raises(
        ValueError, match=r'contrastive\.texts = "all" draws contrastive\.negatives documents .* got 0; set 1'
    ):
        ContrastiveConfig(loss="scl", texts="all", negatives=0)


def test_a_document_without_queries_gives_no_row():
    rows = contrastive_rows(["d0", "d1"], {0: ["only"]})
    assert rows[0] == {"view_0": "d0", "view_1": "only", "label": [0, 0, 0]}
    assert len(rows) == 1
    with pytest.raises(ValueError, match="no queries to train the encoder on"):
        contrastive_rows(["d0"], {})


@pytest.mark.parametrize("negatives", [0, 1])
def test_training_pulls_queries_to_their_documents(negatives, encoder, tmp_path):
    documents = [f"document about {word}" for word in ("helium", "danube", "sorting", "bees")]
    queries = {0: ["light balloon"], 1: ["river of capitals"], 2: ["order a list"], 3: ["dance for food"]}
    texts = [queries[row][0] for row in range(4)]

    def share_right() -> float:
        q, d = (torch.from_numpy(encoder.encode(t, kind)) for t, kind in ((texts, "query"), (documents, "document")))
        return (q @ d.T / 0.1).softmax(dim=1).diag().mean().item()

    before = share_right()
    config = ContrastiveConfig(
        loss="scl", temperature=0.1, batch_size=8, epochs=30, learning_rate=2e-3, negatives=negatives
    )
    rows = contrastive_rows(documents, queries, hard_negatives(BM25(list("abcd"), documents), queries, negatives))
    modes = set()
    watched = encoder.model.register_forward_pre_hook(lambda module, _: modes.add(module.training))
    train_encoder(encoder, rows, config, tmp_path / "work")
    watched.remove()
    assert modes == {False}  # no dropout
    assert share_right() > before + 0.3


@pytest.mark.parametrize(
    ("asked", "capabilities", "expected"),
    [
        (True, {"avx512_bf16": True, "amx_bf16": False}, True),
        (True, {"bf16": True, "sve_bf16": False}, True),  # ARM
        (True, {"avx512_bf16": False, "avx512_f": True}, False),
        (False, {"avx512_bf16": True}, False),
    ],
)
def test_bfloat16_is_used_where_the_processor_has_it(asked, capabilities, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    shared = trainer_settings(tmp_path, epochs=1.0, learning_rate=1e-3, seed=0, bf16=asked, use_cpu=True)
    assert shared["bf16"] is expected


def test_interpolation_goes_part_of_the_way_from_start_to_trained(encoder, tmp_path, monkeypatch):
    rows = contrastive_rows(["text"], {0: ["query"]})
    start = {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}

    def train(trainer, **_):  # a training that moves every weight by 4
        for parameter in trainer.model.parameters():
            parameter.data += 4

    monkeypatch.setattr(training.SentenceTransformerTrainer, "train", train)
    train_encoder(encoder, rows, ContrastiveConfig(loss="scl", interpolation=0.25), tmp_path / "work")
    for name, tensor in encoder.model.state_dict().items():
        torch.testing.assert_close(tensor, start[name] + 1)
    train_encoder(encoder, rows, ContrastiveConfig(loss="scl", interpolation=1.0), tmp_path / "work")
    for name, tensor in encoder.model.state_dict().items():
        torch.testing.assert_close(tensor, start[name] + 5)
    with pytest.raises(
        ValueError, match=r"contrastive.interpolation must be in \(0, 1\], got 0.0; 1 keeps the encoder"
    ):
        ContrastiveConfig(interpolation=0.0)


def test_after_a_training_in_bfloat16_the_encoder_computes_in_float32_again(encoder, tmp_path):
    rows = contrastive_rows(["a red gas", "a blue gas"], {0: ["red"], 1: ["blue"]})
    train_encoder(encoder, rows, ContrastiveConfig(loss="scl", negatives=0, batch_size=4), tmp_path / "work", bf16=True)
    encoder.save(tmp_path / "saved")
    again = Encoder.load(encoder.config, tmp_path / "saved", "cpu")
    texts = ["a red gas", "a blue gas", "neon"]
    np.testing.assert_allclose(encoder.encode(texts, "document"), again.encode(texts, "document"), atol=1e-6)


def test_documents_are_title_and_cut_text_and_long_queries_are_cut_with_one_warning(sentence_t5_folder, caplog):
    config = EncoderConfig(name=str(sentence_t5_folder), document_length=3, query_length=4)
    encoder = Encoder.load(config, device="cpu")
    (text,) = encoder.document_texts(["A Title"], ["the river and the sea and the land"])
    assert text == "A Title the river and"
    assert encoder.document_texts(["Naïve 東京"], [""]) == ["Naïve 東京"]
    assert encoder.query_texts(["the river"]) == ["the river"]
    assert not caplog.records
    assert encoder.query_texts(["the river and the sea and the land"] * 2) == ["the river and the"] * 2
    encoder.query_texts(["the river and the sea and the land"])
    assert [record.message for record in caplog.records] == [
        "Queries longer than 4 tokens are cut there (encoder.query_length)."
    ]


def test_texts_of_a_pass_have_about_as_many_tokens_however_long_their_words(sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder)), device="cpu")
    texts = ["the river " * count for count in range(1, 30)] + ["zxqv" * count for count in range(1, 30)]
    passes = list(encoder._passes(texts))
    assert sorted(row for rows in passes for row in rows) == list(range(len(texts)))
    padding = [int((~encoder.run([texts[row] for row in rows], "document").mask).sum()) for rows in passes]
    assert max(padding) <= encoder.batch_size
    assert max(map(len, passes)) <= encoder.batch_size


def test_what_nobody_sees_at_the_end_of_a_text_is_not_missed(sentence_t5_folder, caplog):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    encoder.query_texts(["the river\u200b", "the sea \ufeff", "the land\u200e \n"])
    texts = ["the river\u200e", "the sea\ufeff"]
    documents = datasets.Dataset.from_dict({"title": ["", "A"], "text": texts})
    assert DocumentTexts(encoder, documents, 1).count_cut == 0
    assert not caplog.records


@pytest.mark.parametrize("length", [1, 3, 40])
def test_a_text_is_cut_as_if_all_of_it_were_read(length, sentence_t5_folder, monkeypatch):
    config, rng = EncoderConfig(name=str(sentence_t5_folder), query_length=length), random.Random(length)
    encoder = Encoder.load(config, device="cpu")
    words = ["neon", "x" * 150, "noble gas", "-----", "\n", "\t", "é", "1234567890" * 20]
    texts = [" ".join(rng.choice(words) for _ in range(rng.choice([0, 1, 9, 90, 900]))) for _ in range(60)]
    texts += ["中文字" * 9000, "a" * 90_000, " " * 9000 + "neon"]
    options = {"truncation": True, "max_length": length, "add_special_tokens": False, "return_offsets_mapping": True}
    offsets = encoder.model.tokenizer(texts, **options)["offset_mapping"]
    ends = [max((end for _, end in own), default=0) for own in offsets]
    assert encoder.query_texts(texts) == [text[:end] for text, end in zip(texts, ends, strict=True)]
    read, call = [], type(encoder.model.tokenizer).__call__
    monkeypatch.setattr(
        type(encoder.model.tokenizer),
        "__call__",
        lambda self, own, **given: read.append(own) or call(self, own, **given),
    )
    encoder.query_texts(["neon gas " * 10**6])
    assert sum(len(text) for own in read for text in own) < 2000


def test_forward_and_token_states_and_encode_agree(encoder):
    texts = ["the long danube river in europe", "neon"]
    states, mask, embeddings, _ = encoder.forward(texts, "query")
    np.testing.assert_allclose(encoder.encode(texts, "query"), embeddings, atol=1e-6, rtol=1e-5)
    for row, alone, embedding in encoder.token_states(texts, "query"):
        np.testing.assert_allclose(alone, states[row][mask[row]], atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(embedding, embeddings[row], atol=1e-5, rtol=1e-4)
    assert not np.allclose(encoder.forward(texts, "document")[2], embeddings)  # the prompts differ


def test_mean_pooling_is_the_papers_z(sentence_t5_folder):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), pooling="mean"), device="cpu")
    states, mask, embeddings, _ = encoder.forward(["the danube", "neon lights glow red"], "query")
    expected = np.stack([row[m].mean(axis=0) for row, m in zip(states, mask, strict=True)])
    np.testing.assert_allclose(embeddings, expected, atol=1e-6, rtol=1e-5)


def test_pieces_follow_each_other_through_the_text(encoder):
    encoder.config = dataclasses.replace(encoder.config, document_length=20, piece_length=20)
    long, short = " ".join(f"word{n}" for n in range(60)), "short text"
    first, second = encoder.piece_texts(["Long", "Short"], [long, short], 100)
    assert second == encoder.document_texts(["Short"], [short])
    assert len(first) > 3
    assert all(text.startswith("Long word") for text in first)
    assert first[-1].endswith("word59")
    assert len(encoder.piece_texts(["Long"], [long], 3)[0]) == 3


@pytest.mark.parametrize("pieces", [1, 3])
def test_texts_of_documents_are_made_by_the_slice(encoder, monkeypatch, pieces):
    monkeypatch.setattr(blocks, "BLOCK", 2)
    documents = datasets.Dataset.from_dict(
        {"title": [f"title {n}" for n in range(7)], "text": ["word " * 30 * (n % 3) for n in range(7)]}
    )
    whole = encoder.piece_texts(list(documents["title"]), list(documents["text"]), pieces)
    flat = [text for own in whole for text in own]
    texts = DocumentTexts(encoder, documents, pieces)
    assert texts.rows.tolist() == [row for row, own in enumerate(whole) for _ in own]
    assert texts[:] == flat == list(texts) == list(in_blocks(texts))
    for start in range(len(flat)):
        for stop in range(start, len(flat) + 1):
            assert texts[start:stop] == flat[start:stop]
    assert texts[-1] == flat[-1]
    with pytest.raises(IndexError):
        texts[len(flat)]
    queries = ["short", "word " * 100]
    assert list(MadeTexts(queries, encoder.query_texts)) == encoder.query_texts(queries)


def test_embeddings_by_blocks_are_the_embeddings_and_what_is_there_is_kept(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 4)
    documents = datasets.Dataset.from_dict(
        {"title": [f"title {n}" for n in range(11)], "text": ["neon glows " * n for n in range(11)]}
    )
    texts = DocumentTexts(encoder, documents)
    assert len(texts) == 11
    assert texts[3] == texts[:][3] == encoder.document_texts(["title 3"], ["neon glows " * 3])[0]
    found = encode_blocks(encoder, texts, "document", tmp_path / "blocks", Processes())
    np.testing.assert_allclose(found, encoder.encode(texts[:], "document"), atol=1e-6)
    assert isinstance(found, np.memmap)
    marked = np.full((4, found.shape[1]), 7, dtype=np.float32)
    (tmp_path / "killed").mkdir()
    np.save(tmp_path / "killed" / f"{4:012}.npy", marked)  # as a killed run would have left it
    bars = []
    monkeypatch.setattr(blocks, "Bar", lambda *args, **options: bars.append(options["total"]) or Bar(*args, **options))
    resumed = encode_blocks(encoder, texts, "document", tmp_path / "killed", Processes())
    assert bars == [11 - 4]  # what is left to do
    np.testing.assert_array_equal(resumed[4:8], marked)
    np.testing.assert_array_equal(resumed[8:], found[8:])
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["all.npy"]
    with monkeypatch.context() as context:  # what is whole is not encoded again
        context.delattr(TextEncoder, "encode")
        again = encode_blocks(encoder, texts, "document", tmp_path / "killed", Processes())
    np.testing.assert_array_equal(again, resumed)
    # Of two processes each writes every other block.
    half = Processes(rank=1, count=2, gather=lambda own: [own, own])
    with pytest.raises(FileNotFoundError):
        encode_blocks(encoder, texts, "document", tmp_path / "half", half)
    assert [path.name for path in sorted((tmp_path / "half").iterdir())] == [f"{4:012}.npy"]


def loss_in_chunks(kind, encoder, views, tokens):
    """(loss, gradients) of a batch that is embedded `tokens` at a time, without dropout."""
    encoder.model.zero_grad()
    value = kind(encoder.model.eval(), 0.1, tokens)(
        [dict(view) for view in views], torch.arange(len(TEXTS))[:, None].expand(-1, 2)
    )
    value.backward()
    gradients = [parameter.grad.clone() for parameter in encoder.model.parameters() if parameter.grad is not None]
    encoder.model.zero_grad()
    return value, gradients


TEXTS = [" ".join(["red glow of neon gas"] * count) for count in (7, 1, 3, 9, 2, 1, 5)]


@pytest.mark.parametrize("kind", [SupervisedContrastiveLoss, DPRLoss])
@pytest.mark.parametrize("tokens", [1, 20, 64])
def test_gradients_in_chunks_are_those_of_the_whole_batch(encoder, kind, tokens):
    """Also where each text is a chunk of its own, or longer than a chunk may be."""
    views = [encoder.model.preprocess(texts) for texts in (TEXTS, [text[:20] for text in TEXTS])]
    whole, expected = loss_in_chunks(kind, encoder, views, 10**9)
    value, gradients = loss_in_chunks(kind, encoder, views, tokens)
    torch.testing.assert_close(value, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_chunks_hold_every_text_once_by_length_and_little_padding(encoder, side, monkeypatch):
    monkeypatch.setattr(encoder.model.tokenizer, "padding_side", side)
    view = encoder.model.preprocess(TEXTS) | {"prompt_length": 3}
    lengths, chunks = view["attention_mask"].sum(dim=1), list(_chunks(view, 64))
    rows = torch.cat([rows for rows, _ in chunks])
    assert len(chunks) > 2
    assert sorted(rows.tolist()) == list(range(len(TEXTS)))
    assert lengths[rows].tolist() == sorted(lengths.tolist())
    for rows, chunk in chunks:
        assert chunk["input_ids"].shape == chunk["attention_mask"].shape == (len(rows), lengths[rows].max())
        assert len(rows) == 1 or chunk["input_ids"].numel() <= 64
        assert chunk["prompt_length"] == 3
        for row, ids, mask in zip(rows, chunk["input_ids"], chunk["attention_mask"], strict=True):
            assert torch.equal(ids[mask.bool()], view["input_ids"][row][view["attention_mask"][row].bool()])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="measures forked processes")
def test_a_step_in_chunks_needs_a_third_of_the_memory(tmp_path):
    """As one piece this batch holds 1.2 GB."""
    encoder = Encoder.load(EncoderConfig(query_length=256), device="cpu")

    def step(tokens):
        views = [encoder.model.preprocess(["red glow of neon gas " * 20] * 128)] * 2
        before, labels = own_memory(), torch.arange(128)[:, None].expand(-1, 2)
        with watching_memory() as most:
            SupervisedContrastiveLoss(encoder.model.train(), chunk=tokens)(views, labels).backward()
        write_json(tmp_path / f"{tokens}.json", most() - before)

    cases = CHUNK, 10**9
    assert [status_of(fork(lambda tokens=tokens: step(tokens))) for tokens in cases] == [0, 0]
    chunked, whole = (json.loads((tmp_path / f"{tokens}.json").read_text()) for tokens in cases)
    assert chunked < whole / 3


@pytest.mark.parametrize("loss", ["scl", "dpr"])
def test_what_else_is_relevant_to_a_query_is_no_negative_of_it(loss, encoder):
    rows = contrastive_rows(["a", "b", "c"], {0: ["q"], 1: ["q"], 2: ["other"]})
    relevant = several_relevant(rows)
    assert {number: own.tolist() for number, own in relevant.items()} == {0: [0, 1]}
    labels = torch.tensor(rows["label"][:])
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    function = contrastive_loss(encoder, ContrastiveConfig(loss=loss), relevant=relevant)
    function.embed = lambda features, labels: ([vectors[:3], vectors[3:]], labels)
    function([None, None], labels).backward()
    first = torch.autograd.functional.jacobian(lambda v: anchor_loss(function, v, labels), vectors)
    assert (first[1] == 0).all()  # b, which answers q too
    assert (first[4] == 0).all()  # q once more
    assert (first[2] != 0).any()  # c does not


def anchor_loss(function, vectors, labels):
    """The loss of the first query, `q` of document `a`, written out: against all texts that are not relevant to it."""
    function.embed = lambda features, labels: ([vectors[:3], vectors[3:]], labels)
    whole, temperature = function([None, None], labels), function.temperature
    against = [0, 2, 5] if isinstance(function, SupervisedContrastiveLoss) else [0, 2]
    own = -(vectors[3] @ vectors[against].T / temperature).log_softmax(dim=0)[0]
    rest = [literal_anchor(function, vectors, anchor) for anchor in anchors_but_first(function)]
    assert torch.isclose(whole, torch.stack([own, *rest]).mean(), rtol=1e-4)
    return own


def anchors_but_first(function):
    return [0, 1, 2, 4, 5] if isinstance(function, SupervisedContrastiveLoss) else [4, 5]


def literal_anchor(function, vectors, anchor):
    """-log of the share of an anchor's one positive; texts 0..2 are a, b, c and 3..5 q, q, other."""
    positive = (anchor + 3) % 6
    related = {0: {3, 4}, 1: {3, 4}, 2: {5}, 3: {0, 1, 4}, 4: {0, 1, 3}, 5: {2}}[anchor]
    texts = range(6) if isinstance(function, SupervisedContrastiveLoss) else range(3)
    counted = [text for text in texts if text != anchor and (text == positive or text not in related)]
    return -(vectors[anchor] @ vectors[counted].T / function.temperature).log_softmax(dim=0)[counted.index(positive)]


def test_documents_of_one_text_are_one_document():
    rows = contrastive_rows(["same", "x", "same"], {0: ["q"], 1: ["r"]}, {"q": [2], "r": [2]})
    assert rows["label"][:] == [[0, 0, 0, 0], [1, 1, 0, 1]]


def test_queries_with_fewer_other_documents_leave_all_with_as_many_negatives():
    rows = contrastive_rows(["a", "b"], {0: ["q", "r"], 1: ["q"]}, {"q": [], "r": [1]})
    assert rows["label"][:] == [[0, 0, 0], [0, 0, 1], [1, 1, 0]]
