"""An index from a stranger runs nothing, hangs nothing and crashes nothing: a change in its files is an error or harmless."""

import contextlib
import json
import math
import os
import pickle
import re
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from dsi_experiments.rerankers.boosting import BoostedTrees, BoostingConfig
from dsi_experiments.rerankers.learned import LinearReranker, RankNet, RankNetConfig
from dsi_experiments.rerankers.lists import JudgedLists
from dsi_experiments.rerankers.m2div import M2Div, M2DivConfig
from dsi_experiments.rerankers.parse_ranker import ParseRanker, ParserConfig
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from dsi import GenerativeRetriever, SearchConfig, load_rerankers
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.sparse import SparseIndex, SparseModel, load_lexical
from dsi.contrastive.untrusted import check_model, write_model
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.storage import sha256
from dsi.docids.files.untrusted import check_file, check_folder, is_inside
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.rerankers.cross_encoder import CrossEncoderReranker
from dsi.rerankers.reranking import save_reranker
from dsi.search.candidates import load_reranker
from dsi.store.loading import load_documents, trained_fan_out
from dsi.store.manifest import read_manifest
from tests.contrastive.test_sparse import save_model as save_sparse_model
from tests.search.test_generate import random_tokens
from tests.support.aimed import aimed_edits
from tests.support.aimed_parts import part_edits
from tests.support.encoders import save_encoder
from tests.support.hostile import QUERIES, SECONDS, count_outcomes, edit_json, random_edits, write_sums
from tests.support.small import (
    MINIPEDIA,
    PROMPTS,
    WIDTH,
    random_generator,
    random_tied,
    random_tree,
    save_cross_encoder,
)

RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:50]]
FEATURES = ("score", "title words")


