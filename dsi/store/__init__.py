"""An index: its public face, its parts at one moment, updates and learning; its documents, and its folder."""
