"""What an index is, without loading its models: documents, docids, encoder, weights, sizes, versions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsi.docids.files.checks import printable, user_path
from dsi.docids.files.reading import read_record
from dsi.search.request import used_settings
from dsi.store.folder.loading import load_content, load_docids
from dsi.store.folder.manifest import PARTS, has_generator, part, read_manifest, search_config
from dsi.store.learning import learned_pairs


def index_info(folder: str | Path) -> dict[str, Any]:
    """Return what an index is; "pieces": docids, as a long document may have several; "chosen": who chose how it searches."""
    folder = user_path(folder)
    manifest = read_manifest(folder)
    tree, documents = load_docids(part(folder, manifest, "docids"))
    sizes = {name: _bytes(part(folder, manifest, name)) for name in PARTS}
    return {
        "documents": len(documents),
        "columns": documents.column_names,
        "pieces": int((tree.doc_rows >= 0).sum()),
        "depth": tree.depth,
        "encoder": manifest["encoder"]["name"],
        "language": read_record(part(folder, manifest, "lexical") / "params.index.json").get("language"),
        "dimension": tree.embeddings.shape[1],
        "generator": _generator(folder) if has_generator(manifest) else None,
        "search": used_settings(manifest["search"], has_generator=has_generator(manifest)),
        "chosen": _chooser(folder, manifest),
        "megabytes": {name: round(size / 1e6, 2) for name, size in sizes.items() if size},
        **{name: manifest[name] for name in ("generation", "versions", "format_version")},
    }


def learned_lines(folder: str | Path) -> Iterator[str]:
    """Yield the pairs that an index has learned, by when that was, as lines with tabs."""
    manifest = read_manifest(folder := user_path(folder))
    for pair in learned_pairs(load_content(folder, manifest)):
        time = pair.time.isoformat().replace("+00:00", "Z")
        yield "\t".join(map(printable, (pair.hash, pair.doc_id, str(pair.count), time, pair.query)))


def _generator(folder: Path) -> dict[str, str]:
    """Return what a generator writes, and what it was trained with."""
    record = read_record(folder / "generator" / "config.json")
    return {name: str(record.get(name)) for name in ("docid_tokens", "objective")}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _chooser(folder: Path, manifest: dict[str, Any]) -> str:
    """Return who chose the weights of a search."""
    if tuning := read_record(folder / "tuning.json"):
        if tuning.get("tried"):
            return "tuned on dev queries of its collection, or train queries set aside"
        return "the defaults of [search], the weight of words by how far the encoder's scores lie apart"
    from dsi.config import Config

    if search_config(manifest) == Config().search:
        return "the defaults of [search], which were chosen on other collections"
    return "set in [search] of its configuration, or where it was saved; not tuned here"


def as_lines(info: dict[str, Any]) -> str:
    """Return `index_info` as a line a fact."""
    return "\n".join(f"{name:<14} {_shown(value)}" for name, value in info.items())


def _shown(value: Any) -> str:
    """Return a fact as a text, a fraction with three significant digits."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.3g}"
    return "none" if value is None else f"{value:,.0f}" if isinstance(value, int | float) else str(value)
