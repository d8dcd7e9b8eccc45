"""Training objectives of other papers, each a subclass of `dsi.trees.objectives.Objective`."""
