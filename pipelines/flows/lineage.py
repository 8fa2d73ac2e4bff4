"""What a run read and wrote, as Prefect's assets with row counts; also as an artifact, which every server shows."""

import re
from collections.abc import Mapping
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.assets import Asset, add_asset_metadata, materialize
from prefect.cache_policies import NO_CACHE

from infra.store import Store
from infra.tables.runs import RunSummary
from pipelines.flows.ray_job import artifact_key

_LOGIN = re.compile(r"(?<=://)[^/@]*@")
_NOT_ALLOWED = re.compile(r"""[\s#?&%"'<>\[\]{}|\\^`\0]""")
"""What Prefect takes in no key; kept apart from what a path may hold."""
_LONGEST = 512


def asset_key(store: Store, table: str, corpus: str) -> str:
    """Return the key of a table of a corpus: its address in the store, without a login."""
    address = store.url if store.is_s3 else Path(store.url).as_uri()
    whole = f"{_LOGIN.sub('', address)}/{table}/{corpus}"
    return _NOT_ALLOWED.sub("_", whole)[:_LONGEST]


def rows_written(summary: RunSummary) -> dict[str, int]:
    """Return the rows that a run wrote, by table; tables of which it wrote none are left out."""
    ingest = summary.get("ingest")
    counts = {
        "documents": ingest["documents"] if ingest else 0,
        "turns": summary["conversations"],
        "answers": summary["readings"]["read_now"],
    }
    return {table: count for table, count in counts.items() if count}


def rows_read(summary: RunSummary) -> dict[str, int]:
    """Return the rows that a run went by, by table."""
    counts = {"documents": summary["documents"], "answers": summary["readings"]["answered_before"]}
    return {table: count for table, count in counts.items() if count}


def note_lineage(store: Store, summary: RunSummary) -> None:
    """Emit the assets that a run wrote and what they were made of, and publish both as an artifact."""
    corpus, written, read = summary["corpus"], rows_written(summary), rows_read(summary)
    if written:
        keys = {asset_key(store, table, corpus): count for table, count in written.items()}
        sources: list[Asset | str] = [key for table in read if (key := asset_key(store, table, corpus)) not in keys]

        @materialize(*keys, by="memagent", asset_deps=sources, name="lineage", cache_policy=NO_CACHE)
        def emit(rows: Mapping[str, int], run_id: str) -> None:
            """Say how many rows each table got."""
            for key, count in rows.items():
                add_asset_metadata(key, {"rows": count, "run_id": run_id})

        emit(keys, summary["run_id"])
    lines = [f"| {table} | {read.get(table, 0):,} | {written.get(table, 0):,} |" for table in {**read, **written}]
    head = f"Run {summary['run_id']} of `{corpus}`, policy `{summary['policy_id']}`\n\n"
    page = head + "\n".join(["| table | rows read | rows written |", "|---|---|---|", *lines])
    create_markdown_artifact(page, key=artifact_key(f"lineage-{corpus}"))
