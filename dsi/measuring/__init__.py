"""Measures and tunes an index: rows of `evaluate`, comparisons of runs, weights, beam widths, and questions without labels."""
