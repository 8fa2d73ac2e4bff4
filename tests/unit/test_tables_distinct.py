import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from infra.store.buckets import are_first, first_of_each

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 3), st.integers()), max_size=20)
ORDER = [("time", "descending"), ("number", "ascending")]


def table(rows: list[tuple[str, str, int, int]]) -> pa.Table:
    return pa.table(
        {
            "one": pa.array([row[0] for row in rows], pa.string()),
            "other": pa.array([row[1] for row in rows], pa.string()),
            "time": pa.array([row[2] for row in rows], pa.int32()),
            "number": pa.array(range(len(rows)), pa.int32()),
        }
    )


@given(ROWS)
def test_one_row_of_each_key_stays_the_first_by_the_order(rows):
    given_rows = table(rows)
    best: dict[tuple[str, str], tuple[int, int]] = {}
    for number, (one, other, time, _) in enumerate(rows):
        best[one, other] = min(best.get((one, other), (1, 0)), (-time, number))
    found = first_of_each(given_rows, ["one", "other"], ORDER).to_pylist()
    assert {(row["one"], row["other"]): (-row["time"], row["number"]) for row in found} == best
    assert len(found) == len(best)
    assert [row["number"] for row in found] == sorted(row["number"] for row in found)  # in their order


@given(ROWS)
def test_the_mask_is_of_the_same_rows_and_none_where_all_are(rows):
    given_rows = table(rows)
    mask = are_first(given_rows, ["one", "other"], ORDER)
    assert (mask is None) == (len({row[:2] for row in rows}) == len(rows))
    kept = given_rows if mask is None else given_rows.filter(mask)
    assert kept == first_of_each(given_rows, ["one", "other"], ORDER)


@given(ROWS)
def test_by_key_they_come_sorted_by_key(rows):
    found = first_of_each(table(rows), ["one", "other"], ORDER, by_key=True)
    keys = list(zip(found["one"].to_pylist(), found["other"].to_pylist(), strict=True))
    assert keys == sorted({row[:2] for row in rows})
