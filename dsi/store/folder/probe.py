"""The trial of an index from elsewhere, in a process that may be lost: `python -m dsi.store.folder.probe FOLDER`.

It loads the index, checks the arrays that libraries follow without a check, encodes three texts and makes three searches. It
ends with status 0, or with the reason on the last line of its standard error. On its standard input are the modules that the
program which asks has imported: what an index names of these may be imported here, too.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dsi.contrastive.graph import GraphEncoder
from dsi.contrastive.model_files import PROBE, TEXTS
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.extensions import IMPORTABLE
from dsi.docids.files.checks import printable
from dsi.store.folder.loading import load_content, read_index
from dsi.store.folder.manifest import part, read_manifest
from dsi.store.retriever import Retriever

_CLOSE = 1e-3
"""Difference of a graph and its model on another machine than where it was made, at most."""
_ROOM = 8 * 2**30
_TIMES = 8
"""Address space beyond what the libraries take: bytes, and times the size of the files."""


def main(folder: Path) -> int:
    """Try the index in a folder, and return the exit status."""
    try:
        manifest = read_manifest(folder)
        limit_memory(sum((folder / name).stat().st_size for name in manifest["files"]))
        try_index(folder)
    except (Exception, MemoryError) as error:
        print(printable((str(error).strip() or type(error).__name__).splitlines()[0]), file=sys.stderr)  # noqa: T201
        return 1
    return 0


def try_index(folder: Path) -> None:
    """Load the index in a folder and search it; ValueError says what is wrong with it."""
    manifest = read_manifest(folder)
    content = load_content(folder, manifest)
    tree, documents, lexical, memory, _ = content
    for batch in documents.to_batches():
        batch.validate(full=True)  # Arrow does not check the offsets in a file before it follows them
    index = read_index(folder, manifest, content, "cpu")
    encoder = index.encoder
    sound = {
        "docids": tree.is_sound(),
        "lexical": not lexical or lexical.is_sound(),
        "memory": memory.is_sound(encoder.embedding_dim, tree.num_rows),
    }
    for name in (name for name, is_sound in sound.items() if not is_sound):
        raise ValueError(f"{part(folder, manifest, name)} cannot be read (its arrays do not fit each other).")
    _check_outputs(encoder)
    if isinstance(encoder, GraphEncoder) and find_spec("sentence_transformers"):
        _check_graph(encoder)
    retriever = Retriever(index)
    first = documents["doc_id"][0].as_py()
    queries = [PROBE, TEXTS[2], str(documents["title"][0])]
    for options in ({}, {"method": "exact"}, {"deny": [first]}):
        for hits in retriever.search(queries, k=10, **options):
            if not np.isfinite([hit.score for hit in hits]).all():
                raise ValueError(f"{folder} gives scores that are not finite.")


def _check_outputs(encoder: TextEncoder) -> None:
    """Raise ValueError unless an encoder gives finite embeddings and states of its stated widths."""
    for kind in ("query", "document"):
        states, _, embeddings, _ = encoder.forward(TEXTS, kind)
        sizes, expected = [states.shape[-1], embeddings.shape[-1]], [encoder.state_dim, encoder.embedding_dim]
        if sizes != expected:
            raise ValueError(f"The encoder's states and embeddings are {sizes} wide, and should be {expected}.")
        if not all(np.isfinite(output).all() for output in (states, embeddings)):
            raise ValueError("The encoder gives embeddings that are not finite.")


def _check_graph(encoder: GraphEncoder) -> None:
    """Raise ValueError unless a graph gives what the model beside it does."""
    from dsi.contrastive.encoder import Encoder
    from dsi.contrastive.export import compare

    try:
        compare(encoder, Encoder.load(encoder.config, encoder.folder, "cpu"), _CLOSE)
    except ValueError as error:
        raise ValueError(f"{encoder.folder} does not belong together: {error}") from None


def limit_memory(size: int) -> None:
    """Limit the address space of this process where the system can: to what it has now and some times the size of an index."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + _ROOM + _TIMES * size
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if resource.RLIM_INFINITY in (soft,) or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):  # a system without such limits
        return


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    IMPORTABLE.update(sys.stdin.read().split())
    sys.exit(main(Path(sys.argv[1])))
