"""Docid tokens that are words of a T5: its rows, its logits, titles that share a word, files, what is refused."""

import json

import numpy as np
import pytest
import torch
from dsi_experiments.generators.words import WordGenerator, node_numbers
from safetensors.torch import load_file, save_file
from transformers import T5ForConditionalGeneration

from dsi.commands.main import main
from dsi.config import Config, GeneratorConfig
from dsi.docids import extensions
from dsi.docids.files.reading import reading
from dsi.docids.schemes.file import write_docids
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.kinds import create_generator, load_generator
from dsi.generator.objectives import CrossEntropy, Task
from dsi.generator.stage import read_numbers
from tests.support.small import WIDTH, random_queries
from tests.support.tiny_settings import write_settings
from tests.support.word_docids import TITLES, log_p_of_t5, title_tree, word_generator

CPU = torch.device("cpu")


@pytest.fixture
def titles(t5_folder) -> tuple[DocidTree, Ints]:
    return title_tree(t5_folder)


@pytest.fixture
def generator(titles, t5_folder) -> WordGenerator:
    return word_generator(*titles, t5_folder)


def test_all_nodes_of_a_word_share_the_rows_that_t5_has_for_it(titles, generator, t5_folder):
    tree, numbers = titles
    t5, names = T5ForConditionalGeneration.from_pretrained(str(t5_folder)), node_numbers(tree, numbers)
    depths = np.concatenate([np.full(level.stop - level.start, depth) for depth, level in enumerate(tree.levels)])
    several = 0
    for token in set(names[names >= 0].tolist()):
        nodes = np.flatnonzero(names == token)
        (row,) = set(generator.rows[nodes.tolist()].tolist())
        assert torch.equal(generator.decoder.embed_tokens.weight[row], t5.shared.weight[token])
        torch.testing.assert_close(generator.head.weight[row], t5.lm_head.weight[token] * WIDTH**-0.5)
        several += len(set(depths[nodes[nodes < tree.num_inner]].tolist())) > 1
    assert several  # at least one word stands at several levels
    assert torch.equal(generator.decoder.embed_tokens.weight[0], t5.shared.weight[0])  # the start token
    assert generator.config.vocab_size < len(generator.rows) < len(t5.shared.weight)


def test_an_untrained_generator_gives_titles_the_probabilities_of_t5(titles, generator, t5_folder):
    (tree, numbers), (states, mask, _) = titles, random_queries(3)
    expected = log_p_of_t5(t5_folder, tree, numbers, states, mask)
    torch.testing.assert_close(expected.exp().sum(dim=1), torch.ones(3))
    objective = CrossEntropy(Task(generator, tree))
    for document in range(tree.num_places):
        batch = {"token_states": states, "states_mask": mask, "relevant": torch.full((3, 1), document)}
        assert objective.loss(generator, batch, 0.0).item() == pytest.approx(
            -expected[:, document].mean().item(), abs=1e-4
        )


def test_training_moves_the_shared_rows_and_files_keep_them(titles, generator, tmp_path):
    (tree, _), (states, mask, _) = titles, random_queries(3)
    batch = {"token_states": states, "states_mask": mask, "relevant": torch.tensor([[1], [5], [0]])}
    CrossEntropy(Task(generator, tree)).loss(generator, batch, 0.0).backward()
    assert generator.decoder.embed_tokens.weight.grad.abs().sum() > 0
    assert generator.head.weight.grad.abs().sum() > 0
    generator.save_pretrained(str(tmp_path / "generator"))
    loaded = load_generator(tmp_path / "generator", "cpu")
    loaded.check_tree(tree)
    for name, value in generator.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    path = tmp_path / "generator" / "model.safetensors"
    for name, value in (("rows", 10**6), ("rows", -1), ("num_children", 10**9), ("first_child", -5)):
        weights = load_file(path)
        weights[name][0] = value
        save_file(weights, path, {"format": "pt"})
        with pytest.raises(ValueError, match="names tokens or nodes that it does not have; restore it or train again"):
            load_generator(tmp_path / "generator", "cpu").check_tree(tree)
        generator.save_pretrained(str(tmp_path / "generator"))
    config = json.loads((tmp_path / "generator" / "config.json").read_text())
    for name, value in (("nodes", None), ("inner_nodes", 0), ("vocab_size", 10**6)):
        (tmp_path / "generator" / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(ValueError, match="generator cannot be read"), reading(tmp_path / "generator"):
            load_generator(tmp_path / "generator", "cpu")


def test_the_numbers_of_docids_come_from_their_file_or_are_the_digits(titles, tmp_path):
    tree, numbers = titles
    names = [str(row) for row in range(len(TITLES))]
    assert np.array_equal(read_numbers(tmp_path, names, tree), tree.paths(np.arange(len(TITLES)))[1])
    write_docids(tmp_path / "docids.tsv", names, numbers[tree.positions])
    assert np.array_equal(read_numbers(tmp_path, names, tree), numbers)


def test_words_without_titles_or_without_their_t5_are_refused(titles, t5_folder):
    tree, numbers = titles
    config = GeneratorConfig(docid_tokens="words", decoder=str(t5_folder))
    with pytest.raises(
        ValueError, match="The docids have the token 90000, the decoder only 2000; take its own tokenizer"
    ):
        create_generator(
            config, tree, WIDTH, "ce", numbers=np.where(numbers == numbers.max(), np.int32(90_000), numbers)
        )
    words = Config.named("digits").with_changes({"generator": {"docid_tokens": "words", "decoder": "t5"}})
    with pytest.raises(ValueError, match=r"needs docids.method = \"title\", got 'kmeans'"):
        WordGenerator.check_config(words)
    titled = words.with_changes({"docids": {"method": "title", "branching": 0, "max_leaf_size": 20, "pieces": 0}})
    WordGenerator.check_config(titled)
    assert titled.docid_tokenizer == "t5"
    with pytest.raises(ValueError, match=r'"words" needs generator\.decoder, a T5 checkpoint'):
        WordGenerator.check_config(titled.with_changes({"generator": {"decoder": "", "num_layers": 1}}))


def test_a_training_of_words_for_other_docids_is_refused_before_it_begins(
    beir, sentence_t5_folder, t5_folder, tmp_path, capsys
):
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, generator={"docid_tokens": "words"}
    )
    command = ["train", "--config", str(config), str(beir()), str(tmp_path / "run")]
    assert main([*command, "--device", "cpu"]) == 2
    assert 'needs docids.method = "title"' in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_index_of_words_without_their_package_names_what_is_missing(generator, tmp_path, monkeypatch):
    generator.save_pretrained(str(tmp_path))
    monkeypatch.setattr(extensions, "entry_points", lambda group: [])
    with pytest.raises(ValueError, match="one of digits, got 'words'; install the package that adds them"):
        load_generator(tmp_path, "cpu")
    with pytest.raises(ValueError, match="docid_tokens must be one of none, digits, got 'words'"):
        GeneratorConfig(docid_tokens="words", decoder="t5")
