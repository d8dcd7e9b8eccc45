"""Training objectives of other papers, each a subclass of `dsi.generator.objectives.Objective`."""
