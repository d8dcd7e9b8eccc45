"""The commands of `dsi`: each module has a `main(argv)` that parses arguments, calls the library and prints."""
