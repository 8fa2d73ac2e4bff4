"""One row of each key, in Arrow: how tables that are only appended to are read."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def first_of_each(table: pa.Table, key: Sequence[str], order: Sequence[tuple[str, str]]) -> pa.Table:
    """Return the first row of each value of the columns `key`, sorted by key.

    Args:
        table: any rows.
        key: names of columns, without nulls.
        order: which of several rows comes first: columns with ``ascending`` or ``descending``.
    """
    if table.num_rows < 2:
        return table
    keys = [*((name, "ascending") for name in key), *order]
    positions = pc.sort_indices(table.select([name for name, _ in keys]), sort_keys=keys)
    differs = pa.array([False] * (table.num_rows - 1))
    for name in key:
        values = table[name].take(positions).combine_chunks()
        differs = pc.or_(differs, pc.not_equal(values.slice(1), values.slice(0, len(values) - 1)))
    return table.take(positions.filter(pa.concat_arrays([pa.array([True]), differs])))
