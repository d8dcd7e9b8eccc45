"""The soak of shards, in small; `python -m tests.support.soak` is the whole one."""

import pytest

from tests.support.soak import main


@pytest.mark.slow
@pytest.mark.parametrize("disturbed", [["--kills", "20", "--stalls", "20", "--updates", "4"], ["--kills", "0"]])
def test_no_answer_is_wrong_or_silently_partial(disturbed):
    assert main(["--searches", "1000", *disturbed]) == 0
