"""Crash trials; `DSI_MINUTES=60 pytest -m programs -s tests/trials/test_crashes.py` runs an hour and prints counts."""

import os
import sys
import time
from random import Random

import pyarrow as pa
import pytest

from tests.support.crashes import Trials
from tests.support.small_index import DOCUMENTS, small_index

SECONDS = 60 * float(os.environ.get("DSI_MINUTES", "0.05"))


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_nothing_is_lost_or_wrong_whenever_updates_and_searches_are_killed(encoder, tmp_path, capsys):
    index = small_index(encoder, vectors=True)
    index.update(
        texts=index.snapshot.documents.table.append_column("text", pa.array([d["text"] for d in DOCUMENTS[:50]]))
    )
    index.save(tmp_path / "run")
    fixed = {d["doc_id"]: (d["title"], d["text"]) for d in DOCUMENTS[:50]}
    seed = int(os.environ.get("DSI_SEED", time.time_ns() % 10**6))
    counts = Trials(tmp_path / "run", fixed, Random(seed)).go_on(SECONDS)
    with capsys.disabled():
        sys.stdout.write(f"\n{SECONDS:g} s, seed {seed}: {', '.join(f'{n} {name}' for name, n in counts.items())}\n")
    assert min(counts["kills"], counts["updates"], counts["comparisons"]) > 0
