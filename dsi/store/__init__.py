"""The folder of an index: its files, the document table, filters, updates, the Hub."""
