"""Lists the licence of every installed dependency, and refuses those outside the list: python -m tests.support.licences

Followed from both distributions with all their extras, development and documentation included. What a CUDA build of torch
brings from NVIDIA, under licences of its own, is left out: the CPU build, which is tested, needs none of it.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = ("dr-scl", "dr-scl-experiments")
_PERMISSIVE = re.compile(
    r"MIT|BSD|Apache|ISC\b|Python Software Foundation|PSF|CNRI|HPND|Zlib|CC0|Unlicense|Academic Free|Boost|public domain",
    re.IGNORECASE,
)
_PER_FILE = re.compile(r"MPL|Mozilla", re.IGNORECASE)
"""Copyleft of single files, which nobody here changes."""
_CUDA = re.compile(r"(nvidia|cuda)-")
_REFUSED = re.compile(r"\b[AL]?GPL|GNU|non-?commercial|CC-BY-NC|proprietary", re.IGNORECASE)


def dependencies() -> list[Distribution]:
    """All that our distributions need here, with every extra, except themselves; those that are not installed are left out."""
    found: dict[str, Distribution] = {}
    todo = [(name, "") for name in OURS] + [(name, extra) for name in OURS for extra in _extras(name)]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        if _CUDA.match(name):
            continue
        try:
            found[canonicalize_name(name)] = package = distribution(name)
        except PackageNotFoundError:
            continue
        new = set(_needed(package, extra)) - seen
        seen |= new
        todo += sorted(new)
    return [found[name] for name in sorted(found) if name not in OURS]


def licence(package: Distribution) -> str:
    """What a package states, in one line: its expression, its classifiers, or the first line of its text."""
    about = package.metadata
    stated = [text.split(" :: ")[-1] for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
    text = (about.get("License") or "").strip().partition("\n")[0]
    return about.get("License-Expression") or " OR ".join(filter(None, stated)) or text or "none stated"


def is_allowed(stated: str) -> bool:
    """True if a licence is permissive or that of single files; one side of an OR is enough."""
    sides = re.split(r"\bOR\b", stated)
    return any((_PERMISSIVE.search(side) or _PER_FILE.search(side)) and not _REFUSED.search(side) for side in sides)


def _extras(name: str) -> list[str]:
    return distribution(name).metadata.get_all("Provides-Extra") or []


def _needed(package: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    for text in package.requires or []:
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield from ((canonicalize_name(needed.name), name) for name in ("", *needed.extras))


def main() -> int:
    """Print the table; the exit status is 1 if a licence is not allowed."""
    packages = dependencies()
    refused = [f"{package.name} ({licence(package)})" for package in packages if not is_allowed(licence(package))]
    lines = [f"{package.name:32} {package.version:14} {licence(package)}" for package in packages]
    sys.stdout.write("\n".join([*lines, f"{len(packages)} packages; not allowed: {', '.join(refused) or 'none'}\n"]))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
