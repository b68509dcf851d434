"""Folding: many small files become one, and a large one is not written again for a small one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from elasticutor.core.protocol.ids import Attempt
from elasticutor.state.checkpoint.files import newest, read_table, write_table
from elasticutor.state.checkpoint.forms import FileName, StateFile, StateForm
from elasticutor.state.checkpoint.location import Location

MOST_FILES: Final = 16
"""More files than this of one executor are folded."""

_LEAST: Final = 8


def to_fold(sizes: Sequence[int]) -> int | None:
    """Where to begin to fold an executor's files, given their sizes, oldest first.

    All from there on become one: as many as can be without writing again a file that is larger than
    all newer ones together. So each byte is written again only when what it is in doubles, and a
    file is read as often as the number of doublings.
    """
    if len(sizes) <= MOST_FILES:
        return None
    newer = 0
    begin = None
    for place in range(len(sizes) - 1, -1, -1):
        if sizes[place] <= newer and len(sizes) - place >= _LEAST:
            begin = place
        newer += sizes[place]
    return begin


def fold(
    location: Location,
    form: StateForm,
    files: Sequence[StateFile],
    *,
    whole: bool,
    attempt: Attempt,
    writer: str,
) -> StateFile | None:
    """Write what some files of an executor have together, oldest first, into one.

    `whole`: nothing older is left, so deletions can be left out. None if that is nothing: all
    keys were deleted. `attempt` and `writer` name the file. A damaged file folds nothing.
    """
    table = newest([read_table(location, file) for file in files], drop_deleted=whole)
    if not len(table):
        return None
    executor = files[0].executor
    first, last = min(file.first for file in files), max(file.last for file in files)
    name = FileName.of(form, executor, first, last, attempt, writer)
    return write_table(location, executor, name, table, "snapshot" if whole else "increment")
