"""Docid trees in torch: dense scores of nodes, and the trie as a tree model (Zhuo et al. 2020).

A tree model scores nodes, and beam search keeps the best of each level. A model is Bayes optimal under beam search if it ranks
nodes by the best document below them. Neither the usual targets nor a softmax over siblings teach that. Knows no texts.
"""
