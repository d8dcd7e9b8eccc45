"""Numba's compiler, or what to do without it."""

try:
    from numba import njit
except ImportError:
    raise ModuleNotFoundError('The parsing ranker needs numba; pip install "dr-scl[rerank]".') from None

__all__ = ["njit"]
