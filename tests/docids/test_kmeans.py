"""k-means of many clusters at a time: each is what k-means of this cluster alone would be; groups, samples, duplicates."""

import numpy as np
import pytest

from dsi.docids.files.processes import MatrixRows, Processes
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput, kmeans, splits
from dsi.docids.schemes.lloyd import nearest, sample_rows, train_clusters, train_kmeans
from tests.support.oracles import lloyd

SIZES = np.array([21, 22, 40, 41, 150, 151, 600])
CONFIG = DocidsConfig(max_leaf_size=20)


def clusters_of(sizes: np.ndarray, dim: int = 8) -> np.ndarray:
    chance = np.random.default_rng(0)
    return np.concatenate([chance.normal(size=(n, dim)) + 5 * chance.normal(size=dim) for n in sizes]).astype(
        np.float32
    )


def test_clusters_that_are_trained_together_have_the_centroids_that_each_has_alone():
    points, start = clusters_of(SIZES), 0
    batches = list(train_clusters(points, SIZES, CONFIG, seed=0))
    assert len(batches) < len(SIZES)  # some are trained together
    for batch in batches:
        for padded, there, centroids, k in zip(*batch, strict=True):
            own = points[start : start + there.sum()]
            start += len(own)
            np.testing.assert_array_equal(padded[there], own)
            assert k == CONFIG.clusters(len(own))
            np.testing.assert_allclose(lloyd(own, centroids[:k], steps=1), centroids[:k], atol=0.15)
            after = lloyd(own, own[:k], steps=20)
            assert spread(own, centroids[:k]) < 1.1 * spread(own, after)
    assert start == len(points)


def spread(points: np.ndarray, centroids: np.ndarray) -> float:
    return float(((points[:, None] - centroids) ** 2).sum(axis=2).min(axis=1).mean())


def test_labels_of_clusters_are_the_nearest_of_their_own_centroids_and_none_is_empty():
    points = clusters_of(SIZES)
    labels = kmeans._split(MatrixRows(points, slice(None)), SIZES, CONFIG, 0)
    trained = [
        (p[t], c[:k]) for batch in train_clusters(points, SIZES, CONFIG, 0) for p, t, c, k in zip(*batch, strict=True)
    ]
    for (own, centroids), found in zip(trained, np.split(labels, SIZES.cumsum()[:-1]), strict=True):
        assert set(found) == set(range(len(centroids)))
        near = ((own[:, None] - centroids) ** 2).sum(axis=2)
        np.testing.assert_allclose(near[np.arange(len(own)), found], near.min(axis=1), rtol=1e-4)
        np.testing.assert_array_equal(found, nearest(own, centroids))


def test_duplicates_leave_no_cluster_empty():
    points = np.concatenate([np.ones((30, 4)), clusters_of(np.array([30]), 4), np.zeros((40, 4))]).astype(np.float32)
    sizes = np.array([30, 30, 40])
    labels = np.split(kmeans._split(MatrixRows(points, slice(None)), sizes, CONFIG, 0), [30, 60])
    assert [len(set(own)) for own in labels] == [CONFIG.clusters(int(size)) for size in sizes]


def test_points_far_apart_get_a_centroid_each_from_a_sample_too(monkeypatch):
    monkeypatch.setattr("dsi.docids.schemes.lloyd.POINTS_PER_CENTROID", 20)
    monkeypatch.setattr("dsi.docids.schemes.lloyd._SEEDING_POINTS", 40)
    places = 100 * np.eye(6, dtype=np.float32)
    points = np.repeat(places, 50, axis=0)
    centroids = train_kmeans(points, 6, seed=0)
    np.testing.assert_allclose(centroids[np.argsort(-centroids @ np.arange(6))][::-1], places, atol=1e-3)


def test_samples_are_spread_over_each_cluster():
    rows = sample_rows(np.array([10, 1000]), 10, np.random.default_rng(0))
    np.testing.assert_array_equal(rows[0], np.arange(10))
    np.testing.assert_array_equal(rows[1] // 100, np.arange(10))


@pytest.mark.parametrize("sizes", [[5, 300, 7, 90_000, 70_000, 6], [40_000, 40_000, 40_000], [65_536], [1, 2, 3]])
def test_groups_are_of_about_the_same_size_and_large_clusters_are_alone(sizes):
    sizes = np.array(sizes)
    starts = sizes.cumsum() - sizes
    groups = splits._Clusters(starts, sizes).groups()
    assert sorted(start for group in groups for start in group.starts) == starts.tolist()
    for group in groups:
        assert (np.diff(group.sizes) >= 0).all()
        assert len(group.sizes) == 1 or group.sizes[-1] <= splits.BLOCK
        assert group.sizes[:-1].sum() <= splits.BLOCK
    assert len(groups) <= 2 + 2 * sizes.sum() // splits.BLOCK


def test_any_number_of_processes_makes_the_same_docids_of_groups_and_large_clusters(monkeypatch):
    monkeypatch.setattr(splits, "BLOCK", 100)
    points = clusters_of(np.full(9, 60))
    alone, parts = kmeans.make(SchemeInput(points, CONFIG)).paths, []

    class Three(Processes):
        def map(self, work, pieces, values):
            shares = [[work(*values(piece)) for piece in list(pieces)[rank::3]] for rank in range(3)]
            parts.append(len(list(pieces)))
            return [shares[number % 3][number // 3] for number in range(len(pieces))]

    np.testing.assert_array_equal(kmeans.make(SchemeInput(points, CONFIG, processes=Three())).paths, alone)
    assert max(parts) > 3


def test_paths_are_kept_in_the_smallest_type_that_equal_ones_leave_room_for():
    few = Docids(np.array([[0, 5], [1, -1]]))
    assert (few.paths.dtype, few.paths.tolist()) == (np.int8, [[0, 5], [1, -1]])
    equal = Docids(np.zeros((300, 1), dtype=np.int64))
    assert (equal.paths.dtype, equal.paths[:, 1].tolist()) == (np.int16, list(range(300)))
    assert Docids(np.array([[2**31 - 1], [3]])).paths.dtype == np.int32
