"""Keeps the memory of this process small: gives back what is free, and limits what libraries keep."""

import ctypes
import gc
import os
import sys

_MAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 2**25), (-1, 2**28)
"""glibc's parameters: arrays from 32 MB on are given back at once, others when 256 MB are free."""


def keep_few_kernels() -> None:
    """Let oneDNN and torch keep few compiled products, as texts have many shapes: training holds .5 GB, not 1.2."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "8")


def free_memory() -> None:
    """Free what finished work has left, such as trainers, which hold their tensors in cycles; give it back to the system."""
    gc.collect()
    give_back_memory()


def give_back_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc); it would keep the pieces."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def keep_freed_memory() -> None:
    """Have glibc keep freed arrays, as it does under torch: to get new ones takes half of a search."""
    if sys.platform == "linux" and (set_option := getattr(ctypes.CDLL(None), "mallopt", None)):
        for option in (_MAP_THRESHOLD, _TRIM_THRESHOLD):
            set_option(*option)
