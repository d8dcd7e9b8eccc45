"""An index from elsewhere is judged before it is loaded: data alone, inside its folder, tried in a process that may be lost."""

import json
import os
import re
import shutil
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

import dsi
from dsi import SearchConfig
from dsi.__main__ import main
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files import reading
from dsi.docids.files.reading import sha256
from dsi.docids.words.bm25 import BM25
from dsi.store.folder import probe, verify
from dsi.store.folder.loading import load_documents
from tests.support.edits import QUERIES, count_ends, edit_json, edits, write_sums
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA

TREE, TERMS = "docids/docids.safetensors", "lexical/terms.safetensors"
RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:50]]


@pytest.fixture(scope="module")
def index(tmp_path_factory, sentence_t5_folder):
    from dsi.contrastive.config import EncoderConfig
    from dsi.contrastive.encoder import Encoder

    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), document_length=32), device="cpu")
    columns = {"doc_id": "_id", "title": "title", "text": "text"}
    documents = datasets.Dataset.from_dict({name: [record[key] for record in RECORDS] for name, key in columns.items()})
    tree = build_tree(encoder.encode(documents["title"], "document"), DocidsConfig(branching=4, max_leaf_size=4))
    bm25 = BM25(documents["doc_id"], documents["text"])
    retriever = from_parts(encoder, tree, None, documents, SearchConfig(lexical_weight=0.05), bm25)
    folder = tmp_path_factory.mktemp("index") / "index"
    retriever.save(folder)
    return folder


