"""The experiments: the tables and figures of the papers, and our own (`dsi reproduce`)."""
