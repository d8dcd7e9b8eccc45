"""Stage `generator` of a run: the texts and labels that the generator is trained on, and its training.

Knows nothing of the other stages but their outputs.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsi.config import Config
from dsi.contrastive.blocks import DocumentTexts, encode_blocks
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import build_tree
from dsi.docids.data.collection import Collection, MadeTexts
from dsi.docids.files.storage import digest
from dsi.docids.schemes import DocidsConfig
from dsi.docids.schemes.file import read_docids
from dsi.docids.tree import DocidTree, nearest_places
from dsi.docids.types import Floats, Ints
from dsi.generator.base import Generator
from dsi.generator.examples import DocidExamples, Texts, group_relevant
from dsi.generator.fusion import fuse
from dsi.generator.kinds import create_generator, find_kind
from dsi.generator.objectives import find_objective
from dsi.generator.states import StateCache, write_states
from dsi.generator.trainer import train_generator
from dsi.training.embedding import documents_digest, remove_others
from dsi.training.stages import StageFolders

logger = logging.getLogger(__name__)

TrainingInputs = StateCache | Texts
"""What a generator is trained on."""


@dataclass(frozen=True)
class TextsOfKind:
    """Texts of one kind: how the encoder reads them, a value that tells them from others, document rows, texts."""

    kind: str
    origin: list[Any]
    rows: NDArray[np.integer]
    texts: Sequence[str]


@dataclass(frozen=True)
class GeneratorStage:
    """Trains the generator of a run."""

    config: Config
    collection: Collection
    encoder: Encoder
    tree: DocidTree
    pseudo_queries: tuple[NDArray[np.integer], Sequence[str], str]
    folders: StageFolders
    documents: Path

    def train(self, work: Path) -> tuple[Generator, dict[str, float]]:
        """Return the trained generator, and loss, steps and seconds of its training.

        With `training.train_encoder` the encoder changes too.
        """
        config, training = self.config, self.config.training
        numbers = None
        if find_kind(config.generator.docid_tokens, config.generator.reads).tokens_are_nodes:
            numbers = read_numbers(self.folders.folder / "docids", self.collection.documents["doc_id"], self.tree)
        generator = create_generator(
            config.generator, self.tree, self.encoder.state_dim, training.objective, config.seed, numbers
        ).to(self.encoder.model.device)
        record = train_generator(
            generator,
            self.examples(generator),
            training,
            work,
            self.encoder if training.train_encoder else None,
            seed=config.seed,
            bf16=config.bf16,
        )
        return generator, record

    def examples(self, generator: Generator | None = None) -> DocidExamples:
        """Return the indexing and retrieval examples, on cached states, or on texts, if those are read in training."""
        parts = self._parts()
        texts = [(part.kind, part.texts) for part in parts]
        if generator and (tokenized := generator.training_texts(texts)):
            inputs: TrainingInputs = tokenized
        elif self.config.training.train_encoder:
            inputs = Texts(self.encoder.model.preprocess, self.encoder.model.prompts, texts)
        else:
            inputs = self._states(parts)
        positions = self._places(parts, inputs)
        objective = find_objective(self.config.training.objective)
        relevant = group_relevant(texts, positions) if objective.all_relevant else {}
        return DocidExamples(inputs, positions, self.tree, relevant)

    def _places(self, parts: Sequence[TextsOfKind], inputs: TrainingInputs) -> NDArray[np.integer]:
        """Return the docid position of each text's document; if it has several, the place whose vector is nearest to the text.

        So a piece has its place, and a query that of the piece which answers it best.
        """
        rows = np.concatenate([part.rows for part in parts])
        if self.tree.most_places == 1:
            return self.tree.positions[rows]
        encoded = inputs.embeddings if isinstance(inputs, StateCache) else self._embeddings(parts)
        return nearest_places(self.tree, rows, encoded)

    def _parts(self) -> list[TextsOfKind]:
        """Return the texts of indexing and retrieval examples, by kind."""
        config, encoder, parts = self.config.training, self.encoder, []
        if config.documents:
            parts.append(self._documents())
        pairs = self.collection.pairs("train")
        texts = [self.collection.queries[query_id] for query_id, _ in pairs]
        parts.append(
            TextsOfKind("query", texts, np.array([row for _, row in pairs], dtype=int), encoder.query_texts(texts))
        )
        rows, generated, key = self.pseudo_queries
        parts.append(TextsOfKind("query", [key], rows, MadeTexts(generated, encoder.query_texts)))
        parts = [part for part in parts if len(part.rows)]
        if not parts:
            raise ValueError(
                f"There is nothing to train the decoder on; add {self.collection.place_of('train')}, or set "
                "training.documents or pseudo_queries.method."
            )
        return parts

    def _documents(self) -> TextsOfKind:
        """Return the texts of the documents, or of their pieces."""
        pieces = DocumentTexts(self.encoder, self.collection.documents, self.tree.pieces)
        origin = [documents_digest(self.collection.documents), self.tree.pieces]
        return TextsOfKind("document", origin, pieces.rows, pieces)

    def _embeddings(self, parts: Sequence[TextsOfKind]) -> Floats:
        """[texts, dim] the embeddings of all parts; those of whole documents are in the tree."""
        vectors = []
        for part, folder in zip(parts, self._folders(parts, "queries"), strict=True):
            if part.kind == "document" and self.tree.pieces == 1:
                vectors.append(self.tree.embeddings[self.tree.positions])
            else:
                cache = self.documents if part.kind == "document" else folder
                vectors.append(encode_blocks(self.encoder, part.texts, part.kind, cache, self.folders.processes))
        return np.concatenate(vectors)

    def _states(self, parts: Sequence[TextsOfKind]) -> StateCache:
        """Return the cached token states of all parts."""
        named = zip(self._folders(parts, "states"), parts, strict=True)
        blocks = [
            write_states(self.encoder, part.kind, part.texts, folder, self.folders.processes) for folder, part in named
        ]
        return StateCache([block for part in blocks for block in part])

    def _folders(self, parts: Sequence[TextsOfKind], what: str) -> list[Path]:
        """Return the folder for what the encoder makes of each part, named by all it depends on; others are removed."""
        made_from = [self.encoder.fingerprint, asdict(self.encoder.config)]
        folders = [
            self.folders.states / f"{what}-{digest([*made_from, part.kind, part.origin])[:16]}" for part in parts
        ]
        if self.folders.processes.is_main:
            for kind in ("queries", "states"):
                remove_others(self.folders.states, kind, folders)
        self.folders.processes.wait()
        return folders


def read_numbers(folder: Path, doc_ids: Sequence[str], tree: DocidTree) -> Ints:
    """Return the numbers [N, longest] that a docid scheme gave, in docid order, -1 past the end; see `save_docids_stage`."""
    path = folder / "docids.tsv"
    if not path.exists():
        return tree.paths(np.arange(tree.num_places))[1]
    paths = read_docids(path, doc_ids).paths
    return paths[np.lexsort(paths.T[::-1])].astype(np.int32)  # positions count docids in the order of their numbers


def check_decoder(config: Config, encoder: Encoder) -> None:
    """Make the generator for a tree of four documents; raises what making it for the real one would."""
    generator, width = config.generator, encoder.state_dim
    even = torch.full((1, 2, 3), 1 / 3).log()  # [batch, beams, fan_out]
    fuse(config.search.fusion, even, even, 0.5, even < 0)
    tree = build_tree(np.eye(4, encoder.embedding_dim, dtype=np.float32), DocidsConfig(branching=2, max_leaf_size=1))
    try:
        find_kind(generator.docid_tokens, generator.reads).check_config(config, encoder.model.device)
        numbers = np.arange(4, dtype=np.int32)[:, None]
        made = create_generator(generator, tree, width, config.training.objective, numbers=numbers)
        made.check(generator.decoder)
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FileNotFoundError(
            f"generator.decoder {generator.decoder!r} cannot be loaded ({reason}); name the folder or Hub name of a model."
        ) from None
