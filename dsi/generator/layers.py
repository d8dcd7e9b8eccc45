"""Takes a causal model apart between two of its layers: those below make states of a text, those above read on from them.

The parts are the model's own layers, not copies. Knows nothing of docids and tokenizers.
"""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def layers_of(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the layers of a causal model, and their name in it.

    Raises:
        ValueError: it is not causal, or its layers are not one list.
    """
    if not model.config.is_encoder_decoder:
        count = model.config.num_hidden_layers
        for name, own in model.named_children():
            if isinstance(own, nn.ModuleList) and len(own) == count:
                return name, own
    raise ValueError("it is not a causal model with one list of layers")


def split(model: PreTrainedModel, upper: int) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a model of the layers below the upper ones, without the norm at the end, and one of the upper ones.

    Only the upper layers, and what follows them, are left to training.

    Args:
        model: causal, without an output layer.
        upper: number of its upper layers.

    Raises:
        ValueError: it has fewer layers.
    """
    name, layers = layers_of(model)
    if upper > len(layers):
        raise ValueError(f"it has {len(layers)} layers")
    model.requires_grad_(False)
    cut = len(layers) - upper
    below, above = _part(model, name, 0, cut), _part(model, name, cut, len(layers))
    for follower in _after(model, name):
        below._modules[follower] = nn.Identity()
        above._modules[follower].requires_grad_(True)  # type: ignore[union-attr]
    above._modules[name].requires_grad_(True)  # type: ignore[union-attr]
    for number, layer in enumerate(layers[cut:]):
        for own in layer.modules():
            if hasattr(own, "layer_idx"):
                own.layer_idx = number  # type: ignore[assignment]  # in the keys and values of the upper layers
    return below, above


def _part(model: PreTrainedModel, name: str, start: int, stop: int) -> PreTrainedModel:
    """Return the model with some of its layers."""
    part: Any = copy.copy(model)
    part._modules = {**model._modules, name: nn.ModuleList(model._modules[name][start:stop])}  # type: ignore[index]
    part.config = copy.deepcopy(model.config)
    part.config.num_hidden_layers = stop - start
    if kinds := getattr(part.config, "layer_types", None):
        part.config.layer_types = kinds[start:stop]
    return part  # type: ignore[no-any-return]


def _after(model: PreTrainedModel, name: str) -> list[str]:
    """Return the names of the modules with weights after the layers: the norm at the end."""
    names = list(model._modules)
    return [own for own in names[names.index(name) + 1 :] if any(True for _ in model._modules[own].parameters())]  # type: ignore[union-attr]


@torch.no_grad()
def check_parts(model: PreTrainedModel, below: PreTrainedModel, above: PreTrainedModel) -> None:
    """Raise ValueError unless both parts give what the whole model gives, also where a text does not begin at once.

    They do not where a model adds positions to what it reads, or scales it.
    """
    refused = ValueError("they cannot read on from the states of those below")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise refused
    embed = model.get_input_embeddings()
    read = embed(torch.arange(8).reshape(2, 4).clamp(max=embed.num_embeddings - 1))
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    more = {"attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}

    def states(part: PreTrainedModel, inputs: Tensor) -> Tensor:
        output: Any = part(inputs_embeds=inputs, use_cache=False, return_dict=True, **more)
        return output.last_hidden_state  # type: ignore[no-any-return]

    found = states(above, states(below, read))
    if not torch.allclose(found[mask.bool()], states(model, read)[mask.bool()], rtol=1e-4, atol=1e-5):
        raise refused
