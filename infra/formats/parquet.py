"""Parquet tables, read in batches of bounded size."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from infra.formats.base import Parsed, Refused, Request
from infra.formats.opening import seekable
from infra.formats.rows import RowReader
from memagent.errors import SourceError

_BATCH_BYTES = 2**24
_RATIO_FROM = 2**26
"""Inflated bytes below which no ratio counts as a bomb: columns compress well."""


def parse_parquet(stream: BinaryIO, request: Request) -> Iterator[Parsed | Refused]:
    """Yield the rows of a Parquet file.

    Raises:
        SourceError: ``broken``, ``no-column``, ``wrong-type``, ``too-large``, ``bomb``.
    """
    options = request.options
    raw = seekable(stream)
    packed = raw.seek(0, 2)
    raw.seek(0)
    try:
        file = pq.ParquetFile(raw)
    except (pa.ArrowException, OSError) as error:
        raise SourceError("broken", "it is no Parquet file, or a truncated one; write it again") from error
    schema = file.schema_arrow
    _check(file, schema, packed, request)
    # A dictionary stays one: a long text that every row repeats would else be laid out in full.
    file = pq.ParquetFile(raw, metadata=file.metadata, read_dictionary=[options.text_column])
    wanted = [options.text_column, options.id_column, options.title_column]
    columns = [name for name in schema.names if name in wanted]
    inflated = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    rows = max(1, min(1024, _BATCH_BYTES * max(1, file.metadata.num_rows) // max(1, inflated)))
    reader = RowReader(options, "application/vnd.apache.parquet")
    number = 0
    try:
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            for index in range(batch.num_rows):
                number += 1
                values = {name: batch.column(name)[index].as_py() for name in batch.schema.names}
                yield reader.read(number, values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError("broken", f"it cannot be read from row {number + 1} on; write it again") from error


def _check(file: pq.ParquetFile, schema: pa.Schema, packed: int, request: Request) -> None:
    options = request.options
    if options.text_column not in schema.names:
        names = ", ".join(schema.names)[:200]
        raise SourceError("no-column", f"no column {options.text_column!r} among {names}; set ingest.text_column")
    kind = schema.field(options.text_column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise SourceError("wrong-type", f"column {options.text_column!r} is {kind}, not text; set ingest.text_column")
    inflated = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    if inflated > max(_RATIO_FROM, packed * options.max_ratio):
        raise SourceError("bomb", f"it inflates more than {options.max_ratio:g} times; see ingest.max_ratio")
    if inflated > options.max_bytes:
        raise SourceError("too-large", f"inflated it is more than ingest.max_bytes = {options.max_bytes:,}")
