"""An encoder's graph gives what its model gives, holds none of its weights, and spares a search all libraries of models."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding
from tokenizers import Tokenizer

import dsi
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder, packaged_encoder
from dsi.graph import export
from dsi.graph.encoder import GRAPH, SETTINGS, GraphEncoder, has_graph
from dsi.store.folder import loading
from dsi.store.folder.writing import save_encoder as save
from tests.support import encoders
from tests.support.encoders import save_encoder
from tests.support.half import HALVES
from tests.support.small_index import small_index

TEXTS = [
    "Neon", "the Danube flows through Vienna, Budapest and Belgrade " * 9, "中文 \U0001f680", "x  y\n", "naïve ﬁ①",
    "แม่น้ำเจ้าพระยา " * 20, "какой газ светится",
]  # fmt: skip
LIBRARIES = ("torch", "transformers", "sentence_transformers", "datasets", "sklearn", "scipy", "huggingface_hub")


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch):
    monkeypatch.setattr(export, "_LAST", {})


def of_kind(kind: str, folder: Path) -> Encoder:
    return Encoder.load(EncoderConfig(name=str(save_encoder(folder, kind))), device="cpu")


def static(folder: Path) -> Encoder:
    tokenizer = Tokenizer.from_file(str(packaged_encoder() / "tokenizer.json"))
    weights = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 16)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")
    return Encoder(model, EncoderConfig(query_prompt="query: "))


def with_head(folder: Path) -> Encoder:
    """Compared by dot products, with a projection, prompts, and fewer dimensions than the model gives."""
    inner = SentenceTransformer(str(save_encoder(folder, "t5")), device="cpu")
    torch.manual_seed(1)
    dense = Dense(inner.get_embedding_dimension(), 24)
    modules = [inner[0], Pooling(inner.get_embedding_dimension(), pooling_mode="cls"), dense]
    model = SentenceTransformer(modules=modules, device="cpu", truncate_dim=16, similarity_fn_name="dot")
    return Encoder(model, EncoderConfig(query_prompt="ask: ", document_prompt="say: "))


def like_e5(folder: Path) -> Encoder:
    """What multilingual-e5-small is: BERT behind a tokenizer of SentencePiece, with prompts for both kinds of text."""
    with patch.dict(encoders.KINDS, bert="XLMRobertaTokenizer"):
        own = save_encoder(folder, "bert")
    prompts = {"query": "query: ", "passage": "passage: "}
    return Encoder(SentenceTransformer(str(own), device="cpu", prompts=prompts), EncoderConfig())


def e5(_: Path) -> Encoder:
    """The real one: in the folder that MULTILINGUAL_E5_SMALL names, or in the Hub's cache."""
    name = os.environ.get("MULTILINGUAL_E5_SMALL", "intfloat/multilingual-e5-small")
    try:
        return Encoder.load(EncoderConfig(name=name), device="cpu")
    except FileNotFoundError:
        pytest.skip("multilingual-e5-small is not here")


