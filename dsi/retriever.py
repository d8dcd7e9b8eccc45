"""The public face: an index on disk, searched, explained and written.

    retriever = GenerativeRetriever.from_pretrained("runs/example")
    retriever.search("which capitals are on the danube", k=5)

An index folder holds `encoder/` (sentence-transformers), `docids/` (the tree, and the document table as Arrow),
`generator/` (config.json, model.safetensors) and `manifest.json`, which binds them: format version, settings, versions, the
sha256 of every file and the fingerprints by which encoder, docids and generator know each other.
"""

import dataclasses
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, overload

import datasets
import pyarrow as pa
import torch
from torch import Tensor
from tqdm.auto import tqdm

from contrastive.encoder import Encoder, EncoderConfig, state_fingerprint
from docids.storage import recover_folder, replace_folder, sha256, write_json
from docids.tree import DocidTree
from dsi.decoder import FastDecoder
from dsi.explanation import Explanation, explain
from dsi.generator import DocidGenerator, load_generator
from dsi.search import LevelTrace, SearchConfig, SearchResult, TreeSearcher

FORMAT_VERSION = 1
_PARTS = ("encoder", "docids", "generator")
_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu")


class Hit(NamedTuple):
    """One answer: rank from 1, fused score, the document's key and title, and its docid."""

    rank: int
    score: float
    doc_id: str
    title: str
    digits: tuple[int, ...]


class Hits(list[Hit]):
    """The answers to one query, best first.

    Attributes:
        exact: True where they are provably the top k of the whole collection under the scores searched with.
    """

    def __init__(self, hits: Sequence[Hit], exact: bool) -> None:
        super().__init__(hits)
        self.exact = exact


@dataclass(frozen=True)
class EncodedQueries:
    """Queries after the encoder, ready to be searched under any settings: batches of (rows, states, mask, embeddings)."""

    count: int
    batches: list[tuple[list[int], Tensor, Tensor, Tensor]]


