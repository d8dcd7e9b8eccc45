"""The trial of an index from elsewhere, in a process that may be lost: `python -m dsi.store.folder.probe FOLDER`.

It loads the index, checks the arrays that libraries follow without a check, encodes three texts and makes three searches. It
ends with status 0, or with the reason on the last line of its standard error. On its standard input are the modules that the
program which asks has imported: what an index names of these may be imported here, too.
"""

import os
import sys
from pathlib import Path

import numpy as np

from dsi.contrastive.model_files import PROBE, TEXTS
from dsi.docids.extensions import IMPORTABLE
from dsi.docids.files.checks import printable
from dsi.store.folder.loading import load_content, read_index
from dsi.store.folder.manifest import part, read_manifest
from dsi.store.retriever import Retriever

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
    encoder.check()
    retriever = Retriever(index)
    first = documents["doc_id"][0].as_py()
    queries = [PROBE, TEXTS[2], str(documents["title"][0])]
    for options in ({}, {"method": "exact"}, {"deny": [first]}):
        for hits in retriever.search(queries, k=10, **options):
            if not np.isfinite([hit.score for hit in hits]).all():
                raise ValueError(f"{folder} gives scores that are not finite.")


def limit_memory(size: int) -> None:
    """Limit the address space of this process where the system can: to what it has now and some times the size of an index."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + _ROOM + _TIMES * size
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):  # a system without such limits
        return


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    IMPORTABLE.update(sys.stdin.read().split())
    sys.exit(main(Path(sys.argv[1])))
