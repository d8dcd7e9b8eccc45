"""Indexes on the Hugging Face Hub: found by name, downloaded once, pushed with a model card. Knows nothing of searching.

What is uploaded and downloaded is what the manifest lists. The cache, HF_HUB_OFFLINE, HF_TOKEN and HF_ENDPOINT are those of
huggingface_hub.
"""

import glob
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dsi.docids.files.reading import check_names
from dsi.docids.files.storage import recover_folder
from dsi.store.loading import updating
from dsi.store.model_card import model_card
from dsi.store.verify import part_names, read_entries, read_manifest

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"(encoder|token_model|generator|(docids|lexical|memory)(-\d+)?)/.+")
"""Files of an index in a repository."""


def index_folder(name: str | Path, revision: str | None = None, token: str | bool | None = None) -> Path:
    """Return the folder of an index: `name` itself, or a download without such a folder and it has the form "user/name".

    Args:
        name: a folder, or a str that may be the name of an index on the Hub.
        revision: branch, tag or commit on the Hub.
        token: for private indexes; by default that of `hf auth login` or HF_TOKEN.

    Raises:
        FileNotFoundError: neither a folder nor an index on the Hub, no such revision, or not in the cache when offline.
        ConnectionError: the Hub refuses or cannot be reached.
        ValueError: a revision of a folder, or a malformed manifest.
    """
    folder = Path(name)
    recover_folder(folder)
    if folder.exists() and revision is not None:
        raise ValueError(f"{name} is a folder, which has no revisions, got revision {revision!r}; leave it out.")
    if folder.exists() or not isinstance(name, str) or not _NAME.fullmatch(name):
        return folder
    with _plain_errors(name, revision):
        manifest = Path(hf_hub_download(name, "manifest.json", revision=revision, token=token))
        entries = read_entries(manifest)
        files = entries["files"]
        check_names(manifest.parent, part_names(entries), files)  # before anything is fetched
        commit, patterns = manifest.parent.name, [glob.escape(file) for file in files]
        return Path(snapshot_download(name, revision=commit, allow_patterns=patterns, token=token))


def push(
    folder: Path,
    name: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    license: str | None = None,  # noqa: A002
) -> str:
    """Upload an index with a model card in one commit, and return the URL of the commit.

    Files of an earlier generation are removed from the repository; it is created if it does not exist.

    Args:
        folder: the index; not updated meanwhile.
        name: on the Hub, "user/name".
        private: make a new repository private.
        token: with the right to write; by default that of `hf auth login` or HF_TOKEN.
        license: for the card, as the Hub names it, such as "apache-2.0".

    Raises:
        FileNotFoundError: no finished index in the folder, or no repository that may be written.
        ConnectionError: the Hub refuses or cannot be reached.
        ValueError: the name is not one that the Hub takes, or a file of the index was altered.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f'The name of an index on the Hub must have the form "user/name", got {name!r}.')
    with updating(folder), _plain_errors(name, None):
        manifest = read_manifest(folder)
        card = model_card(folder, manifest, name, license)
        files = ["manifest.json", *manifest["files"]]
        api = HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        stale = [file for file in api.list_repo_files(name) if _PART.fullmatch(file) and file not in files]
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd("README.md", str(card).encode()),
            *(CommitOperationAdd(file, folder / file) for file in files),
            *(CommitOperationDelete(file) for file in stale),
        ]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")  # documents.arrow
            commit = api.create_commit(name, operations, commit_message=f"Index, generation {manifest['generation']}")
    return str(commit.commit_url)


@contextmanager
def _plain_errors(name: str, revision: str | None) -> Iterator[None]:
    """Turn errors of huggingface_hub into one line with the remedy."""
    try:
        yield
    except LocalEntryNotFoundError:
        reason = "HF_HUB_OFFLINE forbids asking the Hub" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        text = f"{name} is not a folder, and not whole in the Hub's cache; {reason}."
        raise FileNotFoundError(f"{text} Name a folder, or try again online.") from None
    except RevisionNotFoundError:
        raise FileNotFoundError(
            f"{name} on the Hub has no revision {revision!r}; name one of its branches, tags or commits."
        ) from None
    except RepositoryNotFoundError:  # or one that may not be read
        raise FileNotFoundError(
            f"{name} is neither a folder nor an index on the Hub that you may use; check the name, or log in "
            "(`hf auth login`, HF_TOKEN)."
        ) from None
    except EntryNotFoundError:
        raise FileNotFoundError(
            f"{name} on the Hub holds no finished index (no manifest.json); name one that `dsi push` wrote."
        ) from None
    except HFValidationError as error:
        raise ValueError(f"{name} is neither a folder nor a name that the Hub takes ({_first_line(error)}).") from None
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise ConnectionError(f"The Hub refused {name} ({_first_line(error)}); see if you are logged in.") from None
    except Exception as error:
        if not _is_connection(error):
            raise
        raise ConnectionError(f"The Hub at {constants.ENDPOINT} cannot be reached ({_first_line(error)}).") from None


def _is_connection(error: Exception) -> bool:
    """True if an error is one of the connection: OfflineModeIsEnabled, or of the HTTP client that huggingface_hub uses."""
    return isinstance(error, ConnectionError) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
