"""On a GPU: trained there, searched there, updated there, and the answers are those of the CPU. Run with -m gpu."""

import numpy as np
import pytest
import torch

import dsi
from dsi.commands.main import main
from dsi.contrastive import training as contrastive_training
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.store.retriever import load
from tests.support.small import PROMPTS, thin_out, write_collection
from tests.support.tiny_settings import VECTORS, write_settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GPU = "cuda"
NEW = [{"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia and Croatia."}]
QUERIES = ["a river in Croatia", "noble gas", "which capitals are on the danube", "electric current"]
TEXTS = ["The Danube flows past four capitals.", "Neon is a noble gas.", "x", "A current of one ampere. " * 20]
LATE = {"tokens": {"bits": 8}, "search": {"beam_width": 10, "lexical_weight": 0.1, "token_weight": 0.5}}
KINDS = {
    "vectors": VECTORS | LATE,
    "digits": {},
    "digits, bfloat16": {"bf16": True},
    "digits, optimal tree model": {"training": {"objective": "otm"}},
    "digits, encoder trained too": {"training": {"epochs": 2.0, "batch_size": 16, "train_encoder": True}},
}


@pytest.fixture(scope="module", params=KINDS)
def trained(request, tmp_path_factory, sentence_t5_folder, t5_folder):
    """An index of one kind trained on the GPU, its collection's folder, and the devices of its trainings."""
    generator_training = pytest.importorskip("dsi.generator.trainer")
    folder, devices = tmp_path_factory.mktemp("gpu"), []
    settings = write_settings(folder / "config.toml", sentence_t5_folder, t5_folder)
    config = dsi.config.read_config(settings).with_changes(KINDS[request.param])
    data = thin_out(write_collection(folder / "collection"), dev=2, test=2)

    def run(made, *arguments, **options):
        devices.append(made.args.device.type)
        return run_trainer(made, *arguments, **options)

    run_trainer = generator_training.run_trainer
    with pytest.MonkeyPatch.context() as patch:
        for module in (contrastive_training, generator_training):
            patch.setattr(module, "run_trainer", run)
        dsi.train(dsi.read_collection(data), folder / "run", config=config)
    return folder / "run", data, devices


def assert_same_answers(found, expected):
    """The same scores in the same order; documents may change places where their scores differ by rounding."""
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose([hit.score for hit in own], [hit.score for hit in other], rtol=1e-3, atol=1e-3)
        scores = {hit.doc_id: hit.score for hit in other}
        shared = [hit for hit in own if hit.doc_id in scores]
        assert len(shared) >= len(own) - 1
        assert [hit.score for hit in shared] == pytest.approx(
            [scores[hit.doc_id] for hit in shared], rel=1e-3, abs=1e-3
        )


def test_both_trainings_run_on_the_gpu(trained):
    _, _, devices = trained
    assert devices[0] == "cuda"
    assert set(devices) == {"cuda"}


def test_answers_are_those_of_the_cpu(trained):
    run, _, _ = trained
    own, other = (load(run, device=device) for device in (None, "cpu"))
    assert (own.snapshot.encoder.device.type, other.snapshot.encoder.device.type) == ("cuda", "cpu")
    for options in ({}, {"method": "exact"}, {"deny": [next(iter(own.snapshot.documents.rows))]}, {"beam_width": 2}):
        assert_same_answers(own.search(QUERIES, k=5, **options), other.search(QUERIES, k=5, **options))
    assert own.explain(QUERIES[0]).result.scores == pytest.approx(other.explain(QUERIES[0]).result.scores, abs=1e-3)
    rows = [list(own.snapshot.documents.rows)[:3]] * len(QUERIES)
    np.testing.assert_allclose(
        own.snapshot.follow(QUERIES, rows).scores, other.snapshot.follow(QUERIES, rows).scores, atol=1e-3
    )


def test_an_index_updated_on_the_gpu_is_searched_on_the_cpu(trained, tmp_path):
    run, _, _ = trained
    retriever = load(run, device=GPU)
    removed = next(iter(retriever.snapshot.documents.rows))
    retriever.add(NEW)
    retriever.remove([removed])
    retriever.save(tmp_path / "kept")
    on_cpu = load(tmp_path / "kept", device="cpu")
    found = on_cpu.search(QUERIES, k=39, method="exact")
    assert_same_answers(retriever.search(QUERIES, k=39, method="exact"), found)
    assert all("new" in {hit.doc_id for hit in hits} and removed not in {hit.doc_id for hit in hits} for hits in found)


def test_the_commands_take_the_gpu_by_default(trained, tmp_path, capsys):
    run, data, _ = trained
    assert main(["evaluate", str(run), str(data), "--results", str(tmp_path / "x.json")]) == 0
    assert "generate" in capsys.readouterr().out
    assert torch.cuda.get_device_name(0) in (tmp_path / "x.json").read_text()
    assert main(["search", str(run), "noble gas", "-k", "3"]) == 0
    assert main(["tune", str(run), str(data)]) == 0


def test_embeddings_and_states_are_those_of_the_cpu(sentence_bert_folder):
    config = EncoderConfig(name=str(sentence_bert_folder), **PROMPTS)
    own, other = (Encoder.load(config, device=device).for_search() for device in (GPU, "cpu"))
    np.testing.assert_allclose(own.encode(TEXTS, "document"), other.encode(TEXTS, "document"), atol=1e-5)
    states = [encoder.forward(TEXTS, "query").states for encoder in (own, other)]
    np.testing.assert_allclose(*states, atol=1e-4)