MAKERS = {
    kind: (lambda folder, kind=kind: of_kind(kind, folder)) for kind in ("bert", "roberta", "t5", "modernbert", "llama")
}
MAKERS |= {"static": static, "head": with_head, "MiniLM": lambda _: Encoder.load(EncoderConfig(), device="cpu")}
MAKERS |= {"like e5": like_e5, "e5": e5}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_graph_gives_what_its_model_gives(make, tmp_path, caplog):
    encoder = make(tmp_path)
    save(encoder, tmp_path / "out")
    assert not [record for record in caplog.records if record.name.startswith("dsi")]
    if "e5" in make.__name__:
        assert encoder.prompts == {"query": "query: ", "document": "passage: "}
    graph = GraphEncoder.load(tmp_path / "out", encoder.config)
    assert (graph.fingerprint, graph.embedding_dim, graph.state_dim, graph.max_length, graph.usual_length) == (
        encoder.fingerprint, encoder.embedding_dim, encoder.state_dim, encoder.max_length, encoder.usual_length,
    )  # fmt: skip
    for kind in ("query", "document"):
        ours, theirs = graph.forward(TEXTS, kind), encoder.forward(TEXTS, kind)
        np.testing.assert_allclose(ours.embeddings, theirs.embeddings, atol=1e-5)
        np.testing.assert_array_equal(ours.words.sum(axis=1), theirs.words.sum(axis=1))
        np.testing.assert_allclose(ours.states[ours.words], theirs.states[theirs.words], rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(graph.encode(TEXTS, kind), encoder.encode(TEXTS, kind), atol=1e-5)
        assert [graph.spans(text, kind) for text in TEXTS] == [encoder.spans(text, kind) for text in TEXTS]
    assert graph.query_texts(TEXTS) == encoder.query_texts(TEXTS)
    assert graph.cut(["a"] * len(TEXTS), TEXTS, 9) == encoder.cut(["a"] * len(TEXTS), TEXTS, 9)
    np.testing.assert_array_equal(graph.shares_read(TEXTS), encoder.shares_read(TEXTS))


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_of_half_precision_are_read_where_they_stand(dtype, tmp_path):
    model = SentenceTransformer(str(save_encoder(tmp_path, "bert")), device="cpu").to(dtype)
    encoder = Encoder(model, EncoderConfig())
    save(encoder, tmp_path / "out")
    assert (tmp_path / "out" / GRAPH).stat().st_size < 2**17
    graph = GraphEncoder.load(tmp_path / "out", encoder.config)
    np.testing.assert_allclose(graph.encode(TEXTS, "query"), encoder.encode(TEXTS, "query"), atol=1e-5)


def test_a_graph_holds_no_weights_and_is_saved_again_as_it_is(tmp_path):
    encoder = Encoder.load(EncoderConfig(), device="cpu")
    save(encoder, tmp_path / "a")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "a").iterdir() if path.is_file()}
    assert sizes[GRAPH] + sizes[SETTINGS] < 2**18 < sizes["model.safetensors"] / 300
    graph = GraphEncoder.load(tmp_path / "a", encoder.config)
    graph.save(tmp_path / "b")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    again = pickle.loads(pickle.dumps(graph))
    np.testing.assert_array_equal(again.encode(TEXTS, "query"), graph.encode(TEXTS, "query"))


def test_what_search_packs_can_be_saved_with_a_graph_too(tmp_path):
    encoder = of_kind("bert", tmp_path).for_search()
    save(encoder, tmp_path / "out")
    graph = GraphEncoder.load(tmp_path / "out", encoder.config)
    np.testing.assert_allclose(graph.encode(TEXTS, "query"), encoder.encode(TEXTS, "query"), atol=1e-5)


def test_models_alike_in_their_weights_have_graphs_of_their_own(tmp_path):
    """Llama and EuroBERT of one seed have the same weights, and look at other tokens."""
    for kind in ("llama", "eurobert"):
        encoder = of_kind(kind, tmp_path / kind)
        save(encoder, tmp_path / kind / "out")
        graph = GraphEncoder.load(tmp_path / kind / "out", encoder.config)
        np.testing.assert_allclose(graph.encode(TEXTS, "query"), encoder.encode(TEXTS, "query"), atol=1e-5)


def test_a_model_without_a_graph_is_computed_by_torch_and_a_line_says_so(encoder, tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise ValueError("no such operator\nand more")

    monkeypatch.setattr(export, "_exported", refuse)
    index = small_index(encoder, vectors=True)
    index.save(tmp_path / "index")
    assert caplog.messages == [
        "The encoder has no graph, so searches load torch, which takes seconds: no such operator"
    ]
    assert not has_graph(tmp_path / "index" / "encoder")
    loaded = dsi.load(tmp_path / "index", device="cpu")
    assert isinstance(loaded.snapshot.encoder, Encoder)
    assert loaded.search("neon", 5).ids.tolist() == index.search("neon", 5).ids.tolist()


def test_a_graph_of_other_numbers_is_not_kept(encoder, tmp_path, monkeypatch, caplog):
    own = GraphEncoder.run
    monkeypatch.setattr(GraphEncoder, "run", lambda *given: own(*given)._replace(vectors=own(*given).vectors * 1.001))
    save(encoder, tmp_path / "out")
    assert "its graph gives other numbers than the model" in caplog.text
    assert not has_graph(tmp_path / "out")


@pytest.fixture
def folder(tmp_path, encoder):
    folder = tmp_path / "made"
    small_index(encoder, vectors=True).save(folder)
    return folder


def test_an_index_is_searched_by_its_graph_on_the_cpu_in_float32_alone(folder, monkeypatch, caplog):
    assert isinstance(dsi.load(folder, device="cpu").snapshot.encoder, GraphEncoder)
    assert isinstance(dsi.load(folder, device="cpu", dtype="bfloat16").snapshot.encoder, Encoder)
    monkeypatch.setattr(loading, "has_gpu", lambda: False)
    assert isinstance(dsi.load(folder).snapshot.encoder, GraphEncoder)
    monkeypatch.setattr(loading, "has_gpu", lambda: True)
    assert isinstance(dsi.load(folder).snapshot.encoder, Encoder)
    assert not caplog.text


def test_an_edited_graph_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "index")
    with (tmp_path / "index" / "encoder" / GRAPH).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match=r"graph.onnx"):
        dsi.load(tmp_path / "index", device="cpu")


