"""Transformers of an encoder in ONNX Runtime, for search on CPUs: exported here from their weights, kept in the user's cache.

A graph is a transformer alone: pooling, projections and normalisation stay in torch. It is named by all that made it, and
checked when it is loaded; an index neither holds nor brings one. Knows nothing of prompts or texts' lengths.
"""

import copy
import logging
import os
import warnings
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import Transformer
from torch import Tensor, nn

from dsi.contrastive.inference import for_inference
from dsi.contrastive.models import PROBE
from dsi.docids.files.storage import digest, folder_sums, read_record, replace_folder, write_json, writing_to
from dsi.docids.files.untrusted import check_folder

logger = logging.getLogger(__name__)

BACKENDS = ("torch", "onnx")
"""What may compute the encoder in search."""
_PACKAGES = ("onnx", "onnxruntime", "torch", "transformers")
"""What a graph depends on, beside the model."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_GRAPH, _RECORD = "transformer.onnx", "record.json"
_OPERATORS = 17
"""ONNX operator set; the first with layer normalisation."""
_TOLERANCE = 1e-4
"""By how much token states of a graph may differ from torch's; rounding was measured to 3e-6."""


def import_runtime() -> Any:
    """Return the module onnxruntime, with its telemetry off unless ORT_DISABLE_TELEMETRY says otherwise.

    Raises:
        ModuleNotFoundError: onnxruntime or onnx is not installed; names the extra.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it sends events, and keeps an id in the user's cache
    try:
        import onnx  # noqa: F401 (the exporter needs it)
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'backend = "onnx" needs {error.name}; run pip install "dr-scl[onnx]", or use "torch".'
        ) from None
    return onnxruntime


def check_backend(backend: str, dtype: torch.dtype) -> None:
    """Raise unless a backend can be used with a dtype.

    Raises:
        ModuleNotFoundError: its packages are not installed.
        ValueError: no such backend, or it does not compute in this dtype.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if backend == "onnx":
        import_runtime()
        if dtype != torch.float32:
            raise ValueError('backend = "onnx" computes in float32 alone; leave dtype out, or use backend = "torch".')


def cache_folder() -> Path:
    """Return the folder of all graphs, below XDG_CACHE_HOME or ~/.cache; it may be deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dr-scl" / "onnx"


def for_onnx_runtime(model: nn.Module, fingerprint: str) -> nn.Module:
    """Return a copy of a model, with shared weights, whose transformers are computed by ONNX Runtime.

    A transformer that cannot be exported is told in a warning; then torch computes them all, as `for_inference` has it.

    Args:
        model: of sentence-transformers, in float32 on the CPU.
        fingerprint: digest of its weights.

    Raises:
        ValueError: the model is on another device.
        OSError: the cache cannot be written.
    """
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise ValueError(f'backend = "onnx" runs on the CPU, and the encoder is on {device}; give device="cpu".')
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]})
    try:
        for name, module in shared.named_modules():
            if isinstance(module, Transformer):
                module.auto_model.forward = _graph(module, f"{name} of {fingerprint}")
    except OSError:
        raise
    except Exception as error:  # of whatever the exporter meets in a model's code
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        logger.warning("The encoder cannot be exported to ONNX (%s); torch computes it.", reason)
        return for_inference(model, torch.float32)
    return shared.eval()


class GraphRunner:
    """Stands in for the forward pass of a transformer; a copy of the model shares it.

    Args:
        file: the graph.
        output: what it returns, by transformers' name.
    """

    def __init__(self, file: Path, output: str) -> None:
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self.output = output
        self.session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]

    def __call__(self, **features: Any) -> dict[str, Tensor]:
        """Return {output: token states [n, length, state_dim]}."""
        (states,) = self.session.run(None, {name: features[name].numpy() for name in self.inputs})
        return {self.output: torch.from_numpy(states)}

    def __deepcopy__(self, _: dict[int, Any]) -> "GraphRunner":
        return self


class _StatesAlone(nn.Module):
    """A transformer with the inputs and the output of its graph."""

    def __init__(self, model: nn.Module, inputs: list[str], output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs, output

    def forward(self, *values: Tensor) -> Any:
        return self.model(**dict(zip(self.inputs, values, strict=True)), return_dict=True)[self.output]


def _graph(transformer: Transformer, name: str) -> GraphRunner:
    """Return the graph of a transformer from the cache; exported first if it is not there as it was written."""
    made_of = [name, transformer.auto_model.config.to_json_string(), *map(version, _PACKAGES), _OPERATORS]
    key, output = digest(made_of), transformer.modality_config["text"]["method_output_name"]
    folder = cache_folder() / key
    if not _is_whole(folder, key):
        with writing_to(folder):
            if not _is_whole(folder, key):
                with replace_folder(folder) as partial:
                    _export(transformer, partial / _GRAPH, output)
                    write_json(partial / _RECORD, {"key": key, "files": folder_sums(partial)})
    return GraphRunner(folder / _GRAPH, output)


def _is_whole(folder: Path, key: str) -> bool:
    """True if a folder holds the graph of a key as it was written."""
    try:
        check_folder(folder, (".onnx", ".json"))
    except (OSError, ValueError):  # what has no end is not read
        return False
    files = {name: total for name, total in folder_sums(folder).items() if name != _RECORD}
    return read_record(folder / _RECORD) == {"key": key, "files": files}


def _export(transformer: Transformer, file: Path, output: str) -> None:
    """Write the graph of a transformer.

    Raises:
        ValueError: the graph gives other states than the transformer.
    """
    features = _probe(transformer, ["A noble gas", PROBE])
    model = _StatesAlone(transformer.auto_model, list(features), output).eval()
    with (
        torch.no_grad(),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(StringIO()),
    ):  # a failure prints pages
        torch.onnx.export(
            model,
            tuple(features.values()),
            str(file),
            input_names=list(features),
            output_names=[output],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in (*features, output)},
            opset_version=_OPERATORS,
            dynamo=False,  # the newer exporter needs one more package, and is slower
        )
    runner = GraphRunner(file, output)
    for texts in (["rivers of Europe"], ["x", "Danube"], [PROBE, "noble gases", "x"]):
        features = _probe(transformer, texts)
        real = features["attention_mask"].bool()
        with torch.no_grad():
            expected = model(*features.values())[real]
        if not torch.allclose(runner(**features)[output][real], expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ValueError("its graph gives other token states")


def _probe(transformer: Transformer, texts: list[str]) -> dict[str, Tensor]:
    """Return the inputs of a transformer for some texts."""
    features, declared = transformer.preprocess(texts), transformer.model_forward_params
    return {name: features[name] for name in _INPUTS if name in features and (not declared or name in declared)}
