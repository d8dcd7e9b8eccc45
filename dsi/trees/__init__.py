"""Docid trees in torch: dense scores of nodes, and the trie as a tree model (Zhuo et al. 2020).

A tree model scores nodes; beam search keeps the best of each level. A model is Bayes optimal under beam search when it ranks
nodes by the best document below them, which neither the usual targets nor a softmax over siblings teach. Knows no texts.
"""
