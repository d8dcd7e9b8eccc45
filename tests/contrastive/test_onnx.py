"""ONNX Runtime gives what torch gives; its graphs are made on this machine, checked, and never part of an index."""

import logging
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from dsi.commands.main import main
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.onnx_runtime import GraphRunner, cache_folder, for_onnx_runtime
from dsi.docids.files.storage import folder_sums
from dsi.store.retriever import GenerativeRetriever
from tests.support.encoders import KINDS, save_encoder
from tests.support.small import PROMPTS, WIDTH
from tests.support.tiny_index import QUERIES, TinyIndex

TEXTS = ["which capitals are on the danube", "x", "The emperor of Austria, in Vienna. " * 20, "rivers 中文"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def index(sentence_t5_folder, tmp_path_factory):
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    return TinyIndex(encoder, tmp_path_factory.mktemp("onnx"))


def load(index, **options):
    return GenerativeRetriever.from_pretrained(index.index, device="cpu", backend="onnx", **options)


def runs_graph(encoder):
    return isinstance(vars(encoder.model[0].auto_model).get("forward"), GraphRunner)


def assert_same(fast, encoder, tolerance=1e-5):
    """Embeddings, and states and masks of real tokens."""
    for kind in ("query", "document"):
        found, expected = fast.forward(TEXTS, kind), encoder.forward(TEXTS, kind)
        assert torch.equal(found.mask, expected.mask)
        assert torch.equal(found.words, expected.words)
        for one, other in zip(found[::2], expected[::2], strict=True):
            own = (one, other) if one.ndim == 2 else (one[found.mask], other[found.mask])
            torch.testing.assert_close(*own, atol=tolerance, rtol=tolerance)
        assert np.allclose(fast.encode(TEXTS, kind), encoder.encode(TEXTS, kind), atol=tolerance)


def graphs():
    return sorted(path for path in cache_folder().glob("[!.]*"))


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def forbid_export(*_, **__):
    raise AssertionError("it was exported again")


def test_searches_give_the_same_documents_and_scores(index):
    fast = load(index)
    assert runs_graph(fast.encoder)
    for options in ({}, {"method": "exact"}, {"lexical_weight": 0.0, "beam_width": 20}):
        for hits, expected in zip(
            fast.search(QUERIES, **options), index.retriever.search(QUERIES, **options), strict=True
        ):
            assert [hit.doc_id for hit in hits] == [hit.doc_id for hit in expected]
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_the_kept_index_is_that_of_torch_and_holds_no_graph(index, tmp_path):
    before = folder_sums(index.index)
    fast = load(index)
    fast.save_pretrained(tmp_path / "again")
    index.retriever.save_pretrained(tmp_path / "torch")
    assert folder_sums(tmp_path / "again") == folder_sums(tmp_path / "torch")
    assert folder_sums(index.index) == before
    loaded = pickle.loads(pickle.dumps(load(index)))
    assert runs_graph(loaded.encoder)


@pytest.mark.parametrize("head", ["dense", "cls", "prompt left out"])
def test_what_follows_the_transformer_stays_as_it_is(sentence_bert_folder, tmp_path, head):
    torch.manual_seed(0)
    first = SentenceTransformer(str(sentence_bert_folder), device="cpu")[0]
    modules = {
        "dense": [Pooling(WIDTH, pooling_mode="mean"), Dense(WIDTH, 24), Normalize()],
        "cls": [Pooling(WIDTH, pooling_mode="cls")],
        "prompt left out": [Pooling(WIDTH, pooling_mode="mean", include_prompt=False)],
    }[head]
    SentenceTransformer(modules=[first, *modules], device="cpu").save_pretrained(str(tmp_path / "model"))
    encoder = Encoder.load(EncoderConfig(name=str(tmp_path / "model"), **PROMPTS), device="cpu")
    fast = encoder.for_search(backend="onnx")
    assert runs_graph(fast)
    assert not runs_graph(encoder)
    assert fast.fingerprint == encoder.fingerprint
    assert_same(fast, encoder)
    assert_same(fast.for_search(), encoder)


def test_a_graph_is_made_once(encoder, monkeypatch):
    encoder.for_search(backend="onnx")
    monkeypatch.setattr("torch.onnx.export", forbid_export)
    assert_same(encoder.for_search(backend="onnx"), encoder)
    assert len(graphs()) == 1


@pytest.mark.parametrize("change", ["altered", "cut", "no record", "a hole", "without an end", "of other weights"])
def test_a_graph_that_is_not_as_it_was_written_is_made_again(encoder, sentence_t5_folder, change):
    encoder.for_search(backend="onnx")
    (folder,) = graphs()
    good = (folder / "transformer.onnx").read_bytes()
    if change == "altered":
        damage(folder / "transformer.onnx")
    elif change == "cut":
        (folder / "transformer.onnx").write_bytes(good[:1000])
    elif change == "no record":
        (folder / "record.json").unlink()
    elif change == "a hole":
        with (folder / "record.json").open("r+b") as file:
            file.truncate(2**36)
    elif change == "without an end":
        (folder / "more").symlink_to("/proc/self/pagemap")
    else:
        other = Encoder.load(EncoderConfig(name=f"fresh:{sentence_t5_folder}", **PROMPTS), device="cpu")
        other.for_search(backend="onnx")
        (others,) = {*graphs()} - {folder}
        shutil.rmtree(folder)
        shutil.copytree(others, folder)
    assert_same(encoder.for_search(backend="onnx"), encoder)
    assert (folder / "transformer.onnx").read_bytes() == good


def test_other_weights_and_other_versions_have_graphs_of_their_own(encoder, monkeypatch):
    encoder.for_search(backend="onnx")
    with torch.no_grad():
        next(encoder.model.parameters()).mul_(2)
    assert_same(encoder.for_search(backend="onnx"), encoder)
    assert len(graphs()) == 2
    monkeypatch.setattr("dsi.contrastive.onnx_runtime.version", lambda name: "0")
    encoder.for_search(backend="onnx")
    assert len(graphs()) == 3


def test_an_export_that_fails_leaves_nothing_and_torch_goes_on(encoder, capsys, caplog):
    class Odd(torch.nn.Module):
        def forward(self, states):
            return states + torch.linalg.eigvals(states[:, :, :1] * states[:, :, :1].transpose(1, 2)).real.sum() * 0

    encoder.model[0].auto_model.encoder.dropout = Odd()
    with caplog.at_level(logging.WARNING):
        fast = encoder.for_search(backend="onnx")
    (message,) = [record.message for record in caplog.records if record.name.startswith("dsi")]
    assert message.startswith("The encoder cannot be exported to ONNX (Exporting the operator 'aten::linalg_eigvals'")
    assert message.endswith("torch computes it.")
    assert "\n" not in message
    assert capsys.readouterr().out == ""
    assert graphs() == []
    assert not runs_graph(fast)
    assert_same(fast, encoder)


def test_a_graph_that_gives_other_states_is_refused(encoder, caplog):
    class Odd(torch.nn.Module):
        def forward(self, states):
            return states * states.shape[1] if len(states) == 1 else states  # a trace keeps one branch

    encoder.model[0].auto_model.encoder.dropout = Odd()
    fast = encoder.for_search(backend="onnx")
    assert "(its graph gives other token states); torch computes it." in caplog.text
    assert graphs() == []
    assert_same(fast, encoder)


def test_a_backend_that_cannot_be_used_is_refused_before_anything_is_loaded(index, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="backend must be one of torch, onnx, got 'tensorrt'"):
        GenerativeRetriever.from_pretrained(index.index, backend="tensorrt")
    with pytest.raises(ValueError, match="computes in float32 alone; leave dtype out"):
        load(index, dtype="bfloat16")
    monkeypatch.setattr("dsi.store.retriever.loading.load_index", forbid_export)
    for name in ("onnx", "onnxruntime"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, name, None)
            with pytest.raises(ModuleNotFoundError, match=rf'needs {name}; run pip install "dr-scl\[onnx\]"'):
                load(index)


def test_an_encoder_on_another_device_is_refused(encoder):
    with pytest.raises(ValueError, match='runs on the CPU, and the encoder is on meta; give device="cpu"'):
        for_onnx_runtime(encoder.model.to("meta"), "its weights")


def test_a_cache_that_cannot_be_written_is_named(encoder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        encoder.for_search(backend="onnx")


def test_the_command_searches_with_it(index, capsys):
    assert (
        main(["search", str(index.index), "--query", QUERIES[0], "--backend", "onnx", "--device", "cpu", "--json"]) == 0
    )
    found = capsys.readouterr().out
    assert len(graphs()) == 1
    assert main(["search", str(index.index), "--query", QUERIES[0], "--device", "cpu", "--json"]) == 0
    assert [line.split('"score"')[0] for line in found.splitlines()] == [
        line.split('"score"')[0] for line in capsys.readouterr().out.splitlines()
    ]


@pytest.mark.programs
def test_the_runtime_keeps_no_id_below_home(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    code = "from dsi.contrastive.onnx_runtime import import_runtime; import_runtime()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not (tmp_path / ".cache" / "Microsoft").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_encoder_gives_the_same(tmp_path, kind):
    encoder = Encoder.load(EncoderConfig(name=str(save_encoder(tmp_path, kind))), device="cpu")
    fast = encoder.for_search(backend="onnx")
    assert runs_graph(fast) == (kind != "gemma3_text")  # the exporter cannot follow how Gemma makes its mask
    assert_same(fast, encoder)
