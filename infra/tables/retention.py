"""Retention: what a Delta table keeps of its earlier versions."""

import math
from datetime import timedelta

from deltalake import DeltaTable

_WEEK_HOURS = 7 * 24


def drop_versions(delta: DeltaTable, retention: timedelta, *, only_table: bool) -> None:
    """Delete the files that only earlier versions of a table have, and the entries of its log before those.

    Args:
        delta: the table, at its newest version.
        retention: versions younger than that are kept; whole hours, rounded up. Zero deletes at once: nothing else may
            use the table then.
        only_table: nothing else is in the table's folder. Files that no version has are then deleted as well, once they
            are as old: those of a job that was killed before its commit.
    """
    hours = math.ceil(retention / timedelta(hours=1))
    delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=hours >= _WEEK_HOURS, full=only_table)
    _keep_log(delta, hours)
    delta.create_checkpoint()
    delta.cleanup_metadata()  # deletes what the checkpoint replaces
    # Later checkpoints, which writers make themselves, clean the log by this setting: not under another writer's feet.
    _keep_log(delta, max(hours, _WEEK_HOURS))


def _keep_log(delta: DeltaTable, hours: int) -> None:
    wanted = {"delta.logRetentionDuration": f"interval {hours} hours"}
    if not wanted.items() <= delta.metadata().configuration.items():
        delta.alter.set_table_properties(wanted)
