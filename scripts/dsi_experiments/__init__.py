"""Experiments on DR-SCL: the papers' systems, tables and benchmarks, as extensions of `dsi`."""
