"""Delta tables as sources: their log says which files they have now, so that nothing has to be listed or compared.

A file of a Delta table is never changed, so a digest parses the files of the versions that are new. Files that an
update or a deletion has replaced are sources that are gone.
"""

import os
from collections.abc import Callable
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from infra.naming import quoted
from infra.sources.listing import Listing, Source, Unusable
from infra.store import s3_options

LOG_FOLDER = "_delta_log"
"""What a folder has that is a Delta table."""


def add_delta_table(
    table: str, prefix: str, listing: Listing, add_local: Callable[[str, str, str | None, Listing], None]
) -> None:
    """Add the current files of a Delta table, in the order of its log.

    A table that cannot be read, or has rows deleted by vectors, becomes an unusable source, and what was read of it
    stays.

    Args:
        table: its folder or ``s3://`` URL.
        prefix: of the names that its files get: empty, or its path below the source and a slash.
        listing: receives the files.
        add_local: adds a local file: path, name, folder that it must not leave, listing.
    """
    try:
        delta = DeltaTable(table, storage_options=s3_options() if table.startswith("s3://") else {})
        files = pa.table(delta.get_add_actions(flatten=True)).select(["path", "size_bytes", "modification_time"])
    except (DeltaError, OSError, ValueError) as error:
        detail = f"a Delta table that cannot be read: {error}; what was read of it is kept"
        listing.unusable.append(Unusable(quoted(table), "unreadable", detail))
        return
    inside = None if table.startswith("s3://") else os.path.realpath(table)
    files = files.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    for batch in files.to_batches(max_chunksize=10_000):
        for path, size, changed in zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True):
            relative = unquote(path)
            if "://" in relative or relative.startswith("/") or ".." in relative.split("/"):
                detail = f"the Delta table's log names a file outside its folder: {relative}"
                listing.unusable.append(Unusable(quoted(f"{table}/{relative}"), "link", detail))
            elif inside is not None:
                add_local(os.path.join(table, relative), prefix + relative, inside, listing)
            else:
                full = f"{table}/{relative}"
                listing.add(Source(full, quoted(full), quoted(prefix + relative), size, stamp=f"{size}-{changed}"))
