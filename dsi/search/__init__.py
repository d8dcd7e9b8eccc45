"""Constrained fused search: queries after the encoder, the beam over the tree, one decoding level fast, answers."""
