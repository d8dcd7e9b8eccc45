"""Contrastive pre-training of the encoder (DR-SCL section 3.2), on sentence-transformers."""

if __name__ == "contrastive":  # imported from the root of a checkout, it would be a second copy of every module
    raise ImportError("contrastive is a part of dsi; import dsi.contrastive.")