class GenerativeRetriever:
    """Encoder, docid tree, generator and documents that belong together.

    Args:
        encoder: the frozen encoder.
        tree: the docids.
        generator: the decoder trained for these docids.
        documents: table with doc_id and title, in collection order.
        settings: how to search where a call does not say.

    Raises:
        ValueError: the parts do not belong together.
    """

    def __init__(
        self,
        encoder: Encoder,
        tree: DocidTree,
        generator: DocidGenerator,
        documents: datasets.Dataset,
        settings: SearchConfig | None = None,
    ) -> None:
        generator.check_tree(tree)
        if len(documents) != tree.num_documents:
            raise ValueError(
                f"The docids cover {tree.num_documents} documents, the document table has {len(documents)}."
            )
        if encoder.embedding_dim != tree.embeddings.shape[1] or encoder.state_dim != generator.config.d_model:
            raise ValueError(
                f"The encoder gives embeddings of {encoder.embedding_dim} and states of {encoder.state_dim}, docids and "
                f"generator need {tree.embeddings.shape[1]} and {generator.config.d_model}."
            )
        self.encoder, self.tree, self.generator, self.documents = encoder, tree, generator, documents
        self.settings = settings or SearchConfig()
        self.device = encoder.model.device
        self.searcher = TreeSearcher(tree, FastDecoder(generator.to(self.device)), self.device)
        self._doc_ids: list[str] = list(documents["doc_id"])

    def __repr__(self) -> str:
        return f"GenerativeRetriever({len(self.documents)} documents, docids of up to {self.tree.depth} digits)"

    @overload
    def search(self, queries: str, k: int = 10, **settings: Any) -> Hits: ...
    @overload
    def search(self, queries: Sequence[str], k: int = 10, **settings: Any) -> list[Hits]: ...
    def search(self, queries: str | Sequence[str], k: int = 10, **settings: Any) -> Hits | list[Hits]:
        """The k best documents for a query, or for each of several.

        Args:
            queries: one query or a list of them.
            k: documents a query; k results come back whenever the collection has k documents.
            **settings: `alpha`, `beta`, `fusion`, `ann_temperature`, `beam_width` (see `SearchConfig`); what is left out
                or None is as the index was tuned (beam_width at least k).

        Returns:
            `Hits` for one query, a list of `Hits` for a list.

        Raises:
            ValueError: an empty query, a setting out of range, k > beam_width.
        """
        texts = [queries] if isinstance(queries, str) else list(queries)
        result = self.search_encoded(self.encode_queries(texts), k, **settings)
        hits = [
            self._hits(positions, scores, exact)
            for positions, scores, exact in zip(
                result.positions.tolist(), result.scores.tolist(), result.exact.tolist(), strict=True
            )
        ]
        return hits[0] if isinstance(queries, str) else hits

    def explain(self, query: str, k: int = 5, **settings: Any) -> Explanation:
        """Level by level: the nodes that were kept and pruned, with both scores; prints as a tree."""
        config = self.config(k, settings)
        ((_, states, mask, embeddings),) = self.encode_queries([query]).batches
        trace: list[LevelTrace] = []
        result = self._search_batch(states, mask, embeddings, k, config, trace)
        return explain(query, self.tree, list(self.documents["title"]), config, trace, result.positions[0].tolist())

    def run(self, queries: Mapping[str, str], k: int = 10, **settings: Any) -> dict[str, dict[str, float]]:
        """{query_id: {doc_id: score}} for {query_id: text}: what `eval` measures and TREC tools read."""
        encoded = self.encode_queries(list(queries.values()), progress=True)
        return self.run_encoded(list(queries), encoded, k, **settings)

    def run_encoded(
        self, query_ids: Sequence[str], encoded: EncodedQueries, k: int = 10, **settings: Any
    ) -> dict[str, dict[str, float]]:
        """`run` for queries that are encoded already."""
        result = self.search_encoded(encoded, k, **settings)
        return {
            query_id: {
                self._doc_ids[self.tree.doc_rows[position]]: score
                for position, score in zip(positions, scores, strict=True)
                if position >= 0
            }
            for query_id, positions, scores in zip(
                query_ids, result.positions.tolist(), result.scores.tolist(), strict=True
            )
        }

    def encode_queries(self, queries: Sequence[str], *, batch_size: int = 32, progress: bool = False) -> EncodedQueries:
        """Run the encoder once, so that many settings can be searched with; batches hold queries of like length."""
        for row, query in enumerate(queries):
            if not isinstance(query, str) or not query.strip():
                raise ValueError(f"Query {row} must be a text that is not empty, got {query!r}.")
        texts = self.encoder.query_texts(queries)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        batches = []
        starts = range(0, len(order), batch_size)
        for start in tqdm(starts, desc="queries", unit="batch", disable=not progress):
            rows = order[start : start + batch_size]
            batches.append((rows, *self.encoder.forward([texts[row] for row in rows], "query")))
        return EncodedQueries(len(texts), batches)

    def search_encoded(self, encoded: EncodedQueries, k: int = 10, **settings: Any) -> SearchResult:
        """`search` as tensors, rows in the order of the queries."""
        config = self.config(k, settings)
        width = min(k, self.tree.num_documents)
        positions = torch.full((encoded.count, width), -1)
        scores, exact = torch.empty(encoded.count, width), torch.zeros(encoded.count, dtype=torch.bool)
        for rows, states, mask, embeddings in encoded.batches:
            result = self._search_batch(states, mask, embeddings, k, config)
            positions[rows], scores[rows] = result.positions.cpu(), result.scores.cpu()
            exact[rows] = result.exact.cpu()
        return SearchResult(positions, scores, exact)

    def _search_batch(
        self,
        states: Tensor,
        mask: Tensor,
        embeddings: Tensor,
        k: int,
        config: SearchConfig,
        trace: list[LevelTrace] | None = None,
    ) -> SearchResult:
        node_scores = self.searcher.node_scores(embeddings, config)
        return self.searcher.search(states, mask, node_scores, k, config, trace)

    def config(self, k: int, settings: Mapping[str, Any]) -> SearchConfig:
        """The full settings of a search for k documents: those given, then the index's, beam_width at least k."""
        given = {name: value for name, value in settings.items() if value is not None}
        if "beam_width" not in given:
            given["beam_width"] = max(self.settings.beam_width, k)
        return dataclasses.replace(self.settings, **given)

    def change_settings(self, **settings: Any) -> None:
        """Change how this retriever searches by default."""
        self.settings = dataclasses.replace(self.settings, **settings)

    @property
    def generator_fingerprint(self) -> str:
        """sha256 of the generator's weights."""
        return state_fingerprint(self.generator)

    def _hits(self, positions: list[int], scores: list[float], exact: bool) -> Hits:
        hits = []
        for rank, (position, score) in enumerate(zip(positions, scores, strict=True), start=1):
            if position < 0:
                break
            row = int(self.tree.doc_rows[position])
            title = self.documents[row]["title"]
            hits.append(Hit(rank, score, self._doc_ids[row], title, self.tree.digits(position)))
        return Hits(hits, exact)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the whole index in one step; a killed process leaves the old folder or the new one."""
        with replace_folder(Path(folder)) as partial:
            self.encoder.save(partial / "encoder")
            save_docids(self.tree, self.documents, partial / "docids")
            self.generator.save_pretrained(str(partial / "generator"))
            write_manifest(partial, self.encoder, self.tree, self.generator, self.settings)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | None = None) -> "GenerativeRetriever":
        """Load an index, after checking every file of it.

        Raises:
            FileNotFoundError: no index there, or a part of it is missing.
            ValueError: a file was altered or truncated, or parts do not belong together; the message says which.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        encoder = Encoder.load(EncoderConfig(**manifest["encoder"]), folder / "encoder", device)
        tree, documents = load_docids(folder / "docids")
        generator = load_generator(folder / "generator", encoder.model.device)
        _check_binding(manifest, encoder, tree)
        return cls(encoder, tree, generator, documents, _search_config(manifest["search"]))


