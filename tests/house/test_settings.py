"""Settings that cannot work are refused before a training starts, one that diverges ends, and [search] reaches the index."""

import dataclasses
import json
import math
import shutil
import sys

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

import dsi
from dsi.commands.arguments import with_settings
from dsi.commands.main import main
from dsi.commands.values import setting
from dsi.config import Config, all_settings, read_config
from dsi.contrastive import training as contrastive_training
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.files import checks
from dsi.training import pipeline
from dsi.training.pipeline import TrainingRun
from dsi.training.preflight import check_settings
from tests.support.foreign import install
from tests.support.small import PROMPTS
from tests.support.tiny_settings import write_settings

EVERY = [
    (section, name, value)
    for section, settings in dataclasses.asdict(Config()).items()
    for name, value in (settings.items() if isinstance(settings, dict) else [("", settings)])
]
"""(section, name, value) of every setting of `Config()`; those of no section have an empty name."""
NUMBERS = [
    (section, name) for section, name, value in EVERY if isinstance(value, int | float) and not isinstance(value, bool)
]
MAY_BE_ZERO = {
    "seed", "dev_queries", "dev_untaught", "text_megabytes", "docids.branching",
    "docids.pieces", "contrastive.negatives", "tokens.bits", "tokens.epochs", "generator.num_layers",
    "training.epochs", "search.alpha", "search.beta",
    "search.lexical_weight", "search.token_weight", "search.memory_weight",
}  # fmt: skip
TOO_DEEP = "is nested too deeply" if sys.version_info >= (3, 14) else r"alpha must be a number, got \{'a': .*\.\.\."
"""Of thousands of tables, each in the one before."""
MAY_BE_HUGE = {"contrastive.learning_rate", "training.learning_rate", "search.beta"}
"""A learning rate too large ends the training; levels have no largest value."""
MAY_BE_INFINITE = {"search.beta"}
"""All levels."""


@pytest.mark.parametrize(
    ("wrong", "accepted"),
    [(-1, set()), (0, MAY_BE_ZERO), (2**40, MAY_BE_HUGE), (math.nan, set()), (math.inf, MAY_BE_INFINITE)],
)
def test_every_number_of_a_configuration_has_a_range(wrong, accepted):
    for section, name in NUMBERS:
        changes = {section: {name: wrong} if name else wrong}
        if (f"{section}.{name}" if name else section) in accepted:
            Config().with_changes(changes)
            continue
        with pytest.raises(ValueError, match=rf"^({section}[.:] ?)?{name or section} ") as raised:
            Config().with_changes(changes)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 2**40, "3", None, True])
