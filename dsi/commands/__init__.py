"""The commands of `dsi`, one module each."""
