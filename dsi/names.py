"""Whether Python finds the packages beside this one, or other modules of their names. Imports nothing of ours.

`eval` and `scripts` are common names: a file eval.py beside a program would be imported in the place of our package.
"""

from importlib.util import find_spec
from pathlib import Path

LIBRARY = ("contrastive", "docids", "eval")
"""The packages that the library needs; the commands need scripts too."""
_BESIDE = Path(__file__).parent.parent


def check_names(*names: str) -> None:
    """Refuse to go on with modules of others in the place of ours.

    Args:
        names: of our packages that are about to be imported.

    Raises:
        ImportError: Python finds another module of such a name first.
    """
    for name in names:
        spec, ours = find_spec(name), _BESIDE / name
        if spec is None:
            continue  # the import will say that it is missing
        found = next(iter(spec.submodule_search_locations or [spec.origin or ""]))
        if Path(found).resolve() != ours.resolve():
            raise ImportError(
                f"dr-scl needs its own package {name} ({ours}), but Python finds {found} first; rename that one, or take its "
                "folder off Python's path (PYTHONPATH, or the folder of the program)."
            )
