"""Configurations by name: `dsi.train(collection, "RUN", config="paper")`."""
