"""The turn log on a local folder and on S3."""

import io
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store import turns as turn_parts
from infra.store import turns as turnlog
from infra.store.location import Corpus, Store
from infra.store.schemas import TURNS, now
from infra.store.turns import TurnWriter, logged_conversations, resume_points, turns
from memagent.errors import MemagentError
from memagent.records import Turn
from pipelines.operate.optimize import compact_turns


def turn(reading: str, step: int, changed: bool = True, span: int = 0, kind: str = "update") -> Turn:
    return Turn(
        reading_id=reading,
        span=span,
        step=step,
        kind=kind,  # type: ignore[arg-type]
        content_hash="h" if kind == "update" else "",
        segment_index=step if kind == "update" else -1,
        response_ids=[step, 2],
        response=f"response {step}",
        memory_ids=[step],
        memory=f"memory {step}",
        changed=changed,
        prompt_tokens=10,
        cached_tokens=0,
        finish_reason="stop",
        seconds=0.5,
    )


def test_turns_come_back_in_order_once_flushed(store: Store) -> None:
    writer = TurnWriter(Corpus(store, "c"), "run", "p")
    log = [turn("r1", step) for step in range(5)] + [turn("r2", 0), turn("r1", 9, kind="answer", span=1)]
    for one in reversed(log):
        writer.add(one)
    assert turns(Corpus(store, "c"), ["r1"]) == []
    assert writer.flush() == 7
    assert writer.flush() == 0
    assert turns(Corpus(store, "c"), ["r1"]) == [*log[:5], log[6]]
    assert turns(Corpus(store, "c"), ["r2", "r1", "none"]) == [*log[:5], log[6], log[5]]
    assert turns(Corpus(store, "other"), ["r1"]) == []
    assert turns(Corpus(store, "c"), []) == []
    part = pq.read_table(store.list("turns")[0], filesystem=store.arrow)
    assert part.schema.names == TURNS.names
    assert part["policy_id"].unique().to_pylist() == ["p"]


def test_a_turn_that_is_added_while_a_part_is_written_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TurnWriter(Corpus(store, "c"), "run", "p")
    made = now

    def flushed_meanwhile() -> datetime:
        writer.flush()
        return made()

    monkeypatch.setattr(turnlog, "now", flushed_meanwhile)
    for step in range(4):
        writer.add(turn("r", step))
    writer.flush()
    assert [one.step for one in turns(Corpus(store, "c"), ["r"])] == [0, 1, 2, 3]


def test_what_cannot_be_written_stays_and_is_said_each_time(store: Store) -> None:
    writer = TurnWriter(Corpus(store, "c"), "run", "p")
    writer.add(replace(turn("r", 0), response="\ud800"))  # half a character
    for _ in range(2):
        with pytest.raises(UnicodeEncodeError):
            writer.flush()


def test_runs_and_workers_add_up_and_the_first_row_of_a_key_counts(store: Store) -> None:
    first, second = (TurnWriter(Corpus(store, "c"), "run-1", "p") for _ in range(2))
    first.add(turn("r", 0))
    second.add(turn("r", 1))
    first.flush()
    second.flush()
    later = TurnWriter(Corpus(store, "c"), "run-2", "p")
    later.add(replace(turn("r", 1), response="another"))
    later.add(turn("r", 2))
    later.flush()
    assert turns(Corpus(store, "c"), ["r"]) == [turn("r", step) for step in range(3)]
    assert [one.response for one in turns(Corpus(store, "c"), ["r"], "run-2")] == ["another", "response 2"]


def test_what_could_not_be_written_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TurnWriter(Corpus(store, "c"), "run", "p")
    writer.add(turn("r", 0))

    def fail(*_: object, **__: object) -> str:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write_part", fail)
        with pytest.raises(OSError, match="no space"):
            writer.flush()
    writer.add(turn("r", 1))
    assert writer.flush() == 2
    assert turns(Corpus(store, "c"), ["r"]) == [turn("r", 0), turn("r", 1)]


