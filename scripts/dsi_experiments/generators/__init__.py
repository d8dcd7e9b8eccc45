"""Generators of other papers: entry points of `dsi.generators`."""
