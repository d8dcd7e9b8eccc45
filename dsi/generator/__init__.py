"""Generators of docids: models, objectives, training, and the beam that searches with them."""
