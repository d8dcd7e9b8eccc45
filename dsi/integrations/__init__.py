"""Bridges to other libraries, each imported only when it is used; the rest of `dsi` does not need them."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import the libraries of an extra of this package.

    Args:
        name: of the extra.

    Raises:
        ModuleNotFoundError: one of them is not installed; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error.name} is not installed; run pip install "dr-scl[{name}]".') from None
