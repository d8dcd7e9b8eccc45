"""Contrastive pre-training of the encoder (DR-SCL section 3.2), on sentence-transformers."""
