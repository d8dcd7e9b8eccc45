"""Generators of docids: models, objectives, training, pseudo-queries, and the beam that searches with them."""
