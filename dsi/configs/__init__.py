"""Configurations by name: `dsi.train(collection, "small", output="RUN")`."""
