"""Clustering: a Delta table's files rewritten as few large ones, sorted by content hash."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import DeltaError

from infra.tables.data_files import CLUSTERED

FULL = 32 * 2**20
"""Bytes of a file that is full."""
_ENOUGH_FILES = 3
"""So few files are not compacted."""
_SPILLS = (512 * 2**20, 2 * 2**30, 8 * 2**30)
"""Bytes that sorting holds in memory, the rest on disk. The larger the table, the more of it merging needs."""
_STATISTIC = 64
"""Longest text in the statistics of a file, which go into the log."""
_ROWS = 1_000
"""Rows of a row group of a file sorted by content hash, of which a part is read for a bucket."""
FILES = WriterProperties(compression="ZSTD", max_row_group_size=_ROWS, statistics_truncate_length=_STATISTIC)
"""How files are written that are looked up by content hash."""


def cluster_files(delta: DeltaTable, corpus: str, sizes: pa.ChunkedArray, *, sort: bool) -> int:
    """Rewrite a corpus's files if they are many for their size; return how many were replaced.

    Args:
        delta: the table.
        corpus: whose files.
        sizes: bytes of each of them.
        sort: sort the rows by content hash, else only put files together.
    """
    if len(sizes) <= _ENOUGH_FILES + 2 * (pc.sum(sizes).as_py() or 0) // FULL:
        return 0
    options: dict[str, Any] = {
        "partition_filters": [("corpus", "=", corpus)],
        "target_size": FULL,
        "writer_properties": FILES,
    }
    done = _sorted(delta, options) if sort else delta.optimize.compact(**options)
    return int(done["numFilesRemoved"])


def _sorted(delta: DeltaTable, options: dict[str, Any]) -> dict[str, Any]:
    for spill in _SPILLS:
        try:
            done: dict[str, Any] = delta.optimize.z_order([CLUSTERED], max_spill_size=spill, **options)
            return done
        except DeltaError as error:
            if "Resources exhausted" not in str(error) or spill == _SPILLS[-1]:
                raise
            delta.update_incremental()
    raise AssertionError("the last attempt returns or raises")
