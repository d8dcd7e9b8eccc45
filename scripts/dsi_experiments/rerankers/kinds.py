"""What `dsi train-reranker` can train. Imports nothing heavy."""

TRAINABLE: dict[str, str] = {
    "lambdasmart": "boosted trees that start from the search's score",
    "lambdamart": "boosted trees on the lambdas of nDCG",
    "mart": "boosted trees, least squares on the labels",
    "ranknet": "a small network trained on pairs",
    "lambdarank": "the same network, pairs weighted by what their swap changes in nDCG",
    "parser": "tree edit distance between the parses of query and title",
    "m2div": "a policy that covers the subtopics of a query, for collections that judge them",
    "mmr": "diversification without training: maximal marginal relevance",
    "msd": "diversification without training: maximal sum of distances",
    "dpp": "diversification without training: determinantal point process",
    "ssd": "diversification without training: sliding spectrum decomposition",
    "cover": "diversification without training: coverage (facility location)",
}
"""{kind that `dsi_experiments.rerankers.training` can train: what it is}."""

WITH_IMPORTANCE = ("mart", "lambdamart", "lambdasmart")
"""Trainable kinds that say how much each feature contributes."""