@pytest.fixture(scope="module")
def index(tmp_path_factory, sentence_t5_folder):
    """A tiny index with one reranker of each kind that has files."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    columns = {"doc_id": "_id", "title": "title", "text": "text"}
    documents = datasets.Dataset.from_dict({name: [record[key] for record in RECORDS] for name, key in columns.items()})
    tree = build_tree(encoder.encode(documents["title"], "document"), DocidsConfig(branching=4, max_leaf_size=4))
    config = SearchConfig(alpha=0.3, beam_width=12, lexical_weight=0.05)
    bm25 = BM25(documents["doc_id"], documents["text"])
    retriever = GenerativeRetriever(encoder, tree, random_generator(tree, layers=1), documents, config, bm25)
    folder = tmp_path_factory.mktemp("from a stranger") / "index"
    retriever.save_pretrained(folder)
    rng = np.random.default_rng(0)
    lists = JudgedLists(rng.normal(size=(40, 2)), rng.integers(0, 2, 40).astype(float), [20, 20], FEATURES)
    small, candidates = (
        {"trees": 3, "leaves": 4, "min_leaf": 2},
        retriever.candidates(QUERIES, k=10, features=LinearReranker.features),
    )
    rerankers = {
        "linear": LinearReranker({"score": 1.0}),
        "ranknet": RankNet(FEATURES, RankNetConfig(hidden=4)),
        "lightgbm": BoostedTrees(FEATURES, BoostingConfig(**small)).fit(lists),
        "m2div": M2Div.create(candidates, M2DivConfig(hidden=4)),
        "parser": ParseRanker.create(candidates, ParserConfig()),
    }
    for name, reranker in rerankers.items():
        save_reranker(reranker, folder, name)
    return folder


@pytest.fixture
def stranger(index, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(index, tmp_path / "index"))


def ends(call, *arguments):
    """What a call returns or raises, if it does so in time."""
    found = []

    def run():
        try:
            found.append(call(*arguments))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    return found[0]


def assert_refused(folder, words):
    """Loading says what is wrong, though the sums fit."""
    write_sums(folder)
    error = ends(lambda: GenerativeRetriever.from_pretrained(folder, device="cpu"))
    assert isinstance(error, ValueError | FileNotFoundError), error
    assert words in str(error)


def edit_arrays(path, **changes):
    save_file({**load_file(path), **changes}, path)


@pytest.mark.parametrize("name", ["generator", "rerank/ranknet", "rerank/m2div"])
@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_weights_of_another_type_are_named(stranger, name, kind):
    path = stranger / name / "model.safetensors"
    weight, array = sorted(load_file(path).items())[0]
    edit_arrays(path, **{weight: array.astype(kind)})
    write_sums(stranger)
    load = load_rerankers if "/" in name else GenerativeRetriever.from_pretrained
    with pytest.raises(ValueError, match=rf"'{weight}' is torch.{kind}, and should be torch.float32; restore"):
        load(stranger, *name.split("/")[1:], device="cpu")


# Nothing runs.


EVIL = (
    "from pathlib import Path\nPath({mark!r}).write_text('ran')\nfrom sentence_transformers.models import Normalize\n"
)


@pytest.mark.parametrize("name", ["evil.Normalize", "os.system", "sentence_transformers.evil.Evil", "x.Transformer"])
def test_a_module_that_is_not_known_is_not_imported(stranger, tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(stranger / "encoder")
    edit_json(stranger / "encoder" / "modules.json", lambda modules: modules[2].update(type=name))
    assert_refused(stranger, f"modules.json names the module {name!r}; an index may use only Transformer")
    (stranger / "encoder" / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    assert_refused(stranger, "evil.py could run code and is not read from an index; remove it")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "name",
    ["encoder/pytorch_model.bin", "generator/x.PT", "lexical/a.pkl", "docids/m.npz", "encoder/1_Pooling/modeling.py"],
)
def test_files_that_could_run_code_are_refused_by_name(stranger, name):
    (stranger / name).write_bytes(b"")
    assert_refused(stranger, f"{name} could run code")


@pytest.mark.parametrize(
    ("file", "change", "key"),
    [
        ("config.json", {"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ("config.json", {"_attn_implementation": "evil/kernels"}, "_attn_implementation"),
        ("config.json", {"encoder": {"attn_implementation": "evil/kernels"}}, "encoder"),
        ("config.json", {"backbone": "evil/model", "use_pretrained_backbone": True}, "backbone"),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("config.json", {"tokenizer_class": "ByT5Tokenizer"}, "tokenizer_class"),
        ("1_Pooling/config.json", {"activation_function": "torch.hub.load"}, "activation_function"),
    ],
)
def test_settings_that_a_module_does_not_declare_are_refused(stranger, file, change, key):
    edit_json(stranger / "encoder" / file, lambda config: config.update(change))
    assert_refused(stranger, f"{file} sets {key!r}, which an index may not")


@pytest.mark.parametrize("value", [-1.0, 0, 1.5, None, True, "x"])
def test_norms_divide_by_more_than_0(stranger, value):
    edit_json(stranger / "encoder" / "config.json", lambda config: config.update(layer_norm_epsilon=value))
    assert_refused(stranger, "layer_norm_epsilon must be above 0 and at most 1, got")


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}, "auto_map: is not known"),
        ("tokenizer_config.json", {"chat_template": "{% for a in range(10**9) %}"}, "chat_template: is not known"),
        ("tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"}, "tokenizer_class: Input should be"),
        ("tokenizer_config.json", {"extra_ids": 10**7}, "extra_ids: Input should be less"),
        ("tokenizer_config.json", {"tokenizer_file": "/etc/passwd"}, "tokenizer_file: is not known"),
        ("tokenizer_config.json", {"fix_mistral_regex": True}, "fix_mistral_regex: is not known"),
        ("tokenizer_config.json", {"model_specific_special_tokens": {"x": "y" * 10**4}}, "model_specific_special_tokens"),
        ("sentence_bert_config.json", {"model_args": {"gguf_file": "x"}}, "model_args: is not known"),
        ("sentence_bert_config.json", {"processor_kwargs": {"vocab_file": "/etc/passwd"}}, "processor_kwargs: is not known"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs: is not known"),
        ("sentence_bert_config.json", {"modality_config": {"message": {"method": "forward"}}}, "modality_config.text: Field"),
        ("sentence_bert_config.json", {"max_seq_length": 10**9}, "max_seq_length: Input should be less"),
        ("config_sentence_transformers.json", {"prompts": {"query": "x" * 10**7}}, "prompts.query: String should have at most"),
        ("config_sentence_transformers.json", {"requirements": ["evil"]}, "requirements: is not known"),
    ],
)  # fmt: skip
def test_what_the_files_of_a_model_may_say(stranger, file, change, words):
    edit_json(stranger / "encoder" / file, lambda config: config.update(change))
    assert_refused(stranger, f"{file} holds what an index may not ({words}")


@pytest.mark.parametrize(
    "name",
    ["adapter_config.json", "chat_template.jinja", "additional_chat_templates/x.jinja", "preprocessor_config.json",
     "spiece.model", "sentence_xlnet_config.json", "vocab.txt", "generation_config.json", "1_Pooling/more.txt"],
)  # fmt: skip
def test_a_model_holds_only_known_files(stranger, name):
    path = stranger / "encoder" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    assert_refused(stranger, f"{path} is no file of a model that an index may hold; remove it")


@pytest.mark.parametrize("place", ["../encoder", "/etc", "C:\\x", "a\nb"])
def test_a_module_lies_in_its_model(stranger, place):
    edit_json(stranger / "encoder" / "modules.json", lambda modules: modules[1].update(path=place))
    assert_refused(stranger, f"modules.json names the folder {place!r}, which must lie inside the model")


def test_names_inside_a_folder():
    assert all(map(is_inside, ["", "a", "a/b", "docids/x y.json"]))
    assert not any(map(is_inside, ["/a", "../a", "a/../../b", "C:/a", "\\\\host\\a", "a\\..\\..\\b", "a\0", None, 3]))


@pytest.mark.parametrize("inference_free", [False, True])
def test_a_sparse_encoder_of_an_index_is_checked_too(tmp_path, tokenizer_folder, inference_free):
    texts, ids = ["neon is a noble gas", "the danube"], ["a", "b"]
    named = SparseModel.load(str(save_sparse_model(tmp_path, tokenizer_folder, inference_free=inference_free)), "cpu")
    SparseIndex.from_texts(ids, texts, named).save(tmp_path / "lexical")
    assert load_lexical(tmp_path / "lexical", ids, "cpu").scores(["gas"]).shape == (1, 2)
    model = tmp_path / "lexical" / "model"
    edit_arrays(tmp_path / "lexical" / "vectors.safetensors", indptr=np.array([0, 9**9], dtype=np.int32))
    with pytest.raises(ValueError, match=r"vectors.safetensors does not hold the terms of 2 documents"):
        load_lexical(tmp_path / "lexical", ids, "cpu")
    (file,) = model.glob("router_config.json") if inference_free else [model / "modules.json"]
    text = file.read_text()
    module = "SparseStaticEmbedding" if inference_free else "SpladePooling"
    file.write_text(text.replace(f".{module}", ".Evil"))
    with pytest.raises(ValueError, match=rf"{file.name} names the module .*Evil"):
        check_model(model)


def test_a_dense_layer_has_the_size_of_its_weights(tmp_path, sentence_t5_folder):
    modules = [Transformer(str(sentence_t5_folder)), Pooling(WIDTH), Dense(WIDTH, 8)]
    write_model(SentenceTransformer(modules=modules, device="cpu"), tmp_path)
    encoder = Encoder.load(EncoderConfig(), tmp_path, "cpu")
    assert encoder.encode(["a"], "query").shape == (1, 8)
    (path,) = tmp_path.glob("*_Dense/config.json")
    edit_json(path, lambda config: config.update(activation_function="torch.hub.load"))
    with pytest.raises(ValueError, match="sets activation_function, which could run code"):
        check_model(tmp_path)
    edit_json(
        path, lambda config: config.update(activation_function="torch.nn.modules.activation.Tanh", out_features=10**6)
    )
    with pytest.raises(
        ValueError, match=r"config.json does not fit model.safetensors beside it: out_features, in_features"
    ):
        check_model(tmp_path)


def test_a_saved_cross_encoder_names_no_model(tmp_path, tokenizer_folder):
    pairs = [("a noble gas", "neon"), ("river", "the danube")]
    reranker = CrossEncoderReranker(
        save_cross_encoder(tmp_path / "named", tokenizer_folder), device="cpu", batch_size=2
    )
    reranker.save(tmp_path / "mine")
    shutil.rmtree(tmp_path / "named")
    assert np.array_equal(load_reranker(tmp_path / "mine").score_pairs(pairs), reranker.score_pairs(pairs))
    record = tmp_path / "mine" / "reranker.json"
    assert json.loads(record.read_text())["settings"] == {"batch_size": 2}
    edit_json(record, lambda own: own["settings"].update(name="evil/model"))
    with pytest.raises(ValueError, match="mine cannot be read"):
        load_reranker(tmp_path / "mine")
    edit_json(record, lambda own: own["settings"].pop("name"))
    (tmp_path / "mine" / "model" / "evil.py").write_text("")
    with pytest.raises(ValueError, match=r"evil.py could run code"):
        load_reranker(tmp_path / "mine")


# Nothing hangs: files that never end, and sizes that no file holds.


@pytest.mark.parametrize(
    "name", ["docids/documents.arrow", "encoder/more.json", "manifest.json", "lexical/terms.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "folder"])
def test_only_files_are_read(stranger, name, kind):
    path = stranger / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    error = ends(lambda: GenerativeRetriever.from_pretrained(stranger, device="cpu"))
    if (name, kind) == ("encoder/more.json", "folder"):
        assert isinstance(error, GenerativeRetriever)
    else:
        assert isinstance(error, ValueError | FileNotFoundError)
        assert path.name in str(error)


def test_a_link_to_a_file_is_read(stranger, tmp_path):
    path = stranger / "docids" / "documents.arrow"
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert len(GenerativeRetriever.from_pretrained(stranger, device="cpu").documents) == 50


def test_a_link_to_a_folder_is_not_followed(stranger):
    (stranger / "encoder" / "deeper").symlink_to("/")
    assert_refused(stranger, "deeper must be a folder, and is a link to one")


HUGE = 10**9


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("encoder/config.json", {"num_layers": HUGE}, "num_layers = 1000000000 is more than a model in an index may have, 256"),
        ("encoder/config.json", {"num_layers": 900, "d_model": 10**6}, "config.json"),
        ("encoder/config.json", {"vocab_size": 10**7}, "weights, far more than there are beside it"),
        ("encoder/config.json", {"num_layers": 250}, "tensors, far more than there are beside it"),
        ("encoder/config.json", {"d_ff": 10**12}, "config.json"),
        ("encoder/config.json", {"id2label": {}, "num_labels": HUGE}, "num_labels = 1000000000 is more"),
        ("encoder/config.json", {"model_type": "no such"}, "config.json has the model_type"),
        ("encoder/config.json", {"vocab_size": HUGE}, "config.json sets vocab_size to what an index may not"),
        ("encoder/config.json", {"model_type": "distilbert", "n_layers": HUGE}, "n_layers = 1000000000 is more"),
        ("encoder/config.json", {"model_type": []}, "config.json has the model_type"),
        ("generator/config.json", {"num_layers": HUGE}, "config.json asks for 1000000000 layers"),
        ("generator/config.json", {"d_ff": HUGE}, "generator/model.safetensors does not fit the config beside it"),
        ("generator/config.json", {"num_layers": 2}, "generator/model.safetensors does not fit the config beside it"),
        ("generator/config.json", {"vocab_size": 3}, "config.json is not the config of a generator: vocab_size must be"),
        ("generator/config.json", {"fan_out": [4, "x"]}, "fan_out must be a list of whole numbers above 0"),
        ("generator/config.json", {"d_model": None}, "d_model must be a whole number"),
        ("generator/config.json", {"docid_tokens": "x"}, "docid_tokens must be one of"),
        ("generator/config.json", {"score": "x"}, "score must be one of softmax path, sigmoid path, node, estimate, got 'x'"),
        ("generator/config.json", {"feed_forward_proj": "x"}, "generator"),
        ("generator/config.json", {"dropout_rate": "x"}, "dropout_rate must be a number"),
        ("generator/config.json", {"relative_attention_max_distance": 16}, "above relative_attention_num_buckets"),
        ("lexical/params.index.json", {"k1": "x"}, "params.index.json cannot be read"),
        ("lexical/params.index.json", {"num_docs": HUGE}, "covers 1000000000 documents, the document table has 50"),
    ],
)  # fmt: skip
def test_sizes_are_those_of_the_files(stranger, file, change, words):
    edit_json(stranger / file, lambda config: config.update(change))
    assert_refused(stranger, words)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**12, 32], "data_offsets": [0, 128]},
        {"dtype": "F32", "shape": [1, 32], "data_offsets": [0, 10**15]},
        {"dtype": "F32", "shape": [-1, -32], "data_offsets": [0, 128]},
        {"dtype": "F32", "shape": [1, 32], "data_offsets": [-128, 0]},
        {"dtype": "X", "shape": [1, 32], "data_offsets": [0, 128]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 128]},
        {"dtype": "F32", "data_offsets": [0, 128]},
        [],
    ],
)
@pytest.mark.parametrize(
    "file", ["docids/docids.safetensors", "generator/model.safetensors", "encoder/model.safetensors"]
)
def test_headers_fit_their_files(stranger, file, entry):
    header = json.dumps({"centroids": entry}).encode()
    (stranger / file).write_bytes(len(header).to_bytes(8, "little") + header + bytes(1000))
    assert_refused(stranger, f"{file} is truncated or altered: its header does not fit it")


@pytest.mark.parametrize("length", [0, 2**63, 10**6])
def test_a_header_ends_within_its_file(stranger, length):
    (stranger / "docids" / "docids.safetensors").write_bytes(length.to_bytes(8, "little") + bytes(1000))
    assert_refused(stranger, "docids.safetensors is truncated or altered")


# Nothing is followed out of its array.


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("indices", lambda own: own + 50, "documents that there are not"),
        ("indices", lambda own: own - 1, "documents that there are not"),
        ("indices", lambda own: own * 0, "not in order"),
        ("indices", lambda own: own.astype(np.float64), "'indices' is missing, unknown or of another type"),
        ("indices", lambda own: own[None], "'indices' is missing, unknown or of another type"),
        ("indptr", lambda own: own[::-1].copy(), "do not lie one after another"),
        ("indptr", lambda own: own[1:], "there is not one list a term"),
        ("indptr", lambda own: np.delete(own, 5), "there is not one list a term"),
        ("indptr", lambda own: np.where(own == own.max(), np.int32(10**9), own), "do not lie one after another"),
        (
            "indptr",
            lambda own: np.r_[own[:1], np.int32([2 * 10**9, -(2 * 10**9)]), own[3:]],
            "do not lie one after another",
        ),
        ("data", lambda own: own * np.float32(np.nan), "not finite"),
        ("data", lambda own: own[1:], "documents that there are not"),
        ("data", lambda own: own * 0, "not above 0"),
        ("data", lambda own: -own, "not above 0"),
        ("shape", lambda own: own[:1], "covers -1 documents"),
        ("shape", lambda own: own * 10**6, "covers 50000000 documents"),
        ("shape", lambda own: own - np.array([1, 0], np.int32), "there is not one list a term"),
        ("lengths", lambda own: own[1:], "does not hold the lengths of 50 documents"),
        ("lengths", lambda own: -own, "does not hold the lengths of 50 documents"),
    ],
)
def test_words_of_documents_stay_in_their_arrays(stranger, name, change, words):
    path = stranger / "lexical" / "terms.safetensors"
    edit_arrays(path, **{name: change(load_file(path)[name])})
    assert_refused(stranger, words)


def test_terms_and_vocabulary_fit_each_other(stranger):
    for number in (10**9, -1, 0.5, "x", None, True):
        edit_json(stranger / "lexical" / "vocab.index.json", lambda words: words.update({next(iter(words)): number}))  # noqa: B023
        assert_refused(stranger, "vocab.index.json does not number its words")


def test_a_vocabulary_of_more_words_is_refused(stranger):
    edit_json(stranger / "lexical" / "vocab.index.json", lambda words: words.update({"zzzz": len(words)}))
    assert_refused(stranger, "terms.safetensors holds ")


def test_a_pickle_in_the_place_of_arrays_is_refused(stranger):
    (stranger / "lexical" / "terms.safetensors").write_bytes(pickle.dumps({"a": 1}))
    assert_refused(stranger, "terms.safetensors is truncated or altered")


def arrow(path, table):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"doc_id": ["a", "b"]}, "it has no column title of texts"),
        ({"doc_id": [1, 2], "title": ["a", "b"]}, "it has no column doc_id of texts"),
        ({"doc_id": ["a"], "title": ["a"], "more": pa.array(["a"]).dictionary_encode()}, "column 'more' has a type"),
        ({"doc_id": ["a"], "title": ["a"], "text": [1]}, "it has no column text of texts"),
        ({"doc_id": ["a"], "title": ["a"], "text": [None]}, "it has no column text of texts"),
        (
            {"doc_id": ["a"], "title": ["a"], **{f"column {n}": [n] for n in range(999)}},
            "it has more than 1000 columns",
        ),
        *[
            ({"doc_id": ["a"], "title": ["a"], "more": more}, "column 'more' has a type")
            for more in (
                pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1)),
                pa.nulls(1, pa.list_(pa.null(), 10**7)),
                pa.ListArray.from_arrays(pa.array([0, 9]), pa.StructArray.from_arrays([pa.nulls(9)], names=["x"])),
                pa.nulls(1, pa.list_(pa.list_(pa.int8(), 0))),
                pa.nulls(1, pa.list_(pa.binary(0))),
                pa.array([2**62]).cast(pa.timestamp("s")),
                pa.array([0]).cast(pa.timestamp("s", tz="Nowhere/Land")),
                pa.array([b"\xff"]),
            )
        ],
    ],
)
def test_the_document_table_is_validated(tmp_path, columns, words):
    arrow(tmp_path / "documents.arrow", pa.table(columns))
    with pytest.raises(ValueError, match=words):
        load_documents(tmp_path / "documents.arrow")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"price": [float("nan"), 1.0]}, "column 'price' has a number that is not finite"),
        ({"price": [[1.0], [float("inf")]]}, "column 'price' has a number that is not finite"),
        ({"price": [{"a": 1.0}, {"a": float("nan")}]}, "column 'price' has a number that is not finite"),
        ({"doc_id": pa.array(["a", None])}, "a document has no doc_id or title"),
        ({"title": pa.array([None, None], pa.string())}, "a document has no doc_id or title"),
        ({"doc_id": ["a", "a"]}, "a doc_id occurs twice"),
        *[
            ({"doc_id": ["a", own]}, "a doc_id is empty or holds white space")
            for own in ("", "b c", "b\n", "\0", "\u2003")
        ],
        ({"doc_id": ["a", "ä" * 2049]}, "a doc_id has more than 4,096 bytes"),
    ],
)
def test_values_of_the_document_table(tmp_path, column, words):
    arrow(tmp_path / "documents.arrow", pa.table({"doc_id": ["a", "b"], "title": ["c", "d"], **column}))
    with pytest.raises(ValueError, match=words):
        load_documents(tmp_path / "documents.arrow")


def test_a_column_does_not_name_files(tmp_path):
    """`datasets` would read the names of a ClassLabel from a file."""
    names = tmp_path / "names"
    names.write_text("a\nb")
    label = {"names_file": str(names), "_type": "ClassLabel"}
    features = {**{name: {"dtype": "string", "_type": "Value"} for name in ("doc_id", "title")}, "x": label}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    arrow(tmp_path / "x.arrow", pa.table({"doc_id": ["a"], "title": ["b"], "x": [1]}).replace_schema_metadata(metadata))
    opened = []
    sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
    assert load_documents(tmp_path / "x.arrow")[0] == {"doc_id": "a", "title": "b", "x": 1}
    assert str(names) not in opened


def test_columns_that_share_their_bytes_are_refused(tmp_path):
    """Many columns of the same bytes would cost more than the file weighs."""
    texts = pa.array(["x" * 1000] * 1000)  # 4,004 bytes of offsets, then a million of texts
    arrow(tmp_path / "x.arrow", pa.table({"doc_id": pa.array(map(str, range(1000))), "title": texts, "more": texts}))
    data = (tmp_path / "x.arrow").read_bytes()
    buffers = re.compile(rb"(?s)(.{8})" + re.escape(np.array([4004], "<i8").tobytes()))
    title, more = (int.from_bytes(own, "little") for own in buffers.findall(data[:2000])[-2:])
    shared = data.replace(np.array([more, 4004], "<i8").tobytes(), np.array([title, 4004], "<i8").tobytes())
    starts = [np.array([own + 4008, 10**6], "<i8").tobytes() for own in (more, title)]
    shared = shared.replace(*starts)
    body, less = (np.array([size], "<i8").tobytes() for size in (more + 4008 + 10**6, more))
    assert shared.count(body) == 1
    start = shared.index(b"x" * 1000) - 4008 - title
    (tmp_path / "x.arrow").write_bytes(shared.replace(body, less)[: start + more])
    with pytest.raises(ValueError, match=r"x.arrow cannot be read \(its columns overlap\)"):
        load_documents(tmp_path / "x.arrow")


def test_a_tree_of_a_thousand_levels(tmp_path):
    """A chain of nodes is short in its file, and every search would take a step for each."""
    for depth in (1000, 1001):
        chain = np.arange(depth, dtype=np.int32)
        arrays = {
            "first_child": chain + 1, "num_children": np.r_[chain[1:] * 0 + 1, 2].astype(np.int32), "doc_start": chain * 0,
            "doc_end": chain * 0 + 2, "doc_rows": np.array([0, 1], np.int32), "origin": np.zeros(0, np.uint8),
            "centroids": np.zeros((depth, 2), np.float32), "embeddings": np.zeros((2, 2), np.float32),
        }  # fmt: skip
        save_file(arrays, tmp_path / "docids.safetensors")
        if depth == 1000:
            assert DocidTree.load(tmp_path / "docids.safetensors").depth == 1000
    with pytest.raises(ValueError, match="a docid has more than 1000 digits"):
        DocidTree.load(tmp_path / "docids.safetensors")


def test_all_places_of_one_document(stranger):
    path = stranger / "docids" / "docids.safetensors"
    edit_arrays(path, doc_rows=load_file(path)["doc_rows"] * 0)
    assert_refused(stranger, "docids: the docids cover 1 documents, the document table has 50")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"k1": 1, "k1": 2}', "the key 'k1' occurs twice"),
        ('{"a": {"k\\u0031": 1, "k1": 2}}', "the key 'k1' occurs twice"),
        ('{"k1": NaN}', "NaN is no number of JSON"),
        ('{"k1": -Infinity}', "-Infinity is no number of JSON"),
        ('{"k1": 1e999}', "1e999 is more than a number can be"),
        ('{"k1": {"k": [-1e400]}}', "-1e400 is more than a number can be"),
        (r'{"k1": "\ud800"}', "surrogates not allowed"),
    ],
)
def test_json_that_readers_take_differently_is_refused(stranger, text, words):
    (stranger / "lexical" / "params.index.json").write_text(text)
    assert_refused(stranger, words)


@pytest.mark.parametrize("shape", [[2**63, 0], [0, 2**63], [10**9, 0]])
def test_an_empty_array_has_no_shape_without_end(stranger, shape):
    path = stranger / "docids" / "docids.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = {"dtype": "I32", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"origin\n": entry, **json.loads(data[8 : 8 + length])}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    assert_refused(stranger, r"the shape of 'origin\n' does not fit it")


def test_a_file_with_many_names_is_read_once(stranger, monkeypatch):
    """A stranger's archive may hold many hard links to one large file."""
    for number in range(1, 9):
        os.link(stranger / "generator" / "model.safetensors", stranger / "generator" / f"{number}.safetensors")
    write_sums(stranger)
    read = []
    monkeypatch.setattr("dsi.store.manifest.sha256", lambda path: read.append(path) or sha256(path))
    read_manifest(stranger)
    assert len([path for path in read if path.parent.name == "generator"]) == 2


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="the system does not tell holes")
@pytest.mark.parametrize("name", ["encoder/model.safetensors", "docids/documents.arrow", "generator/config.json"])
def test_a_file_that_is_mostly_a_hole_is_not_read(stranger, name):
    with (stranger / name).open("r+b") as file:
        file.truncate(2**40)
    error = ends(lambda: GenerativeRetriever.from_pretrained(stranger, device="cpu"))
    assert f"{stranger / name} has 1,099,511,627,776 bytes, most of which were never written" in str(error)


