"""Commands that the experiments add to `dsi`."""
