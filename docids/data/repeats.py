"""Finds texts that repeat earlier ones, without keeping them."""

import hashlib


class Repeats:
    """The texts that came, as hashes; case and spaces do not count."""

    def __init__(self) -> None:
        self._texts: set[bytes] = set()

    def add(self, text: str) -> str:
        """Return "the same" if an earlier text is, otherwise ""; remember this one.

        >>> repeats = Repeats()
        >>> repeats.add("A gas."), repeats.add("a  gas."), repeats.add("A river.")
        ('', 'the same', '')
        """
        whole = hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=16).digest()
        found = whole in self._texts
        self._texts.add(whole)
        return "the same" if found else ""