def test_a_file_with_a_small_hole_is_read(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x" * 2**26)
        file.seek(2**26 + 2**20)
        file.write(b"x")
    check_file(tmp_path / "file")


def test_a_module_is_loaded_once(stranger):
    edit_json(stranger / "encoder" / "modules.json", lambda modules: modules.insert(1, modules[0]))
    assert_refused(stranger, "modules.json names a folder twice")


@pytest.mark.parametrize("name", ["./query_0_SparseStaticEmbedding", "query_0_SparseStaticEmbedding/"])
def test_a_module_of_a_route_has_one_name(tmp_path, tokenizer_folder, name):
    SparseModel.load(str(save_sparse_model(tmp_path, tokenizer_folder, inference_free=True)), "cpu").save(
        tmp_path / "stored"
    )
    path = tmp_path / "stored" / "router_config.json"
    kind = json.loads(path.read_text())["types"]["query_0_SparseStaticEmbedding"]
    edit_json(path, lambda own: own["types"].update({name: kind}))
    with pytest.raises(ValueError, match=rf"router_config.json names the folder '{name}', which must lie inside"):
        check_model(tmp_path / "stored")


@pytest.mark.parametrize(
    ("name", "count"), [("tokenizer.json", 4), ("config.json", 62), ("model-{:05}-of-99999.safetensors", 250)]
)
def test_a_model_has_few_files(stranger, name, count):
    for number in range(count):
        (stranger / "encoder" / str(number)).mkdir()
        shutil.copy(stranger / "encoder" / "tokenizer.json", stranger / "encoder" / str(number) / name.format(number))
    assert_refused(stranger, "is one file too many: a model has at most 256, 64 of a name and 4 tokenizers")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\udcff"])
def test_names_of_files_are_printable(tmp_path, name):
    (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match="a name that no part of an index has") as caught:
        check_folder(tmp_path)
    assert str(caught.value).isprintable()


def test_folders_too_deep_for_python_are_refused(tmp_path):
    (tmp_path / "/".join(["n"] * 31)).mkdir(parents=True)
    with pytest.raises(ValueError, match="has folders in folders, more than 30 of them"):
        check_folder(tmp_path)


def test_texts_stay_in_their_data(tmp_path):
    path, offsets = tmp_path / "documents.arrow", np.array([0, 1, 2, 3], dtype=np.int32)
    arrow(path, pa.table({"doc_id": ["a", "b", "c"], "title": ["d", "e", "f"]}))
    for wrong in ([0, 10**9, 2, 3], [0, -(10**9), 2, 3], [0, 1, 2, 2**31 - 1]):
        data = path.read_bytes().replace(offsets.tobytes(), np.array(wrong, dtype=np.int32).tobytes())
        (tmp_path / "other.arrow").write_bytes(data)
        with pytest.raises(ValueError, match=r"other.arrow cannot be read"):
            load_documents(tmp_path / "other.arrow")


def test_a_table_that_could_be_of_any_size_when_unpacked_is_refused(tmp_path):
    table = pa.table({"doc_id": ["a"] * 10_000, "title": ["b"] * 10_000})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=options) as to,
    ):
        to.write_table(table)
    with pytest.raises(ValueError, match=r"x.arrow cannot be read \(it is compressed\)"):
        load_documents(tmp_path / "x.arrow")


