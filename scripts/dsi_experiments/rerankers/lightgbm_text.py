"""LightGBM's text format: parsed here, and written again for the library, which follows its numbers without a check.

Knows only what our own trees are: one output, numerical splits, constant leaves.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

_END = "end of trees"
_DEEPEST = 1000
"""Splits above a leaf; the library follows them by recursion."""
_HEADER = ("num_class", "num_tree_per_iteration", "max_feature_idx")
_HEADER_UNREAD = (
    "version",
    "label_index",
    "objective",
    "feature_names",
    "feature_infos",
    "tree_sizes",
    "monotone_constraints",
)
_TREE = ("num_leaves", "num_cat", "is_linear", "split_feature", "split_gain", "threshold", "decision_type", "left_child",
         "right_child", "leaf_value")  # fmt: skip
_TREE_UNREAD = ("leaf_weight", "leaf_count", "internal_value", "internal_weight", "internal_count", "shrinkage")
_DECISIONS = (0, 2, 4, 6, 8, 10)
"""Numerical splits, by where missing values go."""
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_REAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?(e[-+]?[0-9]{1,3})?")


class _Tree(NamedTuple):
    """A tree; child c >= 0 is split c, c < 0 leaf -c - 1."""

    split_feature: list[int]
    split_gain: list[float]
    threshold: list[float]
    decision_type: list[int]
    left_child: list[int]
    right_child: list[int]
    leaf_value: list[float]


def checked_model(text: str, features: int) -> str:
    """Return the trees of a model in LightGBM's text format, written anew from what was read.

    Args:
        text: what `model_to_string` returned.
        features: how many the model reads.

    Raises:
        ValueError: not such a model, or one that leaves its arrays.
    """
    trees, end, _ = text.partition(f"\n{_END}\n")
    header, *blocks = trees.split("\nTree=")
    first, _, rest = header.partition("\n")
    if not end or first != "tree":
        raise ValueError("it is not a whole model of LightGBM")
    general = _fields(rest, _HEADER, _HEADER_UNREAD)
    expected = {"num_class": "1", "num_tree_per_iteration": "1", "max_feature_idx": str(features - 1)}
    for name, value in expected.items():
        if general[name] != value:
            raise ValueError(f"{name} must be {value}, got {general[name][:40]!r}")
    parsed = []
    for number, block in enumerate(blocks):
        label, _, body = block.partition("\n")
        if label != str(number):
            raise ValueError(f"tree {number} is missing")
        try:
            parsed.append(_parse(_fields(body, _TREE, _TREE_UNREAD), features))
        except ValueError as error:
            raise ValueError(f"tree {number}: {error}") from None
    return _write(parsed, features)


def _fields(text: str, read: tuple[str, ...], unread: tuple[str, ...]) -> dict[str, str]:
    """Return the fields that are read; every line must be a known field, and none may occur twice."""
    values: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        name, equals, value = line.partition("=")
        if not equals or name not in (*read, *unread) or name in values:
            raise ValueError(f"{name[:40]!r} is unknown, or occurs twice")
        values[name] = value
    if missing := next((name for name in read if name not in values), None):
        raise ValueError(f"{missing} is missing")
    return {name: values[name] for name in read}


def _parse(fields: Mapping[str, str], features: int) -> _Tree:
    (leaves,) = _wholes(fields["num_leaves"], 1)
    if (fields["num_cat"], fields["is_linear"]) != ("0", "0"):
        raise ValueError("it is of another kind")
    splits = leaves - 1
    tree = _Tree(
        _wholes(fields["split_feature"], splits),
        _reals(fields["split_gain"], splits),
        _reals(fields["threshold"], splits),
        _wholes(fields["decision_type"], splits),
        _wholes(fields["left_child"], splits),
        _wholes(fields["right_child"], splits),
        _reals(fields["leaf_value"], leaves),
    )
    if not all(0 <= feature < features for feature in tree.split_feature):
        raise ValueError("it splits on a feature that there is not")
    if not all(kind in _DECISIONS for kind in tree.decision_type):
        raise ValueError("it has a split of another kind")
    _check_children(tree)
    return tree


def _check_children(tree: _Tree) -> None:
    """Raise ValueError unless every split but the first, and every leaf, is the child of one earlier split."""
    leaves = len(tree.leaf_value)
    expected = [*range(-leaves, 0), *range(1, leaves - 1)] if leaves > 1 else []
    if sorted(tree.left_child + tree.right_child) != expected:
        raise ValueError("it has a child that there is not, or one twice")
    depth = [1] * (leaves - 1)
    for node, children in enumerate(zip(tree.left_child, tree.right_child, strict=True)):
        for child in children:
            if child >= 0:
                if child <= node:
                    raise ValueError("it has a child before its parent")
                depth[child] = depth[node] + 1
    if max(depth, default=0) > _DEEPEST:
        raise ValueError(f"it is deeper than {_DEEPEST} splits")


def _wholes(text: str, count: int) -> list[int]:
    return [int(word) for word in _words(text, count, _WHOLE)]


def _reals(text: str, count: int) -> list[float]:
    values = [float(word) for word in _words(text, count, _REAL)]
    if not all(map(math.isfinite, values)):
        raise ValueError("a number is not finite")
    return values


def _words(text: str, count: int, form: re.Pattern[str]) -> list[str]:
    words = text.split(" ") if text else []
    if len(words) != count or not all(map(form.fullmatch, words)):
        raise ValueError(f"{text[:40]!r} are not {count} numbers")
    return words


def _write(trees: list[_Tree], features: int) -> str:
    names = " ".join(f"Column_{number}" for number in range(features))
    header = {
        "version": "v4", "num_class": 1, "num_tree_per_iteration": 1, "label_index": 0, "max_feature_idx": features - 1,
        "feature_names": names, "feature_infos": " ".join(["none"] * features),
    }  # fmt: skip
    lines = ["tree", *(f"{name}={value}" for name, value in header.items()), ""]
    for number, tree in enumerate(trees):
        lines += [f"Tree={number}", f"num_leaves={len(tree.leaf_value)}", "num_cat=0", "is_linear=0"]
        lines += [f"{name}={' '.join(map(repr, values))}" for name, values in tree._asdict().items()]
        lines += ["", ""]
    return "\n".join([*lines, _END, ""])
