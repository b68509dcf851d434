"""How idle a machine is, from the file in which Linux says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticutor.process.idle import IdleShare


def test_the_share_is_that_of_the_ticks_since_the_last_look(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3 4\n")
    share = IdleShare(str(stat))
    stat.write_text("cpu 160 0 110 720 110 0 0 0 0 0\n")
    assert share.take() == 0.3
    stat.write_text("cpu 260 0 110 720 110 0 0 0 0 0\n")
    assert share.take() == 0.0
    assert share.take() is None  # no time has passed
    share.close()
    share.close()
    assert share.take() is None


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    stat = tmp_path / "stat"
    stat.write_text(text)
    share = IdleShare(str(stat))
    assert share.take() is None
    share.close()


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    assert IdleShare(str(tmp_path / "stat")).take() is None