def test_a_column_that_opens_files_is_refused(tmp_path):
    picture = {"path": "/etc/passwd", "bytes": None}
    features = datasets.Features(
        {name: datasets.Value("string") for name in ("doc_id", "title")} | {"x": datasets.Image()}
    )
    table = pa.table({"doc_id": ["a"], "title": ["a"], "x": [picture]}, schema=features.arrow_schema)
    arrow(tmp_path / "documents.arrow", table)
    with pytest.raises(ValueError, match=r"column 'x' has a type that metadata cannot have"):
        load_documents(tmp_path / "documents.arrow")


def test_metadata_of_all_plain_types_is_read(tmp_path):
    columns = {
        "doc_id": ["a"],
        "title": ["b"],
        "n": [1],
        "list": [[1.5]],
        "struct": [{"x": "y", "z": [True]}],
        "none": [None],
    }
    documents = datasets.Dataset.from_dict(columns)
    arrow(tmp_path / "documents.arrow", documents.with_format("arrow")[:])
    assert load_documents(tmp_path / "documents.arrow")[0] == documents[0]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("generator/model.safetensors", "weights that are not finite"),
        ("encoder/model.safetensors", "weights that are not finite"),
    ],
)
def test_weights_are_finite(stranger, file, words):
    weights = load_file(stranger / file)
    weights[next(iter(weights))][0] = np.nan
    save_file(weights, stranger / file, metadata={"format": "pt"})
    assert_refused(stranger, words)


