"""Indexes that clusters serve, as fixtures."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsi
from dsi.cluster.cluster import Cluster
from dsi.config import Config
from tests.support.small import PROMPTS, write_collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return dsi.read_collection(write_collection(tmp_path_factory.mktemp("cluster") / "collection"))


class Runs(dict[str, Path]):
    """Indexes of 40 documents with BM25 and tokens: plain, with several places a document, and searched by codes."""

    def __init__(self, folder: Path, encoder: Path, collection) -> None:
        self.folder, self.encoder, self.collection = folder, encoder, collection

    def __missing__(self, name: str) -> Path:
        docids = {"branching": 5, "max_leaf_size": 3, "pieces": 1}
        own = {
            "plain": {"docids": docids},
            "places": {"docids": {**docids, "pieces": 3}},
            "codes": {"docids": docids},
        }[name]
        encoder = {"encoder": {"name": str(self.encoder), **PROMPTS, "document_length": 16}}
        search = {"lexical_weight": 0.1, "token_weight": 0.5, "beam_width": 3, "candidates": 8}
        config = Config().without_training().with_changes({**encoder, "search": search, "dev_queries": 0, **own})
        with pytest.MonkeyPatch.context() as patch:
            if name == "codes":
                patch.setattr("dsi.docids.tree.LARGE", 0)
            dsi.train(self.collection, self.folder / name, config=config, device="cpu")
        self[name] = self.folder / name
        return self[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, sentence_bert_folder, collection) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), sentence_bert_folder, collection)


@pytest.fixture(scope="module")
def ray(ray_address) -> Iterator[Cluster]:
    answer = signal.getsignal(signal.SIGTERM)
    with Cluster(ray_address, processes=2) as cluster:
        assert signal.getsignal(signal.SIGTERM) == answer  # Ray's own would end a server in the middle of its answers
        yield cluster


def alone(folder: Path) -> dsi.Retriever:
    return dsi.load(folder, device="cpu")


def texts_of(collection) -> list[str]:
    return list(collection.query_texts("test").values())
