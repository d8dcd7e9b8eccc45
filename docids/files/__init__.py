"""Files that are whole or absent, files from strangers, checks of values, progress, processes."""
