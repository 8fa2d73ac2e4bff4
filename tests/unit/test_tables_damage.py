import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from infra.maintenance.integrity import unreadable
from infra.store.location import Store


def test_what_a_reader_stumbles_on_is_named(tmp_path):
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"a": ["r", "r"], "b": [1, 2]}), path, store_schema=False)
    whole, store, found = path.read_bytes(), Store(str(tmp_path)), set()
    for place in range(len(whole)):
        for value in (0, 2):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            said = unreadable(store, str(path))
            found.add(said.partition(":")[0])
            if said:
                continue
            assert ds.dataset(path).to_table().num_rows == pq.read_metadata(path).num_rows
    assert {"", "it cannot be read", "it has 0 of its 2 rows"} <= found