@pytest.mark.parametrize("name", ["generator", "encoder", "rerank/ranknet"])
def test_weights_are_not_so_large_that_products_overflow(stranger, name):
    path = stranger / name / "model.safetensors"
    weight, array = sorted(load_file(path).items())[0]
    array.ravel()[-1] = 3e38  # the sum is finite
    edit_arrays(path, **{weight: array})
    write_sums(stranger)
    load = load_rerankers if "/" in name else GenerativeRetriever.from_pretrained
    with pytest.raises(ValueError, match=rf"weights that are not finite, or beyond 1e15 \(.*{weight}\); restore"):
        load(stranger, *name.split("/")[1:], device="cpu")


def test_every_token_has_an_embedding(stranger):
    path = stranger / "encoder" / "tokenizer.json"
    edit_json(path, lambda tokenizer: tokenizer["model"]["vocab"].update({"noble": 5000}))
    assert_refused(stranger, "it has tokens without an embedding")


@pytest.mark.parametrize("tied", [False, True])
def test_the_generator_knows_the_docids(encoder, tmp_path, tied):
    tree, more = (random_tree(77, branching=branching) for branching in (4, 6))
    documents = datasets.Dataset.from_dict({name: [str(row) for row in range(77)] for name in ("doc_id", "title")})
    make = random_tied if tied else random_generator
    GenerativeRetriever(encoder, tree, make(tree), documents).save_pretrained(tmp_path / "index")
    assert trained_fan_out(tree) == tree.fan_out
    other = make(more)
    other.config.docids_fingerprint = tree.fingerprint
    other.save_pretrained(str(tmp_path / "index" / "generator"))
    assert trained_fan_out(more) != tree.fan_out
    assert_refused(tmp_path / "index", "generator and the docids do not belong together")