def test_compacting_changes_no_answer(store: Store) -> None:
    for step in range(6):
        writer = TurnWriter(Corpus(store, "c"), "run", "p")
        writer.add(turn("b", step))
        writer.add(turn("a", step))
        writer.flush()
    before = turns(Corpus(store, "c"), ["a", "b"])
    parts = store.list("turns", "c", "run")
    copies = {path: store.fs.cat_file(path) for path in parts}
    assert len(parts) == 6
    assert compact_turns(Corpus(store, "c"), "run") == 1
    assert len(store.list("turns", "c", "run")) == 1
    assert turns(Corpus(store, "c"), ["a", "b"]) == before
    assert compact_turns(Corpus(store, "c"), "run") == 0, "nothing is left to do"
    assert turns(Corpus(store, "c"), ["a", "b"]) == before
    for path in parts[:2]:  # as if it had been killed before all old parts were gone
        store.fs.pipe_file(path, copies[path])
    assert turns(Corpus(store, "c"), ["a", "b"]) == before
    compact_turns(Corpus(store, "c"), "run")
    assert turns(Corpus(store, "c"), ["a", "b"]) == before
    assert compact_turns(Corpus(store, "c"), "never") == 0


def test_resume_points_are_enough_to_go_on(store: Store) -> None:
    writer = TurnWriter(Corpus(store, "c"), "run", "p")
    for one in [turn("r", 0), turn("r", 1, False), turn("r", 2, False), turn("r", 3), turn("r", 4, False)]:
        writer.add(one)
    writer.add(turn("r", 0, False, span=1))
    writer.add(turn("s", 0))
    writer.flush()
    points = resume_points(Corpus(store, "c"), ["r", "s", "none"])
    assert [(one.span, one.step) for one in points["r"]] == [(0, 0), (0, 3), (0, 4), (1, 0)]
    assert points.keys() == {"r", "s"}


def test_compaction_in_several_parts_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_parts, "_PART_BYTES", 2_000)
    monkeypatch.setattr(turn_parts, "_COMPACT_ROWS", 5)
    log = [turn(f"r{reading}", step) for reading in range(6) for step in range(reading + 1)]
    for part in range(3):
        writer = TurnWriter(Corpus(store, "c"), "run", "p")
        for one in log[part::3]:
            writer.add(one)
        writer.flush()
    (small,) = turn_parts.small_parts(Corpus(store, "c"), "run")
    assert turn_parts.compact(small, Corpus(store, "c"), "run") > 1
    assert turns(Corpus(store, "c"), [f"r{reading}" for reading in range(6)]) == log
    assert compact_turns(Corpus(store, "c"), "run") == 0, "nothing is left to do"


def test_parts_of_32_bit_offsets_are_read(store: Store) -> None:
    narrow = {pa.large_string(): pa.string(), pa.large_list(pa.int32()): pa.list_(pa.int32())}
    narrow[pa.large_list(pa.float32())] = pa.list_(pa.float32())
    schema = pa.schema([(field.name, narrow.get(field.type, field.type)) for field in TURNS])
    assert schema != TURNS
    log = [turn("r1", step) for step in range(4)]
    rows = [{**asdict(one), "policy_id": "p", "run_id": "run", "written_at": now()} for one in log]
    for i, part in enumerate((rows[:2], rows[2:])):
        store.write_part(pa.Table.from_pylist(part, schema=schema), "turns", "c", "run", f"old-{i}.parquet")
    assert turns(Corpus(store, "c"), ["r1"]) == log
    assert resume_points(Corpus(store, "c"), ["r1"])["r1"] == log
    assert compact_turns(Corpus(store, "c"), "run") == 1
    assert turns(Corpus(store, "c"), ["r1"]) == log


