"""Docids, objective, generator and fusion of one's own: trained, saved by import path, searched, updated; refused in a line."""

import dataclasses
import math
import sys
from copy import copy

import pytest

import dsi
from dsi.commands.main import main
from dsi.config import read_config
from dsi.generator.fusion import find_fusion
from tests.support import own_parts
from tests.support.small import thin_out
from tests.support.tiny_settings import write_settings

PLACE = "tests.support.own_parts"


@pytest.fixture
def small(beir, tmp_path, sentence_t5_folder, t5_folder):
    """A collection, and a configuration with a tiny generator of (level, digit) tokens."""
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, dev_queries=0, contrastive={"loss": "none"},
        pseudo_queries={"method": "none"}, search={"alpha": 0.5, "beta": float("inf"), "beam_width": 20},
    )  # fmt: skip
    return dsi.read_collection(thin_out(beir(), dev=6, test=6)), read_config(config)


def test_parts_of_ones_own_are_trained_saved_by_import_path_and_searched(small, tmp_path, capsys):
    collection, config = small
    retriever = dsi.train(
        collection, tmp_path / "run", config=config, device="cpu", docids=own_parts.first_letters,
        objective=own_parts.Halved, generator=own_parts.ByNode, fusion=own_parts.largest,
    )  # fmt: skip
    saved = read_config(tmp_path / "run" / "config.toml")
    assert (saved.docids.method, saved.search.fusion) == (f"{PLACE}:first_letters", f"{PLACE}:largest")
    assert (saved.training.objective, saved.generator.docid_tokens) == (f"{PLACE}:Halved", f"{PLACE}:ByNode")
    assert isinstance(retriever.snapshot.generator, own_parts.ByNode)
    texts = list(collection.query_texts("test").values())
    found = dsi.load(tmp_path / "run", device="cpu").search(texts, k=5)
    assert [list(hits) for hits in found] == [list(hits) for hits in retriever.search(texts, k=5)]
    for wide, exact in zip(
        retriever.search(texts, k=5, beam_width=1000), retriever.search(texts, k=5, method="exact"), strict=True
    ):
        assert [hit.doc_id for hit in wide] == [hit.doc_id for hit in exact]
    # Filters, updates and explanations come for nothing.
    gone = found[0][0].doc_id
    assert gone not in [hit.doc_id for hit in retriever.search(texts[0], k=5, deny=[gone])]
    retriever.add([{"doc_id": "new", "title": "New", "text": texts[0]}])
    assert "new" in [hit.doc_id for hit in retriever.search(texts[0], k=len(retriever), beam_width=1000)]
    assert retriever.explain(texts[0]).roots
    # A second call finds everything up to date.
    before = (tmp_path / "run" / "generator" / "model.safetensors").stat().st_mtime_ns
    dsi.train(collection, tmp_path / "run", device="cpu")
    assert (tmp_path / "run" / "generator" / "model.safetensors").stat().st_mtime_ns == before


def test_an_index_whose_class_is_absent_says_which_and_opens_for_info(small, tmp_path, monkeypatch, capsys):
    collection, config = small
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine.py").write_text("from tests.support.own_parts import *\nclass Mine(ByNode): ...\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    import mine  # type: ignore[import-not-found]

    dsi.train(collection, tmp_path / "run", config=config, device="cpu", generator=mine.Mine)
    (tmp_path / "site" / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    sys.modules.pop("mine")
    with pytest.raises(
        ImportError, match=r"^The generator 'mine:Mine' is not known here; in Python import mine first; in a shell"
    ):
        dsi.load(tmp_path / "run", device="cpu")
    assert not (tmp_path / "ran").exists()  # a name in a file imports nothing
    assert main(["search", str(tmp_path / "run"), "gas"]) == 2
    assert "\ndsi: The generator 'mine:Mine' is not known here; in Python import mine" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "run")]) == 0
    assert "mine:Mine" in capsys.readouterr().out


