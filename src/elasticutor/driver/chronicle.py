"""What executors report, as events of a run's journal."""

from __future__ import annotations

from typing import Any

from elasticutor.core.protocol import instructions as do
from elasticutor.core.protocol.ids import Peer
from elasticutor.driver.journal import Journal
from elasticutor.transport import messages as say

REPORTS = (do.ReportMove, do.ReportSealed, do.ReportHotShards, say.MoveRefused)
"""Reports that are for the record alone."""


def note_report(journal: Journal, who: Peer, report: Any) -> None:
    """Write down what an executor has reported: one of `REPORTS`."""
    match report:
        case do.ReportMove():
            journal.write(
                "shard moved",
                executor=who,
                shard=report.shard,
                source=report.source,
                destination=report.destination,
                remote=report.remote,
                cause=report.cause,
                sync_ms=round(report.sync_s * 1e3, 4),
                migration_ms=round(report.migration_s * 1e3, 4),
                bytes=report.copied + report.migrated,
                bytes_held=report.migrated,
            )
        case do.ReportSealed():
            journal.write(
                "epoch sealed",
                executor=who,
                epoch=report.epoch,
                align_ms=round(report.align_s * 1e3, 4),
                flush_ms=round(report.flush_s * 1e3, 4),
                pause_ms=round(report.pause_s * 1e3, 4),
            )
        case do.ReportHotShards(shards):
            journal.write("hot shards", executor=who, shards=list(shards))
        case say.MoveRefused():
            journal.write(
                "move refused", executor=who, shard=report.shard, cause="asked", reason=report.why
            )


def note_staff(journal: Journal, message: say.Staff) -> None:
    """Write down that a task has come or gone."""
    if message.cause:
        kind = "core granted" if message.cause.endswith("started") else "core taken"
        journal.write(
            kind,
            executor=message.who,
            cause=message.cause,
            cores=len(message.tasks),
            seconds=round(message.seconds, 6),
        )