# The manifest.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 4}, "manifest.json has format version 4, this version reads 8"),
        ({"format_version": None}, "manifest.json has format version None"),
        ({"parts": None}, "manifest.json: parts must be of type dict, got None"),
        ({"files": ["x"]}, "manifest.json: files must be of type dict"),
        ({"generation": "1"}, "manifest.json: generation must be of type int"),
        ({"fingerprints": {}}, "manifest.json: fingerprints must have a text for encoder"),
        ({"parts": {"docids": "/etc"}}, "parts may name docids and lexical of generation 1, got 'docids': '/etc'"),
        ({"parts": {"docids": "../docids"}}, "parts may name docids and lexical of generation 1"),
        ({"parts": {"docids": ".."}}, "parts may name docids and lexical of generation 1"),
        ({"parts": {"docids": ["docids"]}}, "parts may name docids and lexical of generation 1"),
        ({"parts": {"docids": "encoder"}}, "parts may name docids and lexical of generation 1"),
        ({"parts": {"encoder": "docids"}}, "parts may name docids and lexical of generation 1, got 'encoder'"),
        ({"parts": {"docids": "docids-2"}}, "parts may name docids and lexical of generation 1"),
        ({"generation": 0}, "generation must be from 1 to 1000000000, got 0"),
        ({"generation": 10**300}, "generation must be from 1 to 1000000000, got an integer of 997 bits"),
        ({"files": {f"docids/{n}": "0" for n in range(1001)}}, "an index has at most 1000 files, got 1001"),
        ({"files": {"docids/./docids.safetensors": "0"}}, "files must be names inside the index with their sums, got"),
        ({"files": {"docids//docids.safetensors": "0"}}, "files must be names inside the index with their sums, got"),
        ({"files": {"/etc/passwd": "0"}}, "files must be names inside the index with their sums, got '/etc/passwd'"),
        ({"files": {"docids/../../x": "0"}}, "files must be names inside the index"),
        ({"files": {"docids": "0"}}, "docids must be a regular file"),
        ({"files": {"docids/docids.safetensors": 3}}, "files must be names inside the index with their sums"),
        ({"search": {"rerank_deeper": True}}, "manifest.json: 'search.rerank_deeper' is no setting"),
        ({"search": {"beam_width": "x"}}, "manifest.json: search: beam_width must be an integer, got 'x'"),
        ({"search": {"beam_width": 0}}, "manifest.json: search: beam_width must be at least 1"),
        ({"search": {"beam_width": 10**15}}, "beam_width must be at most"),
        ({"search": {"beta": "x"}}, "manifest.json: search: beta must be a number"),
        ({"encoder": {"name": 3}}, "manifest.json: encoder.name must be a string"),
        ({"encoder": {"new": 3}}, "manifest.json: 'encoder.new' is no setting"),
        ({"encoder": {"query_length": 10**9}}, "encoder.query_length must be between 1 and 8192, got 1000000000"),
        ({"encoder": {"document_length": 8193}}, "document_length must be between 1 and 8192, got 8193; no encoder reads more"),
    ],
)  # fmt: skip
def test_a_manifest_that_says_what_it_should_not(stranger, change, words):
    edit_json(stranger / "manifest.json", lambda manifest: manifest.update(change))
    with pytest.raises(ValueError, match=re.escape(words)):
        GenerativeRetriever.from_pretrained(stranger, device="cpu")


