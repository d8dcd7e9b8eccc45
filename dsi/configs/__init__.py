"""Configurations by name: `dsi.train(collection, "nq10k-small", output="RUN")`."""
