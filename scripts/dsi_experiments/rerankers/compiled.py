"""Numba's compiler, or the message that says how to install it."""

try:
    from numba import njit
except ImportError:
    raise ModuleNotFoundError('The parsing reranker needs numba; pip install "dr-scl-experiments[rerank]".') from None

__all__ = ["njit"]