def save_docids(tree: DocidTree, documents: datasets.Dataset, folder: Path) -> None:
    """Write the tree and the document table into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "docids.safetensors")
    table = documents.select_columns(["doc_id", "title"]).with_format("arrow")[:]
    with pa.OSFile(str(folder / "documents.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def load_docids(folder: Path) -> tuple[DocidTree, datasets.Dataset]:
    """Read what `save_docids` wrote; the document table stays on disk."""
    tree = DocidTree.load(folder / "docids.safetensors")
    return tree, datasets.Dataset.from_file(str(folder / "documents.arrow"))


def write_manifest(
    folder: Path, encoder: Encoder, tree: DocidTree, generator: DocidGenerator, settings: SearchConfig
) -> None:
    """Bind the parts in `folder` to each other: the last thing that is written, the first that is read."""
    files = sorted(path for part in _PARTS for path in (folder / part).rglob("*") if path.is_file())
    manifest = {
        "format_version": FORMAT_VERSION,
        "encoder": dataclasses.asdict(encoder.config),
        "search": dataclasses.asdict(settings),
        "fingerprints": {"encoder": encoder.fingerprint, "docids": tree.fingerprint},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "files": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
    }
    write_json(folder / "manifest.json", manifest)


def write_settings(folder: Path, settings: SearchConfig) -> None:
    """Change how an index on disk is searched by default."""
    manifest = read_manifest(folder)
    write_json(folder / "manifest.json", {**manifest, "search": dataclasses.asdict(settings)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index, every file of which has been checked against it."""
    recover_folder(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no finished index (no manifest.json); run dsi train --output {folder}."
        )
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if manifest["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {manifest['format_version']}, this version reads {FORMAT_VERSION}; "
            "install the version that wrote it or train again."
        )
    for name, digest in manifest["files"].items():
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing from the index; restore it or train again.")
        if sha256(folder / name) != digest:
            raise ValueError(
                f"{folder / name} was altered or truncated since it was written; restore it or train again."
            )
    return manifest


def _search_config(record: dict[str, Any]) -> SearchConfig:
    return SearchConfig(**{**record, "beta": float(record["beta"])})  # JSON has no infinity: "inf"


def _check_binding(manifest: dict[str, Any], encoder: Encoder, tree: DocidTree) -> None:
    for part, found in (("encoder", encoder.fingerprint), ("docids", tree.fingerprint)):
        expected = manifest["fingerprints"][part]
        if found != expected:
            raise ValueError(
                f"manifest.json and {part} do not belong together: the manifest names {expected[:12]}, "
                f"{part} is {found[:12]}; restore the one that was replaced."
            )
