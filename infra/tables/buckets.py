"""Buckets: the share of a corpus that one task plans, segments or summarises by itself.

A bucket is a range of content hashes. Documents, texts, segments and answers are found by content hash, so everything
that is known of a document is in one bucket. How many there are is chosen by the job, by the size of the corpus: files
are sorted by content hash and have its range in their statistics, and a task opens the files that overlap its bucket.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow.compute as pc

_Item = TypeVar("_Item")
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

    def contains(self, column: str) -> pc.Expression | None:
        """Return the filter on a column of content hashes; None if every row passes it."""
        if self.count == 1:
            return None
        passes = pc.field(column) >= self.low
        return passes if self.high is None else passes & (pc.field(column) < self.high)


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