def test_a_range_holds_in_python_too(value):
    """Also where TOML's types are not checked first."""
    for section in (getattr(Config(), field.name) for field in dataclasses.fields(Config)):
        for field in dataclasses.fields(section) if dataclasses.is_dataclass(section) else ():
            if type(getattr(section, field.name)) is int:
                with pytest.raises(ValueError, match=field.name):
                    dataclasses.replace(section, **{field.name: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 4294967296", "seed must be at most 1000000000, got 4294967296"),
        (f"seed = {'9' * 30}", "seed must be at most 1000000000, got an integer of 100 bits"),
        (f"seed = {'9' * 5000}", "is not valid TOML: Exceeds the limit"),
        (f"seed = 0x{'f' * 9000}", "got an integer of 36000 bits"),
        (f"seed = [0x{'f' * 9000}]", r"seed must be an integer, got \[an integer of 36000 bits\]"),
        (f"[training]\nepochs = 1{'0' * 400}", "epochs must be a number that a float can hold"),
        ("[training]\nepochs = -1", "training.epochs must be at least 0, got -1"),
        ("[contrastive]\nepochs = 0", 'contrastive.epochs must be above 0, got 0.0; loss = "none" keeps the encoder'),
        ("[contrastive]\nlearning_rate = inf", "contrastive.learning_rate must be finite, got inf"),
        ("[search]\nann_temperature = inf", "ann_temperature must be between 1e-6 and 1e6, got inf"),
        ("[search]\nlexical_weight = inf", "lexical_weight must be between 0 and 1e6, got inf; 0 leaves it out"),
        ("[generator]\nnum_layers = -4", "generator.num_layers must be between 0 and 1000, got -4"),
        ("[generator]\ndecoder = 3", "generator.decoder must be a string, got 3"),
        ("[contrastive]\ntemperature = inf", "contrastive.temperature must be between 1e-6 and 1e6, got inf"),
        (f"a = {'[' * 5000}{']' * 5000}", "is nested too deeply"),
        (f"[search]\nalpha{'.a' * 5000} = 1", TOO_DEEP),
        (f'[search]\nmethod = "{"x" * 5000}"', r"method must be one of generate, exact, got 'x+\.\.\.x+'"),
        ('[encoder]\nname = ""', "encoder.name must name a sentence-transformers model .* got ''"),
        ('[encoder]\nname = "\\ud800"', "is not valid TOML: Escaped character"),
        ('[encoder]\nname = "a\\u0000b"', r"encoder.name must be text without NUL characters, got 'a\\x00b'"),
        ('[pseudo_queries]\nmethod = " "', "pseudo_queries.method must name"),
        ("[encoder]\nname = '\udcff'", "is not valid TOML: 'utf-8' codec"),
    ],
    ids=range(22),
)  # fmt: skip
def test_what_a_file_may_not_say_is_one_line(text, message, tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=message) as raised:
        read_config(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_every_setting_is_declared_once_with_its_meaning_and_default():
    declared = all_settings()
    assert len(declared) <= 59
    assert all(len(setting.meaning) > 5 for setting in declared)
    flat = {f"{section}.{name}".strip("."): value for section, name, value in EVERY}
    assert {setting.section + setting.name: setting.default for setting in declared} == flat


def test_a_text_from_python_is_one_that_files_can_hold():
    with pytest.raises(
        ValueError, match=r"encoder.query_prompt must be Unicode text, got the lone surrogate '\\ud800'"
    ):
        EncoderConfig(query_prompt="a\ud800")


def test_a_value_in_a_message_is_short():
    nested: list[object] = []
    for _ in range(10 * sys.getrecursionlimit()):
        nested = [nested]
    for value in (nested, "x" * 10**6, 10**10_000, {"a": [10**10_000]}, list(range(10**6)), "a\nb"):
        assert len(checks.shown(value)) < 250
        assert "\n" not in checks.shown(value)
    assert checks.shown(2**64 - 1) == str(2**64 - 1)


# What can be checked before the first stage.

SCHEME: dict[str, object] = {"branching": 0, "max_leaf_size": 20}
QUICK: dict[str, dict[str, object]] = {"contrastive": {"loss": "none"}, "training": {"epochs": 1.0}}


@pytest.fixture
def settings(tmp_path, sentence_t5_folder, t5_folder):
    return read_config(write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"docids": {"branching": 41}}, ValueError, "40 documents, fewer than docids.branching = 41"),
        ({"generator": {"decoder": "/no/t5"}}, FileNotFoundError, "generator.decoder names the folder /no/t5"),
        (
            {"generator": {"decoder": "./t5"}},
            FileNotFoundError,
            "generator.decoder names the folder ./t5, which does not",
        ),
        (
            {"encoder": {"name": "../a/b"}},
            FileNotFoundError,
            "encoder.name names the folder ../a/b, which does not exist",
        ),
        ({"pseudo_queries": {"method": "/no/t5"}}, FileNotFoundError, "pseudo_queries.method names the folder /no/t5"),
        (
            {"docids": SCHEME | {"method": "gone"}},
            ValueError,
            r"scheme 'gone' \(no_such_module:make\) cannot be loaded",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_refused_before_the_first_stage(
    changes, error, message, settings, beir, tmp_path, monkeypatch
):
    install(tmp_path / "site", monkeypatch, gone="no_such_module:make")
    with pytest.raises(error, match=message):
        dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=settings.with_changes(changes), device="cpu")
    assert not (tmp_path / "run" / "pseudo_queries").exists()


