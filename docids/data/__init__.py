"""Collections: their files, their records, and public sources."""

from pathlib import Path

SHIPPED = {"minipedia": Path(__file__).parent / "minipedia"}
"""{name: folder} of the collections that ship with the package."""


def find_collection(name: str | Path) -> Path:
    """Return an existing folder, or that of a collection that ships, by name; a folder of that name goes first.

    Raises:
        FileNotFoundError: there is neither.
    """
    if not Path(name).is_dir() and str(name) in SHIPPED:
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
    if folder.is_dir():
        return folder
    if folder.exists():
        raise FileNotFoundError(f"{folder} is a file; give the folder that holds it.")
    raise FileNotFoundError(
        f"The collection folder {folder} does not exist; name a folder in BEIR layout or of texts, or {', '.join(SHIPPED)}, "
        "the collection that ships."
    )
