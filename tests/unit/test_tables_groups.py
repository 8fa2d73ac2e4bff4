"""Rows by value of a column, and items in groups of a size."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from infra.store.buckets import by_value, groups_of


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50))), st.integers(1, 60))
def test_groups_hold_every_item_in_order_and_each_but_the_last_is_full(sizes, enough):
    numbered = [((place, size), size) for place, (_, size) in enumerate(sizes)]
    groups = list(groups_of(numbered, enough))
    assert [item for group in groups for item in group] == [item for item, _ in numbered]
    assert all(sum(size for _, size in group) >= enough for group in groups[:-1])
    assert all(sum(size for _, size in group[:-1]) < enough for group in groups)


@given(st.lists(st.lists(st.sampled_from("abc"))))
def test_rows_by_value_keep_their_order(chunks):
    names = [name for chunk in chunks for name in chunk]
    rows = pa.table(
        {"name": pa.chunked_array(chunks, pa.large_string()), "row": pa.array(range(len(names)), pa.int64())}
    )
    expected = {name: [row for row, one in enumerate(names) if one == name] for name in dict.fromkeys(names)}
    found = by_value(rows, "name")
    assert list(found) == list(expected)
    assert {name: mine["row"].to_pylist() for name, mine in found.items()} == expected