def test_pieces_count_as_documents_for_branching(settings, beir):
    check_settings(settings.with_changes({"docids": {"branching": 41, "pieces": 2}}), dsi.read_collection(beir()))


def test_documents_alone_take_a_config_too_and_the_encoder_stays_as_it_is(settings, beir, tmp_path, caplog):
    collection = dsi.read_collection(beir())
    collection.qrels["train"].clear()
    alone = settings.with_changes({"dev_queries": 0})
    retriever = dsi.train(collection, tmp_path / "run", config=alone, device="cpu")
    assert "has no train queries: the encoder stays as it is." in caplog.text
    assert len(retriever.search("noble gas", k=3)) == 3
    with pytest.raises(ValueError, match="There are no queries to train the encoder on"):  # where a run trains it
        TrainingRun(tmp_path / "other", collection, settings, "cpu").train()
    assert not (tmp_path / "other" / "pseudo_queries").exists()


FRESH: dict[str, object] = {"decoder": "", "num_layers": 1}


@pytest.mark.parametrize(
    ("generator", "error", "message"),
    [
        ({"num_layers": 3}, ValueError, "ask for fewer num_layers"),
        (
            {"decoder": "t5/none"},
            FileNotFoundError,
            "generator.decoder 't5/none' cannot be loaded .*name the folder or Hub name",
        ),
    ],
)
def test_a_decoder_that_does_not_fit_the_encoder_is_refused_before_it_is_trained(
    generator, error, message, settings, beir, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "train_encoder", lambda *_, **__: pytest.fail("the encoder was trained"))
    changes = {"generator": generator}
    with pytest.raises(error, match=message) as raised:
        TrainingRun(tmp_path / "run", dsi.read_collection(beir()), settings.with_changes(changes), "cpu").run_stages()
    assert "\n" not in str(raised.value)


def test_an_encoder_that_an_index_may_not_hold_is_refused_before_it_is_trained(
    settings, sentence_t5_folder, beir, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "train_encoder", lambda *_, **__: pytest.fail("the encoder was trained"))
    monkeypatch.setattr("dsi.contrastive.model_files._may_import", lambda name: False)  # as for a module of a user
    config = settings.with_changes({"encoder": {"name": str(sentence_t5_folder)}})
    with pytest.raises(
        ValueError, match=r"cannot be part of an index: modules.json cannot be in an index: it names the code"
    ):
        dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=config, device="cpu")


# Trainings that diverge.


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("contrastive", {}),
        ("training", {}),
    ],
)
def test_a_training_that_diverges_ends_with_the_step_and_the_loss(
    section, changes, beir, tmp_path, sentence_t5_folder, t5_folder
):
    path = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **changes)
    config = read_config(path).with_changes({} if section == "contrastive" else QUICK)
    config = config.with_changes({section: {"learning_rate": 1e20}})
    message = rf"The training diverged at step \d+: .*; lower {section}.learning_rate \(1e\+20\)"
    with pytest.raises(ValueError, match=message):
        dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=config, device="cpu")
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("step", "loss", "message"), [(17, math.nan, "step 17: the loss is nan"), (3, math.inf, "is inf")]
)
def test_the_first_step_that_is_not_finite_is_named(step, loss, message):
    class Steps:
        def training_step(self, number):
            return torch.tensor(loss if number >= step else 1.0)

    class Training(contrastive_training.FiniteTraining, Steps):
        remedy = "lower training.learning_rate ({rate:g})"
        args = type("Arguments", (), {"learning_rate": 2.0})
        state = type("State", (), {"global_step": 0, "logging_steps": 5})

    training = Training()
    for number in range(1, step):
        training.training_step(number)
        training.state.global_step = number
    with pytest.raises(ValueError, match=rf"{message}; lower training.learning_rate \(2\)"):
        training.training_step(step)


# [search] of a trained index.


