"""The model card of an index: what it is, how it is used, what was measured, which files it has. Knows nothing of the Hub."""

import logging
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from dsi.docids.files.reading import read_record
from dsi.eval.tables import markdown_table
from dsi.store.loading import load_docids
from dsi.store.verify import part

RECORD = "evaluation.json"
"""What `dsi evaluate RUN --results RUN/evaluation.json` wrote: the results of the card."""

_METRICS = {"Hit@1": "hit_rate", "Hit@10": "hit_rate", "RR@10": "mrr", "nDCG@10": "ndcg"}
"""{measure: its kind in the card's metadata}."""

logger = logging.getLogger(__name__)


def model_card(folder: Path, manifest: dict[str, Any], name: str, license: str | None = None) -> ModelCard:  # noqa: A002
    """Return the card of an index.

    Args:
        folder: of the index.
        manifest: read from it.
        name: of the index on the Hub, "user/name".
        license: of the encoder, the documents and the rest, as the Hub names it, such as "apache-2.0"; None for none.
    """
    record, row_name = _evaluation(folder, manifest)
    data = ModelCardData(
        license=license,
        library_name="dr-scl",
        tags=["generative-retrieval", "information-retrieval", "document-retrieval"],
        model_name=name.split("/")[-1],
        eval_results=_results(record, row_name),
    )
    sections = [_head(name), _about(folder, manifest), _measured(record, row_name), _files(folder, manifest)]
    return ModelCard("\n".join([f"---\n{data.to_yaml()}\n---\n", *filter(None, sections)]))


def _evaluation(folder: Path, manifest: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the evaluation record in a folder, and the row of the index as it searches; ({}, "") if it is of another state."""
    path = folder / RECORD
    record = read_record(path)
    systems = record.get("systems", {})
    search = manifest["search"]
    row_name = search["method"]  # rows of controls may have its settings, too
    settings = systems.get(row_name, {}).get("settings", {})
    if {name: settings.get(name) for name in search} != search:
        row_name = ""
    if record and (not row_name or path.stat().st_mtime < (folder / "manifest.json").stat().st_mtime):
        logger.warning("%s is of another state of the index and stays out of the model card; evaluate again.", path)
        return {}, ""
    if "note" in record:
        logger.warning("%s is a known-item test, not a benchmark, and stays out of the model card.", path)
        return {}, ""
    return record, row_name


def _results(record: dict[str, Any], row_name: str) -> list[EvalResult] | None:
    """Return the measures of the index for the card's metadata."""
    if not row_name:
        return None
    about = {
        "dataset_type": record["collection"],
        "dataset_name": record["collection"],
        "dataset_split": record["split"],
    }
    total = record["systems"][row_name]["Total"]
    return [
        EvalResult(task_type="text-retrieval", metric_type=kind, metric_name=name, metric_value=total[name], **about)
        for name, kind in _METRICS.items()
        if name in total
    ]


def _head(name: str) -> str:
    return f"""# {name}

An index for generative document retrieval: a search walks down a tree of document identifiers (docids) by the scores of a
generator and a sentence encoder, and ranks the documents that it reaches, and the best by words. Made with `dr-scl`.

```python
import dsi

retriever = dsi.GenerativeRetriever.from_pretrained("{name}")
hits = retriever.search("your query", k=10)
```
"""


def _about(folder: Path, manifest: dict[str, Any]) -> str:
    """Return the section on documents, encoder, search config and versions."""
    tree, documents = load_docids(part(folder, manifest, "docids"))
    search, versions = (", ".join(f"{k} {v}" for k, v in manifest[name].items()) for name in ("search", "versions"))
    rows = [
        ("documents", f"{len(documents):,}"),
        ("columns", ", ".join(documents.column_names)),
        ("docids", f"up to {tree.depth} digits"),
        ("encoder", f"`{Path(manifest['encoder']['name']).name}`"),
        ("search", search),
        ("generation", f"{manifest['generation']} (1 as trained, one more with every update)"),
        ("made with", versions),
        ("threads, seed", f"{manifest.get('threads')}, {manifest.get('seed')} (None in a copy)"),
    ]
    return f"## Content\n\n{markdown_table(['', ''], rows)}\n"


def _measured(record: dict[str, Any], row_name: str) -> str:
    """Return the section with the results of the index and its baselines."""
    if not row_name:
        return ""
    systems = record["systems"]
    names = [name for name in _METRICS if name in systems[row_name]["Total"]]
    rows = [
        [f"**{name}**" if name == row_name else name, *(f"{row['Total'][measure]:.2f}" for measure in names)]
        for name, row in systems.items()
    ]
    where = f"{record['collection']}, {record['split']} split, {record['queries']['Total']:,} queries"
    return (
        f"## Results\n\n{where}, in percent; the row in bold is the index as it searches by default.\n\n"
        f"{markdown_table(['', *names], rows)}\n\nMeasured on {record['hardware']}.\n"
    )


def _files(folder: Path, manifest: dict[str, Any]) -> str:
    """Return the section with the files and their sums."""
    rows = [
        [f"`{name}`", f"{(folder / name).stat().st_size:,}", f"`{value}`"] for name, value in manifest["files"].items()
    ]
    return (
        "## Files\n\nLoading compares every file with its sum, reads only JSON, Arrow and safetensors files, and runs "
        f"no code.\n\n{markdown_table(['file', 'bytes', 'sha256'], rows)}\n"
    )
