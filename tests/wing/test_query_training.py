"""The command that trains a query generator."""

from dsi_experiments.commands.train_query_generator import _SETTINGS
from dsi_experiments.query_training import QueryTrainingConfig


def test_train_query_generator_has_the_defaults_of_its_config():
    assert (
        QueryTrainingConfig(**{name: default for name, (_, default, _) in _SETTINGS.items()}) == QueryTrainingConfig()
    )
