"""Golden indexes: every format that was ever released is read, and answers as it did when it was written."""

import json

import pytest

from dsi.store.folder.manifest import FORMAT_VERSION, read_manifest
from tests.support.golden import FOLDER, answers, load_golden

FORMATS = sorted(FOLDER.iterdir(), key=lambda folder: int(folder.name))
KEPT = ("doc_id", "digits")


def test_the_current_format_has_a_golden_index():
    assert FORMATS[-1].name == str(FORMAT_VERSION), "write it: python -m tests.support.golden"
    assert sum(path.stat().st_size for path in FORMATS[-1].rglob("*")) < 300_000


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: f"format {folder.name}")
@pytest.mark.programs
def test_a_golden_index_answers_as_it_did(folder):
    expected = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    found = json.loads(json.dumps(answers(load_golden(folder))))
    assert [[len(hits) for hits in call] for call in found] == [[len(hits) for hits in call] for call in expected]
    for call, before in zip(found, expected, strict=True):
        for hits, recorded in zip(call, before, strict=True):
            assert [[hit[name] for name in KEPT] for hit in hits] == [[hit[name] for name in KEPT] for hit in recorded]
            assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in recorded], abs=1e-4)


def test_a_manifest_says_what_the_index_was_made_with():
    manifest = read_manifest(FORMATS[-1] / "index")
    packages = {"python", "dr-scl", "torch", "transformers", "sentence-transformers", "faiss-cpu", "numpy", "blas"}
    assert packages <= manifest["versions"].keys()
    assert "openblas" in manifest["versions"]["blas"]
    assert manifest["generation"] == 2


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, FORMAT_VERSION - 1, "5", None])
def test_an_index_of_another_format_is_refused_in_one_line(version, tmp_path):
    path = tmp_path / "manifest.json"
    manifest = json.loads((FORMATS[-1] / "index" / "manifest.json").read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, "format_version": version}), encoding="utf-8")
    with pytest.raises(ValueError, match="format version") as error:
        read_manifest(tmp_path)
    assert str(error.value) == (
        f"{path} has format version {version}, this version reads {FORMAT_VERSION}; "
        "install the version that wrote it or train again."
    )