def test_a_manifest_keeps_settings_without_an_end(stranger, tmp_path):
    retriever = GenerativeRetriever.from_pretrained(stranger, device="cpu")
    retriever.search_config = replace(retriever.search_config, beta=math.inf)
    retriever.save_pretrained(tmp_path / "saved")
    loaded = GenerativeRetriever.from_pretrained(tmp_path / "saved", device="cpu")
    assert loaded.search_config == retriever.search_config


@pytest.mark.parametrize(
    "key", ["format_version", "generation", "parts", "encoder", "search", "fingerprints", "versions", "files"]
)
def test_a_manifest_lacks_nothing(stranger, key):
    edit_json(stranger / "manifest.json", lambda manifest: manifest.pop(key))
    with pytest.raises(ValueError, match=rf"manifest.json.*{key.replace('_', '.')}"):
        GenerativeRetriever.from_pretrained(stranger, device="cpu")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00", '{"format_version": NaN}']
)
def test_a_manifest_that_is_none(stranger, text):
    (stranger / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest.json"):
        GenerativeRetriever.from_pretrained(stranger, device="cpu")


# Rerankers beside the index.


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ranknet", {"names": ["a"] * 3}),
        ("ranknet", {"config": {"hidden": HUGE}}),
        ("ranknet", {"config": {"new": 1}}),
        ("m2div", {"sizes": [HUGE, HUGE]}),
        ("m2div", {"config": {"hidden": 4, "ranked": HUGE}}),
        ("parser", {"config": {"longest": HUGE}}),
        ("parser", {"config": {"strength": float("nan")}}),
        ("linear", {"weights": [1]}),
        ("linear", {"weights": {"score": "x"}}),
        ("lightgbm", {"base": {"kind": "no such"}}),
        ("lightgbm", {"names": None}),
    ],
)
def test_settings_of_rerankers_fit_their_files(stranger, name, change):
    edit_json(stranger / "rerank" / name / "reranker.json", lambda record: record["settings"].update(change))
    error = ends(load_rerankers, stranger, name)
    assert isinstance(error, ValueError), error
    assert str(stranger / "rerank" / name) in str(error)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-30])
def test_ranknet_divides_by_what_features_deviate(stranger, scale):
    path = stranger / "rerank" / "ranknet" / "model.safetensors"
    edit_arrays(path, scale=np.array([1.0, scale], dtype=np.float32))
    with pytest.raises(ValueError, match=r"ranknet.*scale must be at least 1e-06, got"):
        load_rerankers(stranger, "ranknet")


@pytest.mark.parametrize("change", [{"kind": 3}, {"kind": "os.system"}, {"for": None}, {"settings": []}])
def test_a_record_of_a_reranker(stranger, change):
    edit_json(stranger / "rerank" / "linear" / "reranker.json", lambda record: record.update(change))
    with pytest.raises(ValueError, match="linear"):
        load_rerankers(stranger, "linear")


def test_a_parser_has_a_probability_for_each_pair(stranger):
    path = stranger / "rerank" / "parser" / "theta.safetensors"
    theta = load_file(path)["theta"]
    for wrong in (theta[1:], theta * -1, theta * np.nan, theta.astype(np.int64)):
        save_file({"theta": wrong}, path)
        with pytest.raises(ValueError, match=r"parser cannot be read \(theta.safetensors does not hold"):
            load_rerankers(stranger, "parser")


# Many changes, each in a process of its own, so that a crash is seen.


