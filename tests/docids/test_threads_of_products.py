"""A search computes its small products on one thread, and leaves the number of threads as it was."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dsi.docids.files.threads import one_thread
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.vectors import dots
from dsi.search.walk import VectorWalk
from tests.support.cases import random_tokens, small_case


@pytest.fixture
def limits(monkeypatch):
    """The number of threads of BLAS: 1, or "as before"."""
    told: list[object] = []
    limit = SimpleNamespace(restore_original_limits=lambda: told.append("as before"))
    pools = SimpleNamespace(limit=lambda limits: told.append(limits) or limit, lib_controllers=[])
    monkeypatch.setattr(one_thread(), "_pools", pools)
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


def blas_threads() -> set[int]:
    """How many threads BLAS would use."""
    return {library["num_threads"] for library in one_thread()._pools.info()}


@pytest.fixture
def two_threads():
    """BLAS with two threads, where the tests have one."""
    limit = one_thread()._pools.limit(limits=2)
    yield {2}
    one_thread()._take_control()
    limit.restore_original_limits()
    one_thread()._take_control()


def test_blas_does_so_whichever_thread_came_first(two_threads):
    before = two_threads
    with one_thread():
        assert blas_threads() == {1}
    assert blas_threads() == before
    came, go = threading.Event(), threading.Event()

    def stay() -> None:
        with one_thread():
            came.set()
            go.wait(60)

    def within() -> set[int]:
        with one_thread():
            return blas_threads()

    with ThreadPoolExecutor(2) as threads:  # as the search thread of a server, after the main thread has searched
        assert threads.submit(within).result(60) == {1}
        assert threads.submit(blas_threads).result(60) == before
        staying = threads.submit(stay)
        came.wait(60)
        with one_thread():
            go.set()
            staying.result(60)
            assert blas_threads() == {1}  # the first one is out, and another is still inside
        assert blas_threads() == before
        assert threads.submit(within).result(60) == {1}
    with threadpool_limits(1):  # others may still set limits
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_walk_and_late_interaction_run_on_one_thread(limits, monkeypatch):
    case, inside = small_case(token_weight=1.0), []
    case.tree = replace(case.tree, tokens=random_tokens(case.tree.num_places, np.random.default_rng(0)))
    for owner, name in ((VectorWalk, "descend"), (TokenVectors, "_best")):
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, plain=plain: inside.append(limits[-1:] == [1]) or plain(*given))
    for method in case.index.methods.values():
        method.retrieve(case.batch, case.request)
    assert len(inside) > 1
    assert all(inside)
    assert limits[-1] == "as before"


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_products_with_chosen_vectors_start_no_more_threads_than_there_are_queries(monkeypatch, count):
    threads, told = faiss.omp_get_max_threads(), list[int]()
    monkeypatch.setattr(faiss, "omp_set_num_threads", told.append)
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: 4)
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(size=(n, 8)).astype(np.float32) for n in (20, count))
    rows = rng.integers(-1, 20, size=(count, 7))
    expected = np.where(rows < 0, -np.inf, np.einsum("qd,qnd->qn", queries, vectors[rows]))
    np.testing.assert_allclose(dots(vectors, queries, rows), expected, rtol=1e-5, atol=1e-5)
    assert told == [min(4, max(1, count)), 4]
    monkeypatch.undo()
    assert faiss.omp_get_max_threads() == threads