def reseal(index: Path) -> None:
    """Make the manifest that of an index from elsewhere, whose files are as they are now."""
    from dsi.docids.files.reading import sha256

    manifest = json.loads((index / "manifest.json").read_text(encoding="utf-8"))
    for name in manifest["files"]:
        manifest["files"][name] = sha256(index / name)
    (index / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.programs
def test_a_graph_that_is_not_of_its_model_does_not_pass_the_trial(folder, tmp_path):
    import onnx
    from onnx import numpy_helper

    shutil.copytree(folder, tmp_path / "index")
    path = tmp_path / "index" / "encoder" / GRAPH
    model = onnx.load(str(path), load_external_data=False)
    chosen = next(own for own in model.graph.initializer if own.data_location == onnx.TensorProto.EXTERNAL)
    shape, name = list(chosen.dims), chosen.name
    model.graph.initializer.remove(chosen)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    path.write_bytes(model.SerializeToString())
    reseal(tmp_path / "index")
    with pytest.raises(ValueError, match="does not belong together: its graph gives other numbers than the model"):
        dsi.load(tmp_path / "index", device="cpu")


def test_a_graph_of_another_version_is_refused_with_what_to_do(folder, tmp_path):
    import onnx

    shutil.copytree(folder, tmp_path / "index")
    path = tmp_path / "index" / "encoder" / GRAPH
    model = onnx.load(str(path), load_external_data=False)
    model.opset_import[0].version = 999
    path.write_bytes(model.SerializeToString())
    reseal(tmp_path / "index")
    with pytest.raises(
        ValueError, match=r"graph.onnx cannot be read \(.*999.*\); run pip install --upgrade onnxruntime, or restore"
    ):
        dsi.load(tmp_path / "index", device="cpu")


def test_a_graph_that_names_files_outside_the_index_is_refused(folder, tmp_path):
    import onnx

    shutil.copytree(folder, tmp_path / "index")
    path = tmp_path / "index" / "encoder" / GRAPH
    shutil.copy(path.with_name("model.safetensors"), tmp_path / "outside")
    model = onnx.load(str(path), load_external_data=False)
    for own in model.graph.initializer:
        for entry in own.external_data:
            if entry.key == "location":
                entry.value = "../../outside"
    path.write_bytes(model.SerializeToString())
    reseal(tmp_path / "index")
    with pytest.raises(ValueError, match=r"graph.onnx|escapes|outside"):
        dsi.load(tmp_path / "index", device="cpu")


SEARCHES = """
import sys
import dsi
index = dsi.load(sys.argv[1])
hits = index.search("noble gases", k=3)
str(hits), hits.matches(), index.search(["a", "b"]), str(index.explain("noble gases")), hits.ids, index.get(hits[0].doc_id)
index.search("noble gases", where="doc_id <> 'neon'")
index.add([{"doc_id": "new", "title": "A new one", "text": "Of noble gases."}])
index.learn([("who is new", "new")])
index.save(sys.argv[1])
assert "new" in index.search("a new one of noble gases", k=51).ids
print([name for name in sys.argv[2:] if name in sys.modules])
"""


def test_searches_updates_and_learning_import_no_library_of_models(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "index")
    command = [sys.executable, "-c", SEARCHES, str(tmp_path / "index"), *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout


COMMAND = """
import sys
from dsi.commands.main import main
main(sys.argv[2:])
print([name for name in sys.argv[1].split() if name in sys.modules])
"""


def test_the_command_imports_none_either(folder):
    for command in (["search", str(folder), "noble gases"], ["explain", str(folder), "noble gases"]):
        whole = [sys.executable, "-c", COMMAND, " ".join(LIBRARIES), *command]
        done = subprocess.run(whole, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", command
