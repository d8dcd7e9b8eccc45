"""LightGBM's text format, checked before the library reads it: it follows the numbers of nodes and features without looking.

Knows only what our own trees are: one output, numerical splits, constant leaves.
"""

import math
from collections.abc import Sequence

_PER_SPLIT = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_END = "end of trees"


def checked_model(text: str, features: int) -> str:
    """Return the trees of a model in LightGBM's text format, without what its reader does not need.

    Args:
        text: what `model_to_string` returned.
        features: how many the model reads.

    Raises:
        ValueError: not such a model, or one that leaves its arrays.
    """
    trees, end, _ = text.partition(f"\n{_END}\n")
    header, *blocks = trees.split("\nTree=")
    if not end or header.split("\n")[0] != "tree":
        raise ValueError("it is not a whole model of LightGBM")
    general = _fields(header)
    expected = {"num_class": "1", "num_tree_per_iteration": "1", "max_feature_idx": str(features - 1)}
    for name, value in expected.items():
        if general.get(name) != value:
            raise ValueError(f"{name} must be {value}, got {general.get(name)}")
    for number, block in enumerate(blocks):
        if not block.startswith(f"{number}\n"):
            raise ValueError(f"tree {number} is missing")
        _check_tree(_fields(block), number, features)
    # Without their sizes the trees are read one after another, and the parameters of the training are not needed.
    lines = [line for line in header.split("\n") if not line.startswith("tree_sizes=")]
    return "\nTree=".join(["\n".join(lines), *blocks]) + f"\n{_END}\n"


def _fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.split("\n") if "=" in line)


def _check_tree(fields: dict[str, str], number: int, features: int) -> None:
    leaves = int(fields["num_leaves"])
    if (fields["num_cat"], fields["is_linear"]) != ("0", "0"):
        raise ValueError(f"tree {number} is of another kind")
    splits: dict[str, Sequence[float]] = {name: _numbers(fields.get(name, "")) for name in _PER_SPLIT}
    sizes = {len(own) for own in splits.values()}
    values = _numbers(fields["leaf_value"])
    if sizes != {leaves - 1} or len(values) != leaves or not all(map(math.isfinite, [*values, *splits["threshold"]])):
        raise ValueError(f"the arrays of tree {number} differ in length")
    if not all(0 <= feature < features for feature in splits["split_feature"]) or any(
        int(kind) & 1 for kind in splits["decision_type"]
    ):
        raise ValueError(f"tree {number} splits on a feature that there is not")
    for side in ("left_child", "right_child"):
        for node, child in enumerate(splits[side]):
            if not (node < child < leaves - 1 or -leaves <= child < 0):
                raise ValueError(f"tree {number} has a child that there is not")


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]
