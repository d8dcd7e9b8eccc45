"""An encoder by its graph, so that an index encodes texts without torch, and holds its weights once.

`graph.onnx` refers to the weights in the model's safetensors files, and `graph.json` says what tokenizer and settings mean;
`dsi.graph.export` writes both. Knows nothing of docids or of the decoder.
"""

import json
import logging
import shutil
from collections.abc import MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dsi.contrastive.config import LONGEST_INPUT, EncoderConfig
from dsi.contrastive.model_files import TEXTS, TOKENIZER, file_stamp
from dsi.contrastive.text_encoder import PLURALS, Outputs, TextEncoder, Vocabulary
from dsi.docids.files.threads import count_threads

logger = logging.getLogger(__name__)

_CLOSE = 1e-3
"""Difference of a graph and its model on another machine than where it was made, at most."""
GRAPH, SETTINGS = "graph.onnx", "graph.json"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What a graph may read: [n, length] numbers of tokens, 1 at real ones, and 0."""
_TRIED = (
    *TEXTS, "", "Neon", "noble gases", "der längste Fluss Europas", "какой газ светится", "霓虹灯里是什么气体",
    "def f(x):\n    return x", "The Danube flows through ten countries. " * 60,
)  # fmt: skip
"""Texts on which a graph is compared with its model: each alone, the short ones together, and one padded to the long one."""


class GraphEncoder(TextEncoder):
    """An encoder that onnxruntime computes on the CPU, in float32, from its folder, which stays where it is."""

    device = "cpu"

    def __init__(self, folder: Path, config: EncoderConfig, settings: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.folder, self._settings = folder, settings
        vocabulary = Vocabulary(Tokenizer.from_file(str(folder / TOKENIZER)), *settings["vocabulary"])
        super().__init__(config, settings["prompts"], vocabulary, is_cosine=settings["is_cosine"])
        self.usual_length, self.max_length = settings["usual_length"], settings["max_length"]
        self.embedding_dim, self.state_dim = int(settings["embedding_dim"]), int(settings["state_dim"])
        self._source = folder, config
        self._session = _session(folder)
        self._inputs = [entry.name for entry in self._session.get_inputs()]

    @classmethod
    def load(cls, folder: Path, config: EncoderConfig) -> "GraphEncoder":
        """Load the graph in the folder of an encoder, which was judged before."""
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        try:
            return cls(folder, config, settings)
        except Exception as error:  # those of onnxruntime have no common base
            raise ValueError(
                f"{folder / GRAPH} cannot be read ({str(error).splitlines()[0]}); run pip install --upgrade onnxruntime, or "
                "restore the file."
            ) from None

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, prompts and similarity, of the model that was exported."""
        return str(self._settings["fingerprint"])

    def run(self, texts: Sequence[str], kind: str) -> Outputs:
        """Return what the model gives for texts, after their prompt, of one pass."""
        prompted = [self.prompts[kind] + text for text in texts]
        encoded = self._tokens(prompted, self.max_length or LONGEST_INPUT, marks=self.vocabulary.marks)
        number, side = self._settings["padding"]
        counts = np.array([*map(len, encoded)])
        places = np.arange(counts.max(initial=1))
        mask = (places[::-1] if side == "left" else places) < counts[:, None]
        ids = np.full(mask.shape, number, dtype=np.int64)
        ids[mask] = [token for encoding in encoded for token in encoding.ids]
        inputs = dict(zip(INPUTS, (ids, mask.astype(np.int64), np.zeros_like(ids)), strict=True))
        states, vectors = self._session.run(None, {name: inputs[name] for name in self._inputs})
        return Outputs(ids, mask, states, vectors)

    def check(self) -> None:
        """Raise ValueError also unless the graph gives what the model beside it does, where there are libraries for it."""
        super().check()
        if not find_spec("sentence_transformers"):
            return
        from dsi.contrastive.encoder import Encoder

        try:
            self.compare(Encoder.load(self.config, self.folder, "cpu"), _CLOSE)
        except ValueError as error:
            raise ValueError(f"{self.folder} does not belong together: {error}") from None

    def compare(self, encoder: TextEncoder, close: float = 1e-5) -> None:
        """Raise ValueError unless the graph gives what its model does, for texts alone and together; `close` is relative."""
        for kind in PLURALS:
            for texts in (*([text] for text in _TRIED), _TRIED[:-1], (_TRIED[0], _TRIED[-1])):
                ours = self.run(texts, kind)
                if not ours.mask.any():  # some models give nothing for a text without tokens
                    continue
                theirs = encoder.run(texts, kind)
                if not np.array_equal(ours.numbers[ours.mask], theirs.numbers[theirs.mask]):
                    raise ValueError("its tokens are not those that the model reads")
                pairs = (ours.vectors, theirs.vectors), (ours.states[ours.mask], theirs.states[theirs.mask])
                for a, b in pairs:
                    if a.shape != b.shape or np.abs(a - b).max() > close * (1 + np.abs(b).max()):
                        raise ValueError("its graph gives other numbers than the model")

    def for_search(self, dtype: str = "float32") -> "GraphEncoder":
        """Return this encoder, which is fast and never changes."""
        return self

    def save(self, folder: Path) -> None:
        """Copy the encoder, with its graph, into a folder of an index."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("stage.json"), dirs_exist_ok=True)


_SESSIONS: MutableMapping[tuple[tuple[str, int, int, int], ...], Any] = WeakValueDictionary()
"""{names, places, sizes and times of the files of a model: what computes it}: indexes that share the files share it."""


def _session(folder: Path) -> Any:
    """Return what computes the graph in a folder."""
    import onnxruntime

    if (session := _SESSIONS.get(stamp := file_stamp(folder))) is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count_threads()
        options.log_severity_level = 3
        # Waiting threads take the core from others: by default encoding takes six times as long on a busy machine.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
        session = onnxruntime.InferenceSession(str(folder / GRAPH), options, providers=["CPUExecutionProvider"])
        _SESSIONS[stamp] = session
    return session


def has_graph(folder: Path) -> bool:
    """True if the encoder in a folder has a graph, and onnxruntime is there to compute it; a line says if torch has to."""
    if not ((folder / GRAPH).exists() and (folder / SETTINGS).exists()):
        return False
    missing = next((name for name in ("onnxruntime", "tokenizers") if find_spec(name) is None), None)
    if missing and find_spec("torch") is None:
        raise ModuleNotFoundError(f"The encoder in {folder} needs {missing}; run pip install {missing}.", name=missing)
    if missing:
        logger.warning("The encoder takes seconds to load without %s; run pip install %s.", missing, missing)
    return not missing
