"""Checks that no other package shadows one of ours. Imports nothing of ours.

`eval` is a common name: a file eval.py beside a program would be imported in place of our package.
"""

from importlib.util import find_spec
from pathlib import Path

LIBRARY = ("contrastive", "docids", "eval")
"""The packages that `dsi` needs, installed beside it."""
_BESIDE = Path(__file__).parent.parent


def check_names(*names: str) -> None:
    """Raise if another package shadows one of ours.

    Args:
        names: of our packages that are about to be imported.

    Raises:
        ImportError: Python finds another module of such a name first.
    """
    for name in names:
        spec, ours = find_spec(name), _BESIDE / name
        if spec is None:
            continue  # its import raises
        first = next(iter(spec.submodule_search_locations or [spec.origin or ""]))
        if Path(first).resolve() != ours.resolve():
            raise ImportError(
                f"dr-scl needs its own package {name} ({ours}), but Python finds {first} first; rename that one, or take its "
                "folder off Python's path (PYTHONPATH, or the folder of the program)."
            )
