"""One row of each key, in Arrow: how tables that are only appended to are read."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def first_of_each(
    table: pa.Table, key: Sequence[str], order: Sequence[tuple[str, str]], *, by_key: bool = False
) -> pa.Table:
    """Return the first row of each value of the columns `key`.

    Args:
        table: any rows.
        key: names of columns, without nulls.
        order: which of several rows comes first: columns with ``ascending`` or ``descending``.
        by_key: whether the rows must come sorted by key; else they come in any order.
    """
    if table.num_rows < 2 or (not by_key and any(_differ(table[name]) for name in key)):
        return table
    keys = [*((name, "ascending") for name in key), *order]
    positions = pc.sort_indices(table.select([name for name, _ in keys]), sort_keys=keys)
    differs = pa.array([False] * (table.num_rows - 1))
    for name in key:
        values = table[name].take(positions).combine_chunks()
        differs = pc.or_(differs, pc.not_equal(values.slice(1), values.slice(0, len(values) - 1)))
    return table.take(positions.filter(pa.concat_arrays([pa.array([True]), differs])))


def _differ(column: pa.ChunkedArray) -> bool:
    """Tell whether all values of a column differ: found much faster than by sorting."""
    return bool(pc.count_distinct(column).as_py() == len(column))
