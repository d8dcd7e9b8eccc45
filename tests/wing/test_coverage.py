"""The test of whether an index knows that it lacks the answer: its measures by hand, and a small run from end to end."""

import json
import shutil

import numpy as np
import pytest
from dsi_experiments import coverage

import dsi
from tests.support.small import write_collection


def test_more_of_a_signal_never_makes_an_answer_less_likely():
    rng = np.random.default_rng(0)
    labels = np.repeat([1.0, 0.0], 200)
    signals = np.stack([labels + rng.normal(0, 1, 400), -labels + rng.normal(0, 1, 400), np.ones(400)], axis=1)
    model = coverage.Monotone.fit(signals, labels)
    assert model.weights[1] > 0.5
    assert model.weights[2:].tolist() == [0, 0]
    found = model.probabilities(signals)
    assert found.mean() == pytest.approx(0.5, abs=0.01)
    assert np.all(np.diff(found[np.argsort(signals[:, 0])]) >= 0)


def test_a_threshold_is_the_lowest_that_keeps_what_is_promised():
    probabilities, labels = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4]), np.array([1.0, 1, 1, 0, 1, 0])
    assert coverage.threshold(probabilities, labels) == 0.5  # 4 of 5
    assert coverage.threshold(probabilities, 0 * labels) == np.inf


def test_calibration_and_abstention_by_hand():
    assert coverage.calibration_error(np.array([0.95, 0.95, 0.05, 0.05]), np.array([1.0, 0, 0, 0])) == pytest.approx(
        0.25
    )
    values = np.linspace(0, 1, 50)
    assert coverage.abstention(values, values) == pytest.approx(1)
    assert coverage.abstention(-values, values) < -0.5
    assert coverage.abstention(values, np.ones(50)) == 0


def test_two_collections_are_measured_once_and_judged(sentence_bert_folder, tmp_path):
    shutil.copytree(write_collection(tmp_path / "data" / "a"), tmp_path / "data" / "b")
    config = dsi.Config().with_changes({"encoder.name": str(sentence_bert_folder)})
    text = coverage.reproduce(tmp_path / "data", tmp_path / "out", [0], config)
    record = json.loads((tmp_path / "out" / "coverage.json").read_text())
    assert record["collections"]["a"]["systems"].keys() == {"model", *coverage.RIVALS}
    assert record["collections"]["a"]["systems"]["score"]["AUROC"] >= 0.5
    assert "Not passed." in text
    before = (tmp_path / "out" / "coverage" / "a.json").stat().st_mtime_ns
    assert coverage.reproduce(tmp_path / "data", tmp_path / "out", [0], config) == text
    assert (tmp_path / "out" / "coverage" / "a.json").stat().st_mtime_ns == before
