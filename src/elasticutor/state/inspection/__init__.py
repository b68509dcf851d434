"""Looking into checkpoints: which epochs they have, the state in them, and what changed."""

from __future__ import annotations

from elasticutor.state.inspection.comparing import Difference, difference
from elasticutor.state.inspection.listing import (
    Checked,
    Claimed,
    EpochKept,
    Fault,
    OperatorKept,
    check_files,
    claimed_by,
    epochs_kept,
)
from elasticutor.state.inspection.reading import Entry, Pickled, Shown, StateReader

__all__ = [
    "Checked",
    "Claimed",
    "Difference",
    "Entry",
    "EpochKept",
    "Fault",
    "OperatorKept",
    "Pickled",
    "Shown",
    "StateReader",
    "check_files",
    "claimed_by",
    "difference",
    "epochs_kept",
]
