"""Rerankers applied to the results of a search: candidates, `rerank`, and rerankers on disk.

Takes the parts of an index that it needs. Knows nothing of retrievers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsi.rerankers.cross_encoder import CrossEncoderReranker
from dsi.search.candidates import Candidates, Reranker, load_reranker
from dsi.store.loading import updating
from dsi.store.verify import read_manifest

_CROSS_ENCODER = "cross-encoder:"


def rerank(candidates: Candidates, rerankers: Reranker | Sequence[Reranker]) -> Candidates:
    """Return the candidates in a new order, by one reranker or several applied one after another.

    `exact` stays as the search left it: no other k documents scored better before reranking.

    Args:
        candidates: from `retriever.candidates`.
        rerankers: one, or several in order; `dsi.load_rerankers` reads those saved beside an index.

    Returns:
        New candidates with the scores of the last reranker; `.hits()` and `.as_run()` make them answers.

    Raises:
        TypeError: candidates or a reranker of another type.
        ValueError: a reranker reads a feature that the candidates do not have.

    Example:
        >>> import dsi
        >>> from dsi.rerankers.diversity import Pyversity
        >>> retriever = dsi.GenerativeRetriever.from_pretrained("RUN")
        >>> candidates = retriever.candidates(["which capitals are on the danube"], k=20)
        >>> diverse = dsi.rerank(candidates, Pyversity("mmr"))
        >>> [hit.rank for hit in diverse.hits()[0][:3]]
        [1, 2, 3]
    """
    if not isinstance(candidates, Candidates):
        raise TypeError(
            f"rerank() takes the Candidates that retriever.candidates(…) returns, got {type(candidates).__name__}."
        )
    several = rerankers if isinstance(rerankers, Sequence) and not isinstance(rerankers, str) else [rerankers]
    for reranker in [_checked(item) for item in several]:
        candidates = reranker.rerank(candidates)
    return candidates


def _checked(reranker: object) -> Reranker:
    if not isinstance(reranker, Reranker):
        raise TypeError(
            f"rerankers must be a Reranker or a list of them, got {reranker!r} of type "
            f"{type(reranker).__name__}; dsi.load_rerankers(RUN, [NAME]) reads saved ones."
        )
    return reranker


def binding(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what a saved reranker is bound to: the encoder and the generator of its index."""
    files = {name: value for name, value in manifest["files"].items() if name.startswith("generator/")}
    return {"encoder": manifest["fingerprints"]["encoder"], "generator": files}


def reranker_folder(index: str | Path, name: str) -> Path:
    """Return the folder of a reranker beside an index.

    Raises:
        ValueError: the name is not a plain folder name.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"The name of a reranker must be a plain folder name, got {name!r}.")
    return Path(index) / "rerank" / name


def save_reranker(reranker: Reranker, index: str | Path, name: str) -> Path:
    """Write a reranker beside the index that it was trained on, in one step, and return its folder, RUN/rerank/NAME.

    Raises:
        FileNotFoundError: no index.
        ValueError: the name is not a plain folder name.
    """
    folder = reranker_folder(index, name)
    with updating(Path(index)):
        reranker.save(folder, binding(read_manifest(Path(index))))
    return folder


def load_rerankers(index: str | Path, names: str | Sequence[str], *, device: str | None = None) -> list[Reranker]:
    """Return rerankers by name, for `dsi.rerank`.

    Args:
        index: the index's folder, RUN.
        names: one name or several: of RUN/rerank, or "cross-encoder:MODEL" with a Hub name or a folder.
        device: of cross-encoders; the best available by default.

    Raises:
        FileNotFoundError: no such reranker or model.
        ValueError: it was trained for another encoder or generator, the model does not score pairs, or a bad device.

    Example:
        >>> import dsi
        >>> from dsi.rerankers.diversity import Pyversity
        >>> from dsi.rerankers.reranking import save_reranker
        >>> folder = save_reranker(Pyversity("mmr"), "RUN", "mmr")
        >>> dsi.load_rerankers("RUN", ["mmr"])[0].strategy
        'mmr'
    """
    bound_to = binding(read_manifest(Path(index)))
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, Sequence) or not all(isinstance(name, str) for name in several):
        raise TypeError(f"names must be the name of a reranker or a list of names, got {names!r}.")

    def load(name: str) -> Reranker:
        if name.startswith(_CROSS_ENCODER):
            return CrossEncoderReranker(name.removeprefix(_CROSS_ENCODER), device=device)
        return load_reranker(reranker_folder(index, name), bound_to).to(device)

    return [load(name) for name in several]
