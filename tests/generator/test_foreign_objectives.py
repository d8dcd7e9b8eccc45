"""An index whose training objective another package brings: trained end to end, and opened without the package."""

import json
import re
import sys
from pathlib import Path

import pytest

import dsi
from dsi.commands.main import main
from dsi.config import TrainingConfig, read_config
from dsi.docids.extensions import OBJECTIVES
from dsi.generator.objectives import find_objective
from tests.support.foreign import install
from tests.support.small import thin_out
from tests.support.tiny_settings import write_settings

PAGE = (
    (Path(__file__).parents[2] / "CONTRIBUTING.md")
    .read_text(encoding="utf-8")
    .partition("## Add a training objective")[2]
)
SMOOTH = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
"""The objective of CONTRIBUTING, "smooth"."""
OTHERS = """
from dsi.generator.objectives import Objective
class Beam(Objective):
    score, training_beam, frozen_encoder = "node", 4, True
    def loss(self, model, batch, done): ...
class Lossless(Objective):
    score = "node"
class NoScore(Objective): ...
class Strange(Objective):
    score = "magic"
def function(): ...
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with objectives; returns its folder."""
    site = tmp_path / "site"
    places = {"beam": "Beam", "blank": "NoScore", "empty": "Lossless", "function": "function", "strange": "Strange"}
    points = {"smooth": "smooth:Smooth", **{name: f"other_objectives:{place}" for name, place in places.items()}}
    install(site, monkeypatch, group=OBJECTIVES, gone="no_such_module:Objective", **points)
    (site / "smooth.py").write_text(SMOOTH)
    (site / "other_objectives.py").write_text(OTHERS)
    yield site
    for name in ("smooth", "other_objectives"):
        sys.modules.pop(name, None)


def test_an_index_is_trained_with_a_foreign_objective_and_searched_without_it(
    package, beir, tmp_path, sentence_t5_folder, t5_folder, capsys
):
    assert len(SMOOTH.strip().splitlines()) <= 12
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0, training={"objective": "smooth"},
        contrastive={"loss": "none"}, pseudo_queries={"method": "none"},
        search={"beta": 0.0, "alpha": 1.0, "beam_width": 20},
    )  # fmt: skip
    data, run = thin_out(beir(), dev=6, test=6), tmp_path / "run"
    collection = dsi.read_collection(data)
    retriever = dsi.train(collection, run, config=read_config(config), device="cpu")
    texts = list(collection.query_texts("test").values())
    expected = retriever.search(texts, k=5)
    record = json.loads((run / "generator" / "config.json").read_text())
    assert (record["objective"], record["score"], record["training_beam"]) == ("smooth", "softmax path", 0)

    package.rename(tmp_path / "elsewhere")
    again = dsi.load(run, device="cpu").search(texts, k=5)
    assert [[(hit.doc_id, hit.score) for hit in hits] for hits in again] == [
        [(hit.doc_id, hit.score) for hit in hits] for hits in expected
    ]
    common = [str(run), str(data), "--device", "cpu"]
    assert main(["evaluate", *common, "--results", str(tmp_path / "results.json")]) == 0
    assert "smooth" in json.loads((tmp_path / "results.json").read_text())["config"]
    assert main(["tune", *common]) == 0
    capsys.readouterr()
    assert main(["train", str(data), str(run), "--device", "cpu"]) == 2
    printed = capsys.readouterr().err
    assert "training.objective must be one of ce, " in printed
    assert "got 'smooth'; install it, or pass objective=Class" in printed


def test_foreign_objectives_have_names_and_are_checked(package):
    assert find_objective("beam").training_beam == 4
    for name, message in (
        ("smoth", r"training.objective must be one of ce, .*smooth.*, got 'smoth'"),
        (
            "function",
            r"'function' must be a subclass of dsi.generator.objectives.Objective, got <function",
        ),
        ("strange", r"The score of objective 'strange' must be one of softmax path, .*, got 'magic'"),
        ("blank", r"The score of objective 'blank' must be one of .*, got None"),
        ("empty", r"The objective 'empty' must define loss"),
        ("gone", r"The objective 'gone' \(no_such_module:Objective\) cannot be loaded: No module named"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainingConfig(objective=name)
    TrainingConfig(objective="smooth", epochs=1.0, train_encoder=True)
    with pytest.raises(ValueError, match=r"'beam' reads the encoder's states .* use another objective"):
        TrainingConfig(objective="beam", epochs=1.0, train_encoder=True)


def test_an_index_is_trained_again_with_another_version_of_the_package(
    package, beir, tmp_path, sentence_t5_folder, t5_folder, monkeypatch
):
    from dsi.training.pipeline import TrainingRun

    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0,
        contrastive={"loss": "none"}, pseudo_queries={"method": "none"},
        training={"epochs": 1.0, "objective": "smooth"},
    )  # fmt: skip
    run = TrainingRun(tmp_path / "run", dsi.read_collection(beir()), read_config(config), "cpu")
    run.train()
    run.seconds.clear()
    run.run_stages()
    assert "generator" not in run.seconds
    install(package, monkeypatch, "2.0", OBJECTIVES, smooth="smooth:Smooth")
    run.run_stages()
    assert "generator" in run.seconds
