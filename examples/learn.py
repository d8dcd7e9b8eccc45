"""A shop's week: customers use names of their own, and the index learns what they took: `python learn.py [INDEX]`."""

import itertools
import random
import sys

import dsi

run = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
retriever = dsi.load(run)
names = itertools.product(
    ["grandma's", "the blue", "uncle's", "that loud", "my old"], ["favourite", "one", "gadget", "gift"]
)
customers = random.Random(0)
wishes = dict(zip(map(" ".join, names), customers.sample(list(retriever.snapshot.documents.rows), 20), strict=True))


def share_found() -> float:
    """Return the share of the wishes whose document is the first answer."""
    hits = retriever.search(list(wishes), k=1)
    return sum(found[0].doc_id == wished for found, wished in zip(hits, wishes.values(), strict=True)) / len(wishes)


print(f"before: {share_found():.0%}")
for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"):
    retriever.learn(customers.choices(list(wishes.items()), k=10))  # the clicks of the day
    print(f"{day}: {share_found():.0%}")
