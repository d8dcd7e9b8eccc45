"""Collections: their files, their records, and public sources."""

import os
import textwrap
from pathlib import Path

SHIPPED = {"minipedia": Path(__file__).parent / "minipedia"}
"""{name: folder} of the collections that ship with the package."""


def find_collection(name: str | Path) -> Path:
    """Return an existing folder, or that of a collection that ships, by name; a folder of that name goes first.

    Raises:
        FileNotFoundError: there is neither.
    """
    if str(name) in SHIPPED and not Path(name).is_dir():
        return SHIPPED[str(name)]
    return existing_folder(name)


def existing_folder(name: str | Path) -> Path:
    """Return the folder.

    Raises:
        FileNotFoundError: there is none, or a file of that name.
    """
    folder = Path(name)
    if name == "":  # which Python takes for the current folder
        raise FileNotFoundError("The name of the collection folder is empty; use . for the current folder.")
    if os.path.isdir(folder):  # noqa: PTH112 - False for a name that is too long, too
        return folder
    short = textwrap.shorten(str(folder), 200, placeholder=" …")
    if os.path.exists(folder):  # noqa: PTH110
        raise FileNotFoundError(f"{short} is a file; give the folder that holds it.")
    raise FileNotFoundError(
        f"The collection folder {short} does not exist; name a folder in BEIR layout or of texts, or {', '.join(SHIPPED)}, "
        "the collection that ships."
    )
