"""The documents of an index: their table, filters on its columns, and the topics of clusters."""
