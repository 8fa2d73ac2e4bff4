"""Buckets: the share of a corpus that one task plans, segments or summarises by itself.

A bucket is a range of content hashes. Documents, texts, segments and answers are found by content hash, so everything
that is known of a document is in one bucket. How many there are is chosen by the job, by the size of the corpus: files
are sorted by content hash and have its range in their statistics, and a task opens the files that overlap its bucket.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Item = TypeVar("_Item")
EVERY = pc.scalar(True)
"""The filter that every row passes."""
_DIGITS = 8
READINGS = 100_000
"""Readings of a bucket that is planned by one task: some hundred megabytes."""
FEW = 10_000
"""Readings that are planned in the driver's own process."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket `index` of `count`: hashes from `low` (inclusive) to `high` (exclusive)."""

    index: int = 0
    count: int = 1

    @property
    def low(self) -> str:
        """First hash, in hexadecimal digits."""
        return f"{self.index * 16**_DIGITS // self.count:0{_DIGITS}x}"

    @property
    def high(self) -> str | None:
        """First hash that is beyond; None for the last bucket."""
        last = self.index + 1 >= self.count
        return None if last else f"{(self.index + 1) * 16**_DIGITS // self.count:0{_DIGITS}x}"

    def contains(self, column: str) -> pc.Expression:
        """Return the filter on a column of content hashes."""
        if self.count == 1:
            return EVERY
        passes = pc.field(column) >= self.low
        return passes if self.high is None else passes & (pc.field(column) < self.high)


def one_of(column: str, values: Iterable[str]) -> pc.Expression:
    """Return the filter for the rows in which a column of texts has one of some values."""
    return pc.field(column).isin(pa.array(sorted(set(values)), pa.string()))


WHOLE = Bucket()
"""All hashes."""


def buckets(size: int, per_bucket: int = READINGS) -> list[Bucket]:
    """Cut a corpus into buckets of about `per_bucket` of its `size` readings (or documents, or bytes)."""
    count = max(1, -(-size // per_bucket))
    return [Bucket(index, count) for index in range(count)]


def groups_of(sizes: Iterable[tuple[_Item, int]], enough: int) -> Iterator[list[_Item]]:
    """Yield items in groups, each of which ends with the item that makes it `enough`."""
    group: list[_Item] = []
    size = 0
    for item, more in sizes:
        group.append(item)
        size += more
        if size >= enough:
            yield group
            group, size = [], 0
    if group:
        yield group


def first_of_each(
    table: pa.Table, key: Sequence[str], order: Sequence[tuple[str, str]], *, by_key: bool = False
) -> pa.Table:
    """Return the first row of each value of the columns `key`.

    Args:
        table: any rows.
        key: names of columns, without nulls.
        order: which of several rows comes first: columns with ``ascending`` or ``descending``.
        by_key: whether the rows must come sorted by key; else they stay in their order.
    """
    if table.num_rows < 2:
        return table
    if by_key:
        return table.take(_first(table, key, order))
    first = are_first(table, key, order)
    return table if first is None else table.filter(first)


def by_value(rows: pa.Table, name: str) -> dict[str, pa.Table]:
    """Return the rows of each value of a column, in their order; values in the order of their first rows."""
    values = pc.unique(rows[name])
    place = pc.index_in(rows[name], value_set=values)
    order = pc.sort_indices(place)  # stable
    rows, place = rows.take(order), place.take(order)
    result: dict[str, pa.Table] = {}
    first = 0
    for value, count in zip(values.to_pylist(), pc.value_counts(place).field("counts").to_pylist(), strict=True):
        result[value] = rows.slice(first, count)
        first += count
    return result


def are_first(table: pa.Table, key: Sequence[str], order: Sequence[tuple[str, str]]) -> pa.Array | None:
    """Return a mask of the rows that `first_of_each` returns; None: all rows.

    Who needs only some columns of these rows filters only them: a filter copies what it keeps.
    """
    repeated = _repeated(table, key) if table.num_rows > 1 else None
    if repeated is None:
        return None
    # Few keys have several rows as a rule, and finding them is much quicker than sorting all.
    at = pc.indices_nonzero(repeated)
    names = list(dict.fromkeys([*key, *(name for name, _ in order)]))
    kept = at.take(_first(table.select(names).take(at), key, order))
    first: npt.NDArray[np.bool_] = pc.invert(repeated).to_numpy(zero_copy_only=False).copy()
    first[kept.to_numpy()] = True
    return pa.array(first)


def _first(table: pa.Table, key: Sequence[str], order: Sequence[tuple[str, str]]) -> pa.Array:
    """Return the places of the first rows, sorted by key."""
    keys = [*((name, "ascending") for name in key), *order]
    positions = pc.sort_indices(table.select([name for name, _ in keys]), sort_keys=keys)
    differs = pa.array([False] * (table.num_rows - 1))
    for name in key:
        values = table[name].take(positions).combine_chunks()
        differs = pc.or_(differs, pc.not_equal(values.slice(1), values.slice(0, len(values) - 1)))
    return positions.filter(pa.concat_arrays([pa.array([True]), differs]))


def _repeated(table: pa.Table, key: Sequence[str]) -> pa.Array | None:
    """Return which rows have a key that others have, too; None: no row has."""
    codes: pa.Array | None = None
    for name in key:
        column = table[name].combine_chunks().dictionary_encode()
        values = column.indices.cast(pa.int64())
        codes = values if codes is None else pc.add(pc.multiply(codes, len(column.dictionary)), values)
        if len(column.dictionary) == table.num_rows:
            return None
    counts = pc.value_counts(codes)
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    return pc.is_in(codes, value_set=several) if len(several) else None


_HASH = re.compile("[0-9a-f]{16,}")


def bucket_of(content_hash: str) -> Bucket:
    """Return the smallest bucket that has a hash: only files and row groups that can have it are opened."""
    return Bucket(int(content_hash[:8], 16), 16**8) if _HASH.match(content_hash) else WHOLE
