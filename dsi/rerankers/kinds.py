"""The rerankers by name: where each kind is defined, and what `dsi train-reranker` can train. Imports nothing heavy."""

RERANKERS: dict[str, str] = {
    "linear": "dsi.rerankers.learned",  # a weighted sum of features
    "ranknet": "dsi.rerankers.learned",  # RankNet and LambdaRank
    "trees": "dsi.rerankers.boosting",  # MART, LambdaMART, LambdaSMART
    "pyversity": "dsi.rerankers.diversity",  # MMR, MSD, DPP, SSD, COVER
    "m2div": "dsi.rerankers.m2div",  # a policy that builds a diverse list
    "parser": "dsi.rerankers.parse_ranker",  # tree edit distance from query to title
    "cross-encoder": "dsi.rerankers.cross_encoder",  # a pretrained model that reads query and document together
}
"""{kind in reranker.json: module that defines it}; a subclass of `Reranker` elsewhere is known once its module is imported."""

TRAINABLE: dict[str, str] = {
    "lambdasmart": "boosted trees that start from the search's score",
    "lambdamart": "boosted trees on the lambdas of nDCG",
    "mart": "boosted trees, least squares on the labels",
    "ranknet": "a small network trained on pairs",
    "lambdarank": "the same network, pairs weighted by what their swap changes in nDCG",
    "parser": "tree edit distance between the parses of query and title",
    "m2div": "a policy that covers the subtopics of a query",
    "mmr": "diversification without training: maximal marginal relevance",
    "msd": "diversification without training: maximal sum of distances",
    "dpp": "diversification without training: determinantal point process",
    "ssd": "diversification without training: sliding spectrum decomposition",
    "cover": "diversification without training: coverage (facility location)",
}
"""{kind that `dsi.reranker_training` can train: what it is}."""

WITH_IMPORTANCE = ("mart", "lambdamart", "lambdasmart")
"""Trainable kinds that say how much each feature contributes."""