def test_what_cannot_be_a_part_is_refused_in_one_line(small, tmp_path):
    collection, config = small

    def local(documents):
        return own_parts.first_letters(documents)

    for hooks, message in (
        ({"docids": local}, "docids must be a function or a class at the top of a .py file, or a name, got <function"),
        ({"fusion": lambda a, b, c: a}, "fusion must be a function or a class at the top of a .py file, or a name"),
        ({"objective": 3}, "objective must be a function or a class at the top of a .py file, or a name, got 3"),
        (
            {"objective": own_parts.ByNode},
            f"The objective '{PLACE}:ByNode' must be a subclass of dsi.generator.objectives.Obj",
        ),
        (
            {"generator": own_parts.Halved},
            f"The generator '{PLACE}:Halved' must be a subclass of Generator, got <class",
        ),
        ({"objective": own_parts.OfBatches}, "OfBatches' must define loss(self, model, batch, done)"),
        ({"docids": own_parts.largest}, "largest' must be a function of one argument, a SchemeInput, got <function"),
        ({"generator": own_parts.WithoutStep}, "WithoutStep' has no step: it must define log_probs"),
        (
            {"generator": "no_such:Class"},
            "The generator 'no_such:Class' is not known here; in Python import no_such first",
        ),
        (
            {"fusion": "no_such:function"},
            "The fusion 'no_such:function' is not known here; in Python import no_such first",
        ),
        (
            {"fusion": "sum"},
            "search.fusion must be one of product, mixture, or the import path of a function, got 'sum'",
        ),
        (
            {"fusion": "os:abort"},
            "The fusion 'os:abort' must be a function whose parameters are named generator, encoder and alpha",
        ),
        (
            {"fusion": own_parts.nothing},
            "nothing' must return the shape of its tensors, [1, 2, 3], got None",
        ),
        (
            {"fusion": own_parts.of_another_shape},
            "of_another_shape' must return the shape of its tensors, [1,",
        ),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as raised:
            dsi.train(collection, tmp_path / "refused", config=config, device="cpu", **hooks)
        assert message in str(raised.value)
        assert not (tmp_path / "refused" / "encoder").exists()
        assert not (tmp_path / "refused" / "manifest.json").exists()


def test_a_part_of_a_generator_is_refused_where_there_is_none(small, tmp_path):
    collection, _ = small
    for hooks in ({"objective": own_parts.Halved}, {"fusion": own_parts.largest}):
        with pytest.raises(ValueError, match=rf'{next(iter(hooks))} is a part of a generator, .* give config="digits"'):
            dsi.train(collection, tmp_path / "run", config=dsi.Config(), device="cpu", **hooks)


def test_a_step_of_another_shape_says_so_before_anything_is_trained(small, tmp_path):
    collection, config = small
    with pytest.raises(ValueError, match=r"OneChild.log_probs must return \[batch, n, largest fan-out\] = .*, got "):
        dsi.train(collection, tmp_path / "run", config=config, device="cpu", generator=own_parts.OneChild)


@pytest.mark.parametrize(
    ("objective", "wrong"),
    [
        (own_parts.ByExample, r"must return a scalar .*, got tensor\(\[.*grad_fn"),
        (own_parts.Constant, r"must return a scalar .*, got tensor\([0-9.]+\);"),
        (own_parts.Endless, "is nan before the first step"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_named(small, tmp_path, objective, wrong):
    collection, config = small
    with pytest.raises(ValueError, match=f"{objective.__name__}.loss {wrong}"):
        dsi.train(collection, tmp_path / "run", config=config, device="cpu", objective=objective)


def test_fusions_are_checked_and_the_mixture_is_one(small, tmp_path):
    collection, config = small
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    texts = list(collection.query_texts("test").values())[:3]

    def searched(fusion, **options):
        index = copy(retriever)
        index.search_config = dataclasses.replace(index.search_config, fusion=fusion)
        return [
            [(hit.doc_id, pytest.approx(hit.score, abs=1e-4)) for hit in hits]
            for hits in index.search(texts, 5, **options)
        ]

    for alpha in (0.0, 1.0):  # where nothing is mixed, every fusion is the same
        assert searched("mixture", alpha=alpha) == searched("product", alpha=alpha)
    assert searched("mixture", alpha=0.5) != searched("product", alpha=0.5)
    for name, message in (
        ("not_a_number", r"must return log-probabilities, at most 0, got nan"),
        ("of_another_shape", r"must return the shape of its tensors, \[.*\], got \["),
        ("above_zero", r"must return log-probabilities, at most 0, got "),
    ):
        with pytest.raises(ValueError, match=f"The fusion '{PLACE}:{name}' {message}"):
            searched(f"{PLACE}:{name}", alpha=0.5)
    with pytest.raises(ValueError, match="must be one of product, mixture"):
        find_fusion("nothing")


def test_a_fusion_sees_no_probability_at_children_that_a_node_lacks(small, tmp_path):
    collection, config = small
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    assert len({*retriever.snapshot.tree.num_children}) > 2
    fusion = f"{PLACE}:over_siblings"
    retriever.search_config = dataclasses.replace(retriever.search_config, fusion=fusion, alpha=0.5, lexical_weight=0)

    def total():
        (hits,) = retriever.search(["noble gases"], len(retriever), method="exact")
        return sum(math.exp(hit.score) for hit in hits)

    assert total() == pytest.approx(1, abs=1e-4)
    retriever.add([{"id": "new", "text": "Another noble gas."}, {"id": "newer", "text": "A river."}])
    assert total() == pytest.approx(1, abs=1e-4)
    retriever.remove(["new", "newer"])
    assert total() == pytest.approx(1, abs=1e-4)
    retriever.search_config = dataclasses.replace(retriever.search_config, fusion=f"{PLACE}:shares")
    assert retriever.search(
        ["noble gases", "rivers"], 3, beam_width=20
    )  # it divides by nothing beside children that are there
