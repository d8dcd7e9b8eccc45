"""Where sentences end in texts of any script. Knows nothing of words."""

import re

SENTENCE_END = re.compile(r"""[.!?…؟۔][.!?…"'”’»)\]]*\s+|[。！？｡．।॥။។።։][。！？"'”’」』）)\]]*\s*|\n\s*""")
"""Matches the end of a sentence with the space behind it; line breaks end one too."""