@pytest.mark.parametrize("tune", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_changed_search_section_reaches_the_index(tune, settings, beir, tmp_path, monkeypatch):
    collection, run = dsi.read_collection(beir()), tmp_path / "run"
    settings = settings.with_changes(QUICK | {"dev_queries": 500 if tune else 0, "search": {"alpha": 0.3}})
    before = dsi.train(collection, run, config=settings, device="cpu").search_config
    monkeypatch.setattr("dsi.generator.stage.GeneratorStage.train", lambda *_: pytest.fail("it was trained again"))
    changed = settings.with_changes({"search": {"beam_width": 33}})
    retriever = dsi.train(collection, run, config=changed, device="cpu")
    if tune:  # with the wider beam
        assert retriever.search_config.beam_width == 33
        assert json.loads((run / "tuning.json").read_text())["best"]["alpha"] == retriever.search_config.alpha
    else:
        assert before == settings.search
        assert retriever.search_config == changed.search
    again = dsi.train(collection, run, config=changed, device="cpu")  # up to date, and tuned weights are kept
    assert again.search_config == retriever.search_config


def test_what_dsi_tune_chose_stays_until_the_section_changes(settings, beir, tmp_path):
    data, run = beir(), tmp_path / "run"
    collection, settings = (
        dsi.read_collection(data),
        settings.with_changes(QUICK | {"dev_queries": 0, "search": {"alpha": 0.93}}),
    )
    dsi.train(collection, run, config=settings, device="cpu")
    assert main(["tune", str(run), str(data), "--device", "cpu"]) == 0
    tuned = dsi.train(collection, run, config=settings, device="cpu").search_config
    assert tuned.alpha != 0.93
    changed = settings.with_changes({"search": {"beam_width": 33}})
    assert dsi.train(collection, run, config=changed, device="cpu").search_config == changed.search


# Loading.


@pytest.mark.parametrize("shown", [True, False])
def test_loading_shows_no_bar_and_leaves_the_settings_of_transformers(shown, sentence_t5_folder, tmp_path, capsys):
    """In either state; with huggingface_hub's bars in the other one."""
    before, hub_before = transformers_logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    shutil.copytree(sentence_t5_folder, tmp_path / "encoder")
    try:
        (transformers_logging.enable_progress_bar if shown else transformers_logging.disable_progress_bar)()
        disable_progress_bars()
        Encoder.load(EncoderConfig(), tmp_path / "encoder", "cpu")
        Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
        assert transformers_logging.is_progress_bar_enabled() == shown
        assert are_progress_bars_disabled()
    finally:
        (transformers_logging.enable_progress_bar if before else transformers_logging.disable_progress_bar)()
        (disable_progress_bars if hub_before else enable_progress_bars)()
    assert "Loading weights" not in capsys.readouterr().err


@pytest.mark.parametrize("turned", [1, -1])
def test_settings_that_go_together_are_given_in_any_order(turned):
    config = with_settings(Config(), [("lexical", "model", "none"), ("search", "lexical_weight", 0.0)][::turned])
    assert (config.lexical.model, config.search.lexical_weight) == ("none", 0.0)


def test_settings_are_named_as_on_the_command_line_too():
    assert Config().with_changes({"docids.max_leaf_size": 3, "docids": {"branching": 4}}).docids.max_leaf_size == 3
    with pytest.raises(ValueError, match=r"'docids.max_leaf' is not a setting; did you mean 'docids.max_leaf_size'\?"):
        Config().with_changes({"docids.max_leaf": 3})
    with pytest.raises(
        TypeError, match=r"must be a name, a file or a Config, got \{'seed': 1\}; Config\(\).with_changes"
    ):
        Config.named({"seed": 1})


def test_a_section_is_given_a_value_or_settings(tmp_path, capsys):
    call = ["train", "minipedia", str(tmp_path / "run")]
    for given in (["training=5", "training.epochs=3"], ["seed=3", "seed.x=3"]):
        assert main([*call, "--set", given[0], "--set", given[1]]) == 2
        assert f"--set gives '{given[0].partition('=')[0]}' a value and settings" in capsys.readouterr().err
    assert setting("training.epochs=3\nfoo=2") == ("training", "epochs", "3\nfoo=2")
