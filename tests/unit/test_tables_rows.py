"""Delta tables against a model of them: a dictionary by key."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.store.delta import Table
from infra.store.location import Store
from infra.store.schemas import now
from memagent.records import reading_id, stable_hash

ROWS = st.lists(st.tuples(st.sampled_from(["c", "d'"]), st.sampled_from("xyz"), st.text(max_size=3)), max_size=5)
STEPS = st.lists(st.tuples(st.sampled_from(["insert_new", "upsert"]), ROWS), min_size=1, max_size=5)


def _row(corpus: str, item: str, detail: str) -> dict[str, Any]:
    row = {"corpus": corpus, "stage": "read", "item": item, "reason": "bad", "detail": detail}
    return {**row, "run_id": "r", "at": now()}


@settings(max_examples=15, deadline=None)
@given(STEPS)
def test_merges_do_what_a_dictionary_does(steps: list[tuple[str, list[tuple[str, str, str]]]]) -> None:
    with TemporaryDirectory() as folder:
        table = Table(Store(folder), "quarantine")
        model: dict[tuple[str, str], str] = {}
        for how, rows in steps:
            before = dict(model)
            for corpus, item, detail in rows:
                if how == "upsert" or (corpus, item) not in model:
                    model[corpus, item] = detail
            count = getattr(table, how)([_row(*row) for row in rows])
            if how == "insert_new":
                assert count == len(model) - len(before)
            else:
                assert count == len({row[:2] for row in rows})
        found = table.read().to_pylist()
        assert {(row["corpus"], row["item"]): row["detail"] for row in found} == model
        assert len(found) == len(model)
        for corpus in ("c", "d'"):
            assert table.read(corpus).num_rows == sum(key[0] == corpus for key in model)


def test_a_small_log_for_long_texts(tmp_path: Path) -> None:
    table = Table(Store(str(tmp_path)), "quarantine")
    for item in "abc":
        table.append([_row("c", item, "x" * 2_000_000)])
    log = list((tmp_path / "quarantine" / "_delta_log").glob("*.json"))
    assert len(log) == 3
    assert sum(path.stat().st_size for path in log) < 50_000  # statistics do not repeat the texts


@given(
    st.lists(st.text("0123456789abcdef", min_size=32, max_size=32)),
    st.text(),
    st.sampled_from(["nano@1", 'a "name"@é']),
    st.just("c0ffee"),
)
def test_a_readings_name_is_the_hash_of_what_determines_it(
    stream: list[str], question: str, policy_id: str, config_hash: str
) -> None:
    name = stable_hash(stream, question, policy_id, config_hash)
    assert reading_id(stream, question, policy_id, config_hash) == name
