"""A search computes its small products on one thread, and leaves the number of threads as it was."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dsi.docids.files.threads import one_thread
from dsi.docids.token_vectors import TokenVectors
from dsi.search.walk import Walk
from tests.test_generate import random_tokens, small_case


@pytest.fixture
def limits(monkeypatch):
    """What BLAS is told: 1, or "as before"."""
    told: list[object] = []
    limit = SimpleNamespace(restore_original_limits=lambda: told.append("as before"))
    monkeypatch.setattr(one_thread(), "_pools", SimpleNamespace(limit=lambda limits: told.append(limits) or limit))
    return told


def test_the_last_one_out_restores_the_number(limits):
    one, other = one_thread(), one_thread()
    one.__enter__()
    other.__enter__()
    with one_thread():
        assert limits == [1]
    one.__exit__(None, None, None)  # it came first, and the other one is still inside
    assert limits == [1]
    other.__exit__(None, None, None)
    assert limits == [1, "as before"]
    with pytest.raises(ValueError, match="wrong"), one_thread():
        raise ValueError("wrong")
    assert limits == [1, "as before"] * 2


def test_walk_and_late_interaction_run_on_one_thread(limits, monkeypatch):
    case, inside = small_case(token_weight=1.0), []
    case.tree = replace(case.tree, tokens=random_tokens(case.tree.num_documents, np.random.default_rng(0)))
    for owner, name in ((Walk, "descend"), (TokenVectors, "_scan")):
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, plain=plain: inside.append(limits[-1:] == [1]) or plain(*given))
    for method in case.index.methods.values():
        method.retrieve(case.batch, case.request)
    assert len(inside) > len(case.batch.texts)
    assert all(inside)
    assert limits[-1] == "as before"
