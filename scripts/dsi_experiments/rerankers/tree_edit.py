"""Edit distance of ordered trees, with the edits themselves (Zhang & Shasha 1989), for any costs.

An edit deletes a node of the first tree (its children move up), inserts one of the second, or substitutes one for another. The
edits are read back from the tables, so that their costs sum up to the distance exactly. The distance is locally linear in the
costs, and its derivative is how often each cost was paid. Numba compiles the loops (extra `rerank`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi_experiments.rerankers.compiled import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class OrderedTree(NamedTuple):
    """A tree in postorder."""

    nodes: Ints  # [n] number (from 0) of the node at each place of the postorder
    leftmost: Ints  # [n] place of the leftmost leaf below each place


def ordered_tree(heads: Ints) -> OrderedTree:
    """A dependency tree as an ordered tree: the modifiers of a word are its children, in the order of the text.

    `heads`: [n] head of each word; words count from 1, and 0 is the root.
    """
    nodes, leftmost = _postorder(np.asarray(heads, dtype=np.int64))
    if len(nodes) != len(heads) or (np.asarray(heads) == 0).sum() != 1:
        raise ValueError(f"Heads must be a tree with one word under the root, got {list(heads)}.")
    return OrderedTree(nodes, leftmost)


def tree_edit_distance(
    first: OrderedTree, second: OrderedTree, delete: Floats, insert: Floats, substitute: Floats
) -> tuple[float, Ints]:
    """The cheapest edits that turn one tree into another.

    Costs are `delete` [n], `insert` [m] and `substitute` [n, m]. Returned are the distance, and [n] the word of the
    second tree that takes the place of each word of the first; -1 where it is deleted.
    """
    costs = delete[first.nodes], insert[second.nodes], substitute[first.nodes][:, second.nodes]
    distance, matched = _distance(first.leftmost, second.leftmost, *costs)
    becomes = np.full(len(first.nodes), -1)
    becomes[first.nodes] = np.where(matched < 0, -1, second.nodes[np.maximum(matched, 0)])
    return distance, becomes


@njit(cache=True)  # type: ignore[untyped-decorator]
def _postorder(heads: Ints) -> tuple[Ints, Ints]:
    n = len(heads)
    nodes, leftmost = np.full(n, -1), np.full(n, -1)
    stack, opened, placed = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64), 0
    first = np.full(n + 1, -1)
    for word in range(n):
        if heads[word] == 0:
            stack[0] = word
            break
    depth = 1
    while depth > 0:  # `opened`: the next word to try as a child of the word on top
        word = stack[depth - 1]
        child = -1
        for other in range(opened[depth - 1], n):
            if heads[other] == word + 1:
                child = other
                break
        if child >= 0 and depth <= n:
            opened[depth - 1] = child + 1
            stack[depth], opened[depth] = child, 0
            depth += 1
            continue
        leftmost[placed] = first[word] if first[word] >= 0 else placed
        nodes[placed] = word
        if depth > 1:
            parent = stack[depth - 2]
            if first[parent] < 0:
                first[parent] = leftmost[placed]
        placed += 1
        depth -= 1
    return nodes[:placed], leftmost[:placed]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _forest(
    i: int, j: int, left: Ints, right: Ints, delete: Floats, insert: Floats, substitute: Floats, trees: Floats
) -> Floats:
    """Distances between all prefixes of the subtrees at places i and j; sets `trees` where both are whole subtrees."""
    a, b = left[i], right[j]
    table = np.zeros((i - a + 2, j - b + 2))
    for x in range(1, i - a + 2):
        table[x, 0] = table[x - 1, 0] + delete[a + x - 1]
    for y in range(1, j - b + 2):
        table[0, y] = table[0, y - 1] + insert[b + y - 1]
    for x in range(1, i - a + 2):
        for y in range(1, j - b + 2):
            u, v = a + x - 1, b + y - 1
            cheaper = min(table[x - 1, y] + delete[u], table[x, y - 1] + insert[v])
            if left[u] == a and right[v] == b:
                table[x, y] = min(cheaper, table[x - 1, y - 1] + substitute[u, v])
                trees[u, v] = table[x, y]
            else:
                table[x, y] = min(cheaper, table[left[u] - a, right[v] - b] + trees[u, v])
    return table


@njit(cache=True)  # type: ignore[untyped-decorator]
def _keyroots(leftmost: Ints) -> Ints:
    """Places that are the last ones with their leftmost leaf."""
    n = len(leftmost)
    last = np.full(n, -1)
    for place in range(n):
        last[leftmost[place]] = place
    return np.sort(last[last >= 0])


@njit(cache=True)  # type: ignore[untyped-decorator]
def _distance(left: Ints, right: Ints, delete: Floats, insert: Floats, substitute: Floats) -> tuple[float, Ints]:
    n, m = len(left), len(right)
    trees = np.zeros((n, m))
    for i in _keyroots(left):
        for j in _keyroots(right):
            _forest(i, j, left, right, delete, insert, substitute, trees)
    matched = np.full(n, -1)
    todo = [(n - 1, m - 1)]
    while len(todo):
        i, j = todo.pop()
        table = _forest(i, j, left, right, delete, insert, substitute, trees)
        a, b = left[i], right[j]
        x, y = i - a + 1, j - b + 1
        while x > 0 or y > 0:
            u, v = a + x - 1, b + y - 1
            if x > 0 and table[x, y] == table[x - 1, y] + delete[u]:
                x -= 1
            elif y > 0 and table[x, y] == table[x, y - 1] + insert[v]:
                y -= 1
            elif left[u] == a and right[v] == b:
                matched[u] = v
                x, y = x - 1, y - 1
            else:
                todo.append((u, v))
                x, y = left[u] - a, right[v] - b
    return trees[n - 1, m - 1], matched