@pytest.fixture
def stranger(index, tmp_path, monkeypatch):
    """A copy to change, on a machine that remembers nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(index, tmp_path / "index"))


@pytest.fixture
def trials(monkeypatch):
    """{folder: trials}, which all succeed."""
    counts = Counter()
    monkeypatch.setattr(verify, "_try", lambda folder, seconds: counts.update([folder]))
    return counts


def load(folder):
    return dsi.load(folder, device="cpu")


def refused(folder):
    """The line with which an index is refused, though its sums fit."""
    write_sums(folder)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Who is tried.


def test_what_was_written_here_is_loaded_plainly_and_what_was_not_is_tried_once(index, stranger, trials, monkeypatch):
    load(stranger).search(QUERIES)
    load(stranger)
    assert trials == {stranger: 1}
    retriever = load(stranger)
    retriever.add([{"doc_id": "new", "title": "Neon", "text": "a noble gas"}])
    retriever.save(stranger)
    assert "new" in load(stranger).snapshot.documents.rows
    assert trials == {stranger: 1}
    verify.verify(stranger, again=True)
    assert trials == {stranger: 2}


def test_a_pass_is_of_the_files_not_of_the_folder(stranger, trials, tmp_path):
    load(stranger)
    load(shutil.copytree(stranger, tmp_path / "copy"))
    edit_json(stranger / "memory" / "config.json", lambda config: config.update(more=1))
    write_sums(stranger)
    load(stranger)
    assert trials == {stranger: 2}


def test_eight_workers_try_once(stranger, trials):
    with ThreadPoolExecutor(8) as pool:
        assert len([*pool.map(verify.verify, [stranger] * 8)]) == 8
    assert trials == {stranger: 1}


def test_without_a_place_to_remember_an_index_is_tried_again(stranger, trials, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    load(stranger)
    load(stranger)
    assert trials == {stranger: 2}
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    load(stranger)
    assert trials == {stranger: 3}


def test_only_the_last_manifests_are_remembered(stranger, trials, monkeypatch):
    monkeypatch.setattr(verify, "_REMEMBERED", 2)
    for number in range(5):
        edit_json(stranger / "manifest.json", lambda own: own.update(seed=number))  # noqa: B023
        load(stranger)
    assert len(verify.cache().read_text().split()) <= 4
    assert verify.is_known(sha256(stranger / "manifest.json"))


@pytest.fixture
def read(monkeypatch):
    """[names of the files that were read for their sums], all large, and none changed lately."""
    names, own = [], reading.sha256
    for module in (reading, verify):
        monkeypatch.setattr(module, "sha256", lambda path: names.append(path.name) or own(path))
    monkeypatch.setattr(verify, "_LARGE", 0)
    monkeypatch.setattr(verify, "_LATELY", 0)
    return names


def test_sums_are_computed_once_as_long_as_files_stay_and_always_for_verify(stranger, trials, read, tmp_path):
    load(stranger)
    assert "model.safetensors" in read
    read.clear()
    load(stranger)
    assert {*read} == {"manifest.json"}
    verify.verify(stranger, again=True)
    assert "model.safetensors" in read
    read.clear()
    load(shutil.copytree(stranger, tmp_path / "copy"))
    assert "model.safetensors" in read


def test_a_file_that_changes_is_read_again_whatever_its_time_says(stranger, trials, read):
    load(stranger)
    path = stranger / "encoder" / "model.safetensors"
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match=r"model.safetensors was altered or truncated"):
        load(stranger)


def test_a_file_that_changed_lately_is_read_each_time(stranger, trials, read, monkeypatch):
    monkeypatch.setattr(verify, "_LATELY", 10**18)
    load(stranger)
    read.clear()
    load(stranger)
    assert "model.safetensors" in read


# How a trial ends.


@pytest.mark.parametrize(
    ("child", "line"),
    [
        ("echo first >&2; echo the last line >&2; exit 1", "a process that tried it failed: the last line"),
        ("echo an omen >&2; kill -SEGV $$", "a process that tried it was ended by SIGSEGV: an omen"),
        ("exec sleep 60", "a process that tried it did not end within 1 seconds: it wrote nothing"),
    ],
)
def test_an_index_whose_trial_fails_is_refused_with_the_last_line(stranger, tmp_path, monkeypatch, child, line):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{child}\n")
    script.chmod(0o700)
    monkeypatch.setattr("dsi.store.folder.verify.sys.executable", str(script))
    monkeypatch.setattr(verify, "_BYTES_A_SECOND", 2**60)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(stranger))} is not loaded, because {line}$"):
        verify.verify(stranger, seconds=0.7)
    assert not verify.is_known(sha256(stranger / "manifest.json"))


@pytest.mark.programs
def test_the_command_tries_an_index_again_and_prints_what_it_found(stranger, capsys):
    assert main(["verify", str(stranger)]) == 0
    assert re.fullmatch(rf"{stranger}: \d+ files, \d+\.\d MB, generation 1; fine\n", capsys.readouterr().out)
    assert verify.is_known(sha256(stranger / "manifest.json"))
    path = stranger / "encoder" / "model.safetensors"
    save_file({name: array * np.float32(2) for name, array in load_file(path).items()}, path)
    write_sums(stranger)
    assert main(["verify", str(stranger)]) == 2
    assert re.search(r"because a process that tried it failed: .*encoder", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "array", "change", "line"),
    [
        (TREE, "doc_end", lambda own: own + 10**6, "docids cannot be read (its arrays"),
        (TREE, "embeddings", lambda own: own * np.float32(np.nan), "docids cannot be read (its arrays"),
        (TERMS, "indices", lambda own: own + 10**6, "lexical cannot be read (its arrays"),
        (TERMS, "indptr", lambda own: own[::-1].copy(), "lexical cannot be read (its arrays"),
        (TERMS, "indptr", lambda own: own[1:].copy(), "edges of the lists of"),
        (TERMS, "lengths", lambda own: own[1:].copy(), "lexical"),
    ],
)  # fmt: skip
def test_a_trial_checks_what_libraries_follow_unchecked(stranger, monkeypatch, name, array, change, line):
    monkeypatch.setattr("dsi.store.folder.loading.check_binding", lambda *arguments: None)  # a stranger makes it fit
    path = stranger / name
    arrays = load_file(path)
    save_file({**arrays, array: change(arrays[array])}, path)
    write_sums(stranger)
    with pytest.raises((ValueError, IndexError)) as caught:
        probe.try_index(stranger)
    assert line in str(caught.value)


def test_a_trial_validates_the_document_table(stranger):
    path = stranger / "docids" / "documents.arrow"
    data, text = bytearray(path.read_bytes()), RECORDS[3]["title"].encode()
    data[data.index(text)] = 0xFF  # not UTF-8
    path.write_bytes(data)
    write_sums(stranger)
    with pytest.raises(pa.ArrowInvalid, match="Invalid UTF8"):
        probe.try_index(stranger)


def test_memory_of_a_trial_is_limited_by_the_size_of_the_files(monkeypatch):
    resource, limits = pytest.importorskip("resource"), []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, own: limits.append(own[0]))
    for size in (0, 10**9):
        probe.limit_memory(size)
    assert limits[1] - limits[0] == pytest.approx(8e9, rel=0.1)
    assert limits[0] > 8 * 2**30


# What is data.


@pytest.mark.parametrize(
    "name", ["encoder/pytorch_model.bin", "memory/x.PT", "lexical/a.pkl", "docids/m.npz", "encoder/modeling.py"]
)
def test_files_other_than_data_are_refused_by_name(stranger, name):
    (stranger / name).write_bytes(b"")
    assert f"{stranger / name} is not read from an index, whose files end in .json, .arrow, .safetensors" in refused(
        stranger
    )


def test_a_file_that_the_manifest_does_not_list_is_refused(index, stranger, trials):
    load(stranger)
    (stranger / "encoder" / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"adapter_config.json is not in the manifest of the index; remove it"):
        load(stranger)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"auto_map": {"AutoModel": "evil.Model"}}),
        ("config.json", {"_attn_implementation": "evil/kernels"}),
        ("config.json", {"backbone": "evil/model", "use_pretrained_backbone": True}),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}),
        ("config.json", {"text_config": {"_name_or_path": "evil/model"}}),
        ("1_Pooling/config.json", {"activation_function": "torch.hub.load"}),
        ("1_Pooling/config.json", {"activation_function": "torch.nn.modules.module.Module"}),
        ("1_Pooling/config.json", {"tokenizer_class": "sentence_transformers.util.http_get"}),
        ("sentence_bert_config.json", {"model_args": {"gguf_file": "x"}}),
        ("sentence_bert_config.json", {"modality_config": {"text": {"method": "push_to_hub"}}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}),
        ("tokenizer_config.json", {"chat_template": "{% for a in range(10**9) %}"}),
        ("tokenizer_config.json", {"tokenizer_file": "/etc/passwd"}),
        ("tokenizer_config.json", {"vocab_file": "secret.txt"}),
        ("model.safetensors.index.json", {"weight_map": {"x": "../../x.safetensors"}}),
        ("adapter_config.json", {"base_model_name_or_path": "evil/model"}),
    ],
)
def test_settings_that_choose_code_or_other_files_are_refused(stranger, trials, file, change):
    path = stranger / "encoder" / file
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **change}))
    assert f"{path} cannot be in an index: it " in refused(stranger)
    assert not trials


@pytest.mark.parametrize(
    "name", ["evil.Normalize", "os.system", "sentence_transformers.evil.Evil", "sentence_transformers.util.http_get"]
)
def test_a_module_that_is_not_of_sentence_transformers_is_not_imported(stranger, tmp_path, monkeypatch, trials, name):
    monkeypatch.syspath_prepend(stranger / "encoder")
    edit_json(stranger / "encoder" / "modules.json", lambda modules: modules[2].update(type=name))
    assert f"modules.json cannot be in an index: it names the code '{name}'" in refused(stranger)
    assert not trials


@pytest.mark.parametrize("place", ["../../secrets", "/etc", "C:\\x"])
def test_a_module_lies_in_its_model(stranger, trials, place):
    edit_json(stranger / "encoder" / "modules.json", lambda modules: modules[1].update(path=place))
    assert "modules.json cannot be in an index: it names" in refused(stranger)


def test_links_out_of_the_folder_and_what_is_no_file_are_refused(index, stranger, tmp_path, trials):
    path = stranger / "docids" / "documents.arrow"
    path.rename(tmp_path / "blob.arrow")
    path.symlink_to(tmp_path / "blob.arrow")
    assert f"{path} is a link out of the index" in refused(stranger)
    path.unlink()
    path.symlink_to("/proc/kmsg")
    with pytest.raises(ValueError, match=r"documents.arrow must be a regular file"):
        load(stranger)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"documents.arrow must be a regular file"):
        load(stranger)
    path.unlink()
    (stranger / "encoder" / "deeper").symlink_to("/")
    with pytest.raises(ValueError, match="deeper must be a folder, and is a link to one"):
        load(stranger)


def test_a_link_in_the_cache_of_the_hub_is_followed(stranger, tmp_path, trials):
    repository = tmp_path / "models--user--index"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    folder = Path(shutil.move(stranger, repository / "snapshots" / "abc"))
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        path.rename(repository / "blobs" / str(number))
        path.symlink_to(repository / "blobs" / str(number))
    elsewhere = Path(shutil.move(repository / "snapshots", repository / "elsewhere"))
    assert "is a link out of the index" in refused(elsewhere / "abc")
    shutil.move(elsewhere, repository / "snapshots")
    assert len(load(folder).snapshot.documents) == 50


def test_a_column_does_not_name_files(tmp_path):
    """A table's metadata may say that a column holds names of images, which would be opened."""
    table = datasets.Dataset.from_dict({"doc_id": ["a"], "title": ["b"], "x": [{"bytes": None, "path": "/etc/passwd"}]})
    table = table.cast_column("x", datasets.Image()) if hasattr(datasets, "Image") else table
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.data.schema) as writer:
        writer.write_table(table.data.table)
    assert load_documents(tmp_path / "x.arrow")["x"][0].as_py() == {"bytes": None, "path": "/etc/passwd"}


# Edits that reach the trial.


def assert_all_end_well(folder, changes):
    counts, bad = count_ends(folder, changes)
    assert not bad, f"{dict(counts)}\n" + "\n\n".join(bad)
    return counts


@pytest.mark.programs
def test_a_dozen_edits_end_as_fine_or_in_one_line(index):
    counts = assert_all_end_well(index, edits(index, 12, seed=5))
    assert counts["clear line"]
    assert counts["fine"] + counts["probe's line"]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(0, int(os.environ.get("DSI_CASES", "10000")), 500))
def test_edits_end_as_fine_or_in_one_line(index, seed, capsys):
    counts = assert_all_end_well(index, edits(index, 500, 10_000 + seed))
    with capsys.disabled():
        print(f"\n500 edits from seed {10_000 + seed}: {dict(counts)}")  # noqa: T201


def test_a_crash_in_the_users_process_would_be_seen(index, monkeypatch):
    monkeypatch.setattr("tests.support.edits._use", lambda folder: os.kill(os.getpid(), signal.SIGKILL))
    counts, bad = count_ends(index, edits(index, 1, seed=0))
    assert counts == {"crash": 1}
    assert "status -9" in bad[0]
