"""Collections: their files, their records, and public sources."""

import os
import textwrap
from pathlib import Path

SPLITS = ("train", "dev", "test")
"""Splits of a collection: qrels/SPLIT.tsv."""
TABLES = tuple(f"{split}.tsv" for split in SPLITS)
"""Files of judgements, in the folder qrels."""
_SAVED = ("corpus.jsonl", "queries.jsonl", "collection.json")
SHIPPED = {"minipedia": Path(__file__).parent / "minipedia"}
"""{name: folder} of the collections that ship with the package."""


def find_collection(name: str | Path) -> Path:
    """Return an existing folder, or that of a collection that ships, by name; a local folder of that name takes precedence."""
    if str(name) in SHIPPED and not Path(name).is_dir():
        return SHIPPED[str(name)]
    return existing_folder(name)


def existing_folder(name: str | Path) -> Path:
    """Return the folder of a collection, which must exist; a save of it that was killed is undone."""
    from dsi.docids.files.checks import user_path
    from dsi.docids.files.storage import beside, recover_folder  # which take long, and readers of files need none

    folder = user_path(name)
    if name == "":  # which Python takes for the current folder
        raise FileNotFoundError("The name of the collection folder is empty; use . for the current folder.")
    # os.path.isdir: False for a name that is too long, too
    if not os.path.isdir(folder) and os.path.isdir(beside(folder, "previous")):  # noqa: PTH112
        recover_folder(folder)  # a save was killed
    if os.path.isdir(folder):  # noqa: PTH112
        return folder
    short = textwrap.shorten(str(folder), 200, placeholder=" …")
    if os.path.exists(folder):  # noqa: PTH110
        raise FileNotFoundError(
            f"{short} is a file; give the folder that holds it. Questions and pairs are given by --pairs."
        )
    raise FileNotFoundError(
        f"The collection folder {short} does not exist; name a folder in BEIR layout or of texts, or {', '.join(SHIPPED)}, "
        "the collection that ships."
    )


def folder_for_collection(value: str | Path, name: str = "folder") -> Path:
    """Return the path of a folder that a collection may be written to: it is new, or holds nothing but a collection."""
    from dsi.docids.files.checks import folder_to_replace

    path = folder_to_replace(value, name, lambda entry: entry.name in (*_SAVED, "qrels"))
    judgements = path / "qrels"
    if judgements.exists():
        unknown = [judgements] if not judgements.is_dir() else [p for p in judgements.iterdir() if p.name not in TABLES]
        if unknown:
            name = str(min(unknown).relative_to(path))
            raise FileExistsError(f"{path} holds {name!r}, which would be lost; name a new folder.")
    return path
