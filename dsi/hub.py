"""Indexes on the Hugging Face Hub: downloaded by name, pushed with a model card. Knows nothing of searching.

The cache, HF_HUB_OFFLINE, HF_TOKEN and HF_ENDPOINT are those of huggingface_hub.
"""

import glob
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, ModelCard, ModelCardData, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dsi.contrastive.models import is_local
from dsi.docids.files.reading import check_names
from dsi.store.folder.manifest import part_names, read_entries
from dsi.store.retriever import Retriever

_STALE = [f"{part}{number}/*" for part in ("docids", "lexical", "memory") for number in ("", "-*")]
_STALE += [f"{part}/*" for part in ("encoder", "generator")]
"""Files of an earlier state of an index in a repository, unless they are uploaded again."""


def download(name: str, revision: str | None = None, token: str | bool | None = None) -> Path:
    """Return the folder of a downloaded index: what its manifest lists, and no other file of the repository."""
    with _plain_errors(name):
        cached = is_local(name)
        manifest = Path(hf_hub_download(name, "manifest.json", revision=revision, token=token, local_files_only=cached))
        entries = read_entries(manifest)
        check_names(manifest.parent, part_names(entries), entries["files"])  # before anything is fetched
        patterns = [glob.escape(file) for file in entries["files"]]
        commit = manifest.parent.name
        return Path(
            snapshot_download(name, revision=commit, allow_patterns=patterns, token=token, local_files_only=cached)
        )


def push(
    retriever: Retriever,
    name: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    license: str | None = None,  # noqa: A002
    query_words: bool | None = None,
) -> str:
    """Upload an index with a model card in one commit, and return the URL of the commit.

    The texts of learned queries stay here. Files of an earlier state are removed from the repository; it is created if it does
    not exist.

    Args:
        retriever: the index.
        name: on the Hub, "user/name".
        private: make a new repository private.
        token: with the right to write; by default that of `hf auth login` or HF_TOKEN.
        license: for the card, as the Hub names it, such as "apache-2.0".
        query_words: upload hashes of the words of learned queries, without which these answer less. Whoever has them can test
            which words were asked. Has to be said where the index has learned.

    Raises:
        FileNotFoundError: no repository that may be written.
        ConnectionError: the Hub refuses or cannot be reached.
        ValueError: the weights were loaded in another dtype than float32, or `query_words` is not said.
    """
    memory = retriever.snapshot.memory
    if query_words is None and memory.has_words:
        raise ValueError(
            f"The index has learned {len(memory):,} pairs of a query and a document. With query_words=True "
            "(--query-words) hashes of the queries' words are uploaded, by which anybody can test which words were asked; with "
            "False (--no-query-words) they stay here, and the uploaded index makes less of what it has learned. Choose one."
        )
    with TemporaryDirectory(prefix="dsi-") as folder, _plain_errors(name), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")  # documents.arrow
        index = Path(folder) / "index"
        Retriever(retriever.snapshot.with_memory(memory.published(words=bool(query_words)))).save(index)
        model_card(retriever, name, license).save(index / "README.md")
        api = HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=index, delete_patterns=_STALE).commit_url)


def model_card(retriever: Retriever, name: str, license: str | None = None) -> ModelCard:  # noqa: A002
    """Return the card of an index: what it is and how it is used."""
    tags = ["generative-retrieval", "information-retrieval", "document-retrieval"]
    data = ModelCardData(license=license, library_name="dr-scl", tags=tags, model_name=name.split("/")[-1])
    return ModelCard(
        f"""---
{data.to_yaml()}
---

# {name}

An index of {len(retriever):,} documents for generative document retrieval: a search walks down a tree of document identifiers
(docids) and ranks the documents that it reaches. Made with `dr-scl`.

```python
import dsi

retriever = dsi.load("{name}")
hits = retriever.search("your query", k=10)
```

Loading compares every file with its sum in `manifest.json`, reads only JSON, Arrow and safetensors files, and runs no code.
"""
    )


@contextmanager
def _plain_errors(name: str) -> Iterator[None]:
    """Turn errors of huggingface_hub into one line with the remedy."""
    try:
        yield
    except (LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError) as error:
        raise FileNotFoundError(
            f"{name} is neither a folder nor an index on the Hub that you may use ({_first_line(error)}); check name and "
            "revision, or log in (`hf auth login`, HF_TOKEN)."
        ) from None
    except Exception as error:  # of whichever HTTP library the Hub's client uses
        if not any(
            kind.__module__.startswith(("huggingface_hub", "httpx", "requests")) for kind in type(error).__mro__
        ):
            raise
        raise ConnectionError(f"The Hub at {constants.ENDPOINT} refused {name} ({_first_line(error)}).") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
