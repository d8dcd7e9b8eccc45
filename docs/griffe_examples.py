"""For mkdocstrings: `Example:` in a docstring becomes griffe's section `Examples:`, so that doctests show as code."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section wherever a docstring has it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute that was read."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
