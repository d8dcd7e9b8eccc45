"""The commands of `dsi`: each module has a `main(argv)` that parses, calls and prints."""