@pytest.mark.slow
def test_a_log_of_more_than_2_gib_of_text_is_compacted_and_resumed(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    parts, readings, steps = 5, 100, 200
    text = "x" * (2**31 // (parts * readings * steps) * 11 // 10)
    for part in range(parts):
        ids = [f"r{part}-{reading:03}" for reading in range(readings) for _ in range(steps)]
        count = len(ids)
        columns = {
            "reading_id": pa.array(ids),
            "span": pa.array([0] * count, pa.int32()),
            "step": pa.array(list(range(steps)) * readings, pa.int32()),
            "kind": pa.array(["update"] * count),
            "response": pa.array([text] * count, pa.large_string()),
            "memory": pa.array([text] * count, pa.large_string()),
            "changed": pa.array([step == 0 for step in range(steps)] * readings),
            "written_at": pa.array([now()] * count, pa.timestamp("us", tz="UTC")),
        }
        arrays = [columns.get(field.name, pa.nulls(count, field.type)).cast(field.type) for field in TURNS]
        store.write_part(pa.Table.from_arrays(arrays, schema=TURNS), "turns", "c", "run", f"w-{part}.parquet")
    everything = [f"r{part}-{reading:03}" for part in range(parts) for reading in range(readings)]
    assert {len(points) for points in resume_points(Corpus(store, "c"), everything).values()} == {2}, (
        "the first and the last"
    )
    assert compact_turns(Corpus(store, "c"), "run") >= 1
    assert sum(map(len, resume_points(Corpus(store, "c"), everything[:10]).values())) == 20


@pytest.mark.parametrize("reader", ["turns", "turn_table", "resume_points"])
def test_a_log_that_is_compacted_while_it_is_read_is_read_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    corpus = Corpus(store, "c")
    for step in range(3):
        writer = TurnWriter(corpus, "run", "p")
        writer.add(turn("r", step))
        writer.flush()
    listed = Store.list

    def overtaken(self: Store, *parts: str, suffix: str = ".parquet") -> list[str]:
        paths = listed(self, *parts, suffix=suffix)
        if any("/sorted-" not in path for path in paths):
            turn_parts.compact(paths, corpus, "run")
        return paths

    monkeypatch.setattr(Store, "list", overtaken)
    read = {
        "turns": lambda: [one.step for one in turns(corpus, ["r"])],
        "turn_table": lambda: turnlog.turn_table(corpus, ["r"], ["reading_id", "span", "step"])["step"].to_pylist(),
        "resume_points": lambda: [one.step for one in resume_points(corpus, ["r"])["r"]],
    }[reader]
    assert read() == [0, 1, 2]


def test_two_compactions_at_once_lose_nothing(store: Store) -> None:
    corpus = Corpus(store, "c")
    for step in range(3):
        writer = TurnWriter(corpus, "run", "p")
        writer.add(turn("r", step))
        writer.flush()
    (group,) = turn_parts.small_parts(corpus, "run")
    assert turn_parts.compact(group, corpus, "run") == 1
    assert turn_parts.compact(group, corpus, "run") == 0, "the other one has done it"
    store.delete(group[0])
    assert [one.step for one in turns(corpus, ["r"])] == [0, 1, 2]


def test_a_damaged_part_is_named(store: Store) -> None:
    writer = TurnWriter(Corpus(store, "c"), "run", "p")
    writer.add(turn("r", 0))
    writer.flush()
    (path,) = store.list("turns")
    name = path.rsplit("/", 1)[-1]
    store.write_bytes(store.read_bytes("turns", "c", "run", name)[:-20], "turns", "c", "run", name)
    for read in (turns, resume_points):
        with pytest.raises(MemagentError, match=rf"damaged part: .*{name}.*memagent check c --repair"):
            read(Corpus(store, "c"), ["r"])
    store.delete(path)
    assert turns(Corpus(store, "c"), ["r"]) == []


@pytest.mark.parametrize("column", ["reading_id", "kind"])
def test_a_part_of_which_a_filter_would_end_the_process_is_named(store: Store, column: str) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"reading_id": "r", "kind": "update"}], schema=TURNS), buffer)
    part = bytearray(buffer.getvalue())
    # The footer says of a chunk: BYTE_ARRAY (6, written as 12), its encodings, its path.
    path = part.rindex(b"\x19\x18" + bytes([len(column)]) + column.encode())
    part[part.rindex(b"\x15\x0c\x19", 0, path) + 1] = 14  # FIXED_LEN_BYTE_ARRAY
    store.write_bytes(bytes(part), "turns", "c", "run", "part.parquet")
    for read in (turns, logged_conversations):
        with pytest.raises(MemagentError, match=f"damaged part: .*part.parquet: column {column}"):
            read(Corpus(store, "c"), ["r"])