@pytest.fixture(scope="module")
def rich_index(tmp_path_factory, tokenizer_folder):
    """A tiny index with what the other lacks: SentencePiece, sparse terms, token vectors, codes, places, a cross-encoder."""
    folder = tmp_path_factory.mktemp("from a stranger, too")
    encoder = Encoder.load(EncoderConfig(name=str(save_encoder(folder / "xlm-roberta", "xlm-roberta"))), device="cpu")
    documents = datasets.Dataset.from_list(
        [
            {"doc_id": own["_id"], "title": own["title"], "text": own["text"], "number": row}
            for row, own in enumerate(RECORDS)
        ]
    )
    points = np.repeat(encoder.encode(documents["title"], "document"), 2, axis=0)
    made = build_tree(points, DocidsConfig(branching=4, max_leaf_size=4))
    tree = replace(made, doc_rows=made.doc_rows // 2, segments=2, tokens=random_tokens(100, np.random.default_rng(0)))
    tree = tree.stored_as(VectorsConfig("float32", code_bytes=WIDTH // 4))
    sparse = SparseModel.load(str(save_sparse_model(folder / "sparse", tokenizer_folder, inference_free=True)), "cpu")
    lexical = SparseIndex.from_texts(documents["doc_id"], documents["text"], sparse)
    config = SearchConfig(alpha=0.3, beam_width=12, lexical_weight=0.05, token_weight=0.1)
    generator = random_tied(tree, layers=1)
    GenerativeRetriever(encoder, tree, generator, documents, config, lexical).save_pretrained(folder / "index")
    cross_encoder = save_cross_encoder(folder / "cross-encoder", tokenizer_folder)
    save_reranker(CrossEncoderReranker(cross_encoder, device="cpu"), folder / "index", "pairs")
    return folder / "index"


@pytest.mark.parametrize("width", [0.5, 0, -1, 16, 64])
def test_an_encoder_of_another_width_is_named(index, width, tmp_path):
    folder = Path(shutil.copytree(index, tmp_path / "index"))
    edit_json(folder / "encoder" / "1_Pooling" / "config.json", lambda it: it.update(embedding_dimension=width))
    write_sums(folder)
    with pytest.raises(ValueError, match="restore") as error:
        GenerativeRetriever.from_pretrained(folder, device="cpu")
    assert str(folder) in str(error.value)


@pytest.fixture
def changing(index, tmp_path):
    """An index with which updates are tried, and what is next to it."""
    (tmp_path / "victim.txt").write_text("mine")
    return Path(shutil.copytree(index, tmp_path / "index"))


def save_an_update(folder):
    loaded = GenerativeRetriever.from_pretrained(folder, device="cpu")
    loaded.remove([loaded.documents.dataset["doc_id"][0]])
    loaded.save_update(folder)
    return GenerativeRetriever.from_pretrained(folder, device="cpu").search("gas", k=3)


LEFT = [".manifest.json.partial", ".docids-2.partial", ".lexical-2.previous", "docids-2", "pseudo_queries", "states"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in folders")
@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "pipe", "folder", "file"])
def test_what_a_stranger_left_for_an_update_harms_nothing(changing, tmp_path, name, kind):
    place = changing / name
    match kind:
        case "link":
            place.symlink_to(tmp_path / "victim.txt")
        case "dangling":
            place.symlink_to(tmp_path / "new.txt")
        case "loop":
            place.symlink_to(place)
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "file":
            place.write_text("")
    assert len(save_an_update(changing)) == 3
    assert (tmp_path / "victim.txt").read_text() == "mine"
    assert not (tmp_path / "new.txt").exists()
    assert not (changing / "manifest.json").is_symlink()


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux alone has such files")
@pytest.mark.parametrize(
    "name", ["docids/docids.safetensors", "lexical/terms.safetensors", "encoder/config.json", "manifest.json"]
)
def test_a_link_to_a_file_of_the_system_is_refused(changing, name):
    (changing / name).unlink()
    (changing / name).symlink_to("/proc/self/pagemap")
    with pytest.raises(ValueError, match=r"must be a regular file, and is one of the system"):
        GenerativeRetriever.from_pretrained(changing, device="cpu")


@pytest.mark.parametrize("parts", [{}, {"docids": "docids"}, {"lexical": "lexical"}])
def test_an_index_that_names_no_parts_can_be_updated_and_loaded_again(changing, parts):
    edit_json(changing / "manifest.json", lambda it: it.update(parts=parts))
    assert len(save_an_update(changing)) == 3


@pytest.mark.parametrize("name", ["docids-7/x", "states/x", "x/passwd", ".docids-2.partial/x"])
def test_a_manifest_lists_files_of_its_parts_alone(changing, name):
    edit_json(changing / "manifest.json", lambda it: it["files"].update({name: "0" * 64}))
    with pytest.raises(ValueError, match=r"manifest.json: files must lie in docids, encoder, generator, lexical"):
        GenerativeRetriever.from_pretrained(changing, device="cpu")


def test_documents_are_added_to_a_tree_of_which_nothing_was_trained(changing):
    path = changing / "docids" / "docids.safetensors"
    arrays = load_file(path)
    arrays["trained"] = np.zeros(len(arrays["first_child"]) + len(arrays["doc_rows"]), dtype=bool)
    save_file(arrays, path)
    write_sums(changing)
    with contextlib.suppress(ValueError):  # which the generator may not fit; then it is a line
        loaded = GenerativeRetriever.from_pretrained(changing, device="cpu")
        loaded.add([{"doc_id": "new", "title": "Neon", "text": "a noble gas"}])
        assert "new" in loaded.documents.rows


def test_a_reranker_behind_a_link_is_refused(changing, tmp_path):
    (changing / "rerank").rename(tmp_path / "elsewhere")
    (changing / "rerank").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="must be a folder, and is a link or lies below one"):
        load_rerankers(changing, "linear")


@pytest.mark.parametrize(("buckets", "distance"), [(4096, 1024), (0, 128), (32, 8), (32.0, 128)])
def test_distances_that_end_in_no_bucket_are_refused(changing, buckets, distance):
    change = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    edit_json(changing / "encoder" / "config.json", lambda it: it.update(change))
    write_sums(changing)
    with pytest.raises(ValueError, match="relative_attention_num_buckets"):
        GenerativeRetriever.from_pretrained(changing, device="cpu")


def assert_all_end_well(folder, edits):
    counts, bad = count_outcomes(folder, edits)
    assert not bad, f"{dict(counts)}\n" + "\n\n".join(bad)
    return counts


@pytest.mark.programs
def test_random_changes_are_errors_or_harmless(index, rich_index):
    for folder in (index, rich_index):
        counts = assert_all_end_well(folder, random_edits(folder, 15, seed=5))
        assert counts["fine"]
        assert counts["clear error"]


@pytest.mark.programs
def test_aimed_changes_are_errors_or_harmless(index, rich_index):
    for folder in (index, rich_index):
        assert assert_all_end_well(folder, list(aimed_edits(folder))[7::240])["clear error"]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(0, 10_000, 500))
def test_ten_thousand_random_changes_are_errors_or_harmless(index, rich_index, seed, capsys):
    folder = (index, rich_index)[seed // 500 % 2]
    counts = assert_all_end_well(folder, random_edits(folder, 500, 10_000 + seed))
    with capsys.disabled():
        sys.stdout.write(f"\n500 random changes from seed {10_000 + seed}: {dict(counts)}")


@pytest.mark.fuzz
@pytest.mark.parametrize("share", range(8))
def test_all_aimed_changes_are_errors_or_harmless(index, rich_index, share, capsys):
    for folder in (index, rich_index):
        edits = [*aimed_edits(folder), *part_edits(folder)][share::8]
        counts = assert_all_end_well(folder, edits)
        with capsys.disabled():
            sys.stdout.write(f"\n{len(edits)} aimed changes, share {share} of 8: {dict(counts)}")
