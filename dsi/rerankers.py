"""Reranking: the hits of a search in the order of another model, such as a cross-encoder. Knows nothing of trees.

A model is a `CrossEncoder` of sentence-transformers, or any function that takes the hits of a query and returns a score for
each. Packages add models that are saved beside an index, by entry points of the group "dsi.rerankers".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, overload

import numpy as np

from dsi.contrastive.model_files import TEXTS
from dsi.contrastive.models import is_local, load_complete
from dsi.docids import extensions
from dsi.docids.files.checks import shown, user_path
from dsi.docids.files.reading import RESTORE, read_json
from dsi.docids.files.storage import recover_folder
from dsi.docids.types import Reals
from dsi.search.hits import Hits

Scores = Callable[[Hits], Sequence[float] | Reals]
"""A model: returns a score for each hit of a query; higher is better."""

FILE = "reranker.json"
"""In a folder INDEX/rerank/NAME: `kind`, the name of its entry point, and `package`, which has it."""
_CROSS_ENCODER = "cross-encoder:"


@overload
def rerank(hits: Hits, model: Any) -> Hits: ...
@overload
def rerank(hits: list[Hits], model: Any) -> list[Hits]: ...
def rerank(hits: Hits | list[Hits], model: Any) -> Hits | list[Hits]:
    """Return hits in the order of a model's scores, which take the place of theirs; equal scores keep their order.

    `exact` stays as the search left it: no other documents scored better before reranking.

    Args:
        hits: of one query, or a list of them, as `retriever.search` returns them.
        model: a `CrossEncoder`, which reads title and text of each hit, or a function of the hits that returns their scores.

    Raises:
        TypeError: hits of another type.
        ValueError: a cross-encoder, and the index keeps no texts; or a model that does not give a number for each hit.

    Example:
        >>> import dsi
        >>> from dsi.rerankers import rerank
        >>> retriever = dsi.load("INDEX")
        >>> hits = retriever.search("which capitals are on the danube", k=20)
        >>> short_titles_first = rerank(hits, lambda hits: [-len(hit.title) for hit in hits])
    """
    if isinstance(hits, list) and not isinstance(hits, Hits):
        return [rerank(answer, model) for answer in hits]
    if not isinstance(hits, Hits):
        raise TypeError(f"rerank() takes the hits that retriever.search() returns, got {shown(hits)}.")
    scores = _checked(_cross_encoded(hits, model) if hasattr(model, "rank") else model(hits), hits)
    ranked = [
        replace(hits[number], rank=rank, score=float(scores[number]))
        for rank, number in enumerate(np.argsort(-scores, kind="stable").tolist(), start=1)
    ]
    return Hits(ranked, hits.exact, hits.query, coverage=hits.coverage, missing=hits.missing, note=hits.note)


def _cross_encoded(hits: Hits, model: Any) -> Reals:
    """Return the logits of a `CrossEncoder` for the query with each hit: a sigmoid would make ties of the best in float32."""
    from torch.nn import Identity

    if any(hit.text is None for hit in hits):
        raise ValueError(
            "A cross-encoder reads the documents' texts, but this index keeps titles only; put the texts into it with "
            "`dsi update INDEX --texts COLLECTION`, or retriever.update(texts=collection.documents)."
        )
    scores, texts = np.zeros(len(hits)), [f"{hit.title} {hit.text}".strip() for hit in hits]
    for entry in model.rank(hits.query, texts, activation_fn=Identity(), show_progress_bar=False) if texts else ():
        scores[entry["corpus_id"]] = entry["score"]
    return scores


def _checked(scores: Any, hits: Hits) -> Reals:
    """Return a model's scores as an array [hits], if they are numbers, one a hit."""
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (len(hits),):
        raise ValueError(f"A model must give a score for each of {len(hits)} hits, got {shown(scores)}.")
    if (wrong := np.flatnonzero(np.isnan(values))).size:
        pair = f"query {shown(hits.query)} and document {shown(hits[int(wrong[0])].doc_id)}"
        raise ValueError(f"A model must give scores that are numbers, got NaN for {pair}; mend the model.")
    return values


def load_reranker(retriever: Any, index: str | Path, name: str, *, device: str | None = None) -> Any:
    """Return a model for `rerank`, by its name.

    Args:
        retriever: the loaded index, whose hits are reranked.
        index: its folder, INDEX.
        name: of a folder in INDEX/rerank, or "cross-encoder:MODEL" with a Hub name or a folder.
        device: of a cross-encoder; the best available by default.

    Raises:
        FileNotFoundError: no such reranker or model.
        ValueError: it was trained for another index, no installed package has its kind, or the model does not score pairs.
    """
    if name.startswith(_CROSS_ENCODER):
        return _load_cross_encoder(name.removeprefix(_CROSS_ENCODER), device)
    folder = reranker_folder(index, name)
    recover_folder(folder)
    if not (folder / FILE).exists():
        others = sorted(other.name for other in folder.parent.glob("[!.]*") if (other / FILE).exists())
        remedy = f"there are {', '.join(others)}" if others else "give cross-encoder:MODEL"
        raise FileNotFoundError(f"{folder} holds no reranker; {remedy}.")
    return kind_of(folder).load(folder, retriever)


def reranker_folder(index: str | Path, name: str) -> Path:
    """Return the folder of a reranker beside an index."""
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"The name of a reranker must be a plain folder name, got {name!r}.")
    return user_path(index) / "rerank" / name


def kind_of(folder: Path) -> Any:
    """Return the extension that wrote a saved reranker; its `load(folder, retriever)` returns a model."""
    if folder.is_symlink() or folder.parent.is_symlink():
        raise ValueError(f"{folder} must be a folder, and is a link or lies below one; {RESTORE}.")
    record = read_json(folder / FILE)
    kind, package = str(record.get("kind")), str(record.get("package", ""))
    extension = extensions.load_extension(extensions.RERANKERS, kind)
    if extension is None:
        known = ", ".join(extensions.extension_names(extensions.RERANKERS)) or "none"
        remedy = f"install {shown(package)}, which adds it" if package else f"the installed kinds are {known}"
        raise ValueError(f"{folder / FILE}: no reranker is of the kind {shown(kind)}; {remedy}.")
    return extension


def _load_cross_encoder(name: str, device: str | None) -> Any:
    from sentence_transformers import CrossEncoder

    remedy = "give the Hub name or the folder of a sentence-transformers CrossEncoder"
    try:
        model = load_complete(
            lambda: CrossEncoder(name, device=device, local_files_only=is_local(name)), _scores_of_pairs
        )
    except ValueError as error:
        raise ValueError(f"The cross-encoder {name!r} cannot be used, because {error}; {remedy}.") from None
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FileNotFoundError(f"The cross-encoder {name!r} cannot be loaded ({reason}); {remedy}.") from None
    if model.num_labels != 1:
        raise ValueError(f"A cross-encoder must have one label, its score; {name!r} has {model.num_labels}; {remedy}.")
    return model


def _scores_of_pairs(model: Any) -> Reals:
    """Return what a `CrossEncoder` gives for some pairs."""
    from torch.nn import Identity

    scores: Reals = model.predict(list(product(TEXTS, TEXTS)), activation_fn=Identity(), show_progress_bar=False)
    return scores
