"""What a run read and wrote, as Prefect's assets with row counts; also as an artifact, which every server shows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.assets import Asset, add_asset_metadata, materialize
from prefect.cache_policies import NO_CACHE

from infra.store.delta import Table
from infra.store.location import Store
from infra.store.qa import HarvestSummary, TrainingSummary, qa_corpora
from infra.store.runs import RunSummary
from memagent.rl.dataset import dataset_name
from pipelines.flows.ray_job import artifact_key

_NOT_ALLOWED = re.compile(r"""[\s#?&%"'<>\[\]{}|\\^`\0]""")
"""What Prefect takes in no key; kept apart from what a path may hold."""
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a run read and wrote."""

    run_id: str
    of: str
    """Names the artifact: a corpus, or a lineage of policies."""
    policy_id: str
    read: Mapping[str, int]
    """Rows by place in the store (``table/corpus``, ``policies/policy_id``); tables without any are left out."""
    written: Mapping[str, int]

    def page(self) -> str:
        """Return both as a table (Markdown)."""
        rows = [
            f"| {place} | {self.read.get(place, 0):,} | {self.written.get(place, 0):,} |"
            for place in {**self.read, **self.written}
        ]
        policy = f", policy `{self.policy_id}`" if self.policy_id else ""
        head = f"Run {self.run_id} of `{self.of}`{policy}\n\n"
        return head + "\n".join(["| table | rows read | rows written |", "|---|---|---|", *rows])


def of_reading(summary: RunSummary) -> Lineage:
    """Return the lineage of a run that answered questions."""
    corpus, ingest, readings = summary["corpus"], summary.get("ingest"), summary["readings"]
    return Lineage(
        summary["run_id"],
        corpus,
        summary["policy_id"],
        read=_places(corpus, documents=summary["documents"], answers=readings["answered_before"]),
        written=_places(
            corpus,
            documents=ingest["documents"] if ingest else 0,
            turns=summary["conversations"],
            answers=readings["read_now"],
        ),
    )


def of_harvest(summary: HarvestSummary) -> Lineage:
    """Return the lineage of training rows: `read` are the answers that were looked at."""
    corpus = summary["corpus"]
    return Lineage(
        summary["run_id"],
        corpus,
        "",
        read=_places(corpus, answers=summary["candidates"]),
        written=_places(corpus, qa=summary["new"] + summary["changed"]),
    )


def of_training(store: Store, summary: TrainingSummary) -> Lineage:
    """Return the lineage of a policy: the one that the training began with, and the harvested rows it learnt from."""
    learnt = [corpus for corpus in qa_corpora(store) if learns_from(summary["data"], corpus)]
    rows = {f"qa/{corpus}": Table(store, "qa").count(corpus) for corpus in learnt}
    return Lineage(
        summary["run_id"],
        summary["policy"],
        summary["parent"],
        read={f"policies/{summary['parent']}": 1, **{place: count for place, count in rows.items() if count}},
        written={f"policies/{summary['candidate']}": 1} if summary["candidate"] else {},
    )


def learns_from(data: Sequence[str], corpus: str) -> bool:
    """Whether a training on some data sets has a corpus's harvested rows."""
    return any(dataset_name(spec) == "qa" and spec[len("qa") + 1 :] in ("", corpus) for spec in data)


def _places(corpus: str, **rows: int) -> dict[str, int]:
    return {f"{table}/{corpus}": count for table, count in rows.items() if count}


def asset_key(store: Store, place: str) -> str:
    """Return the key of a place in the store."""
    address = store.url if store.is_s3 else Path(store.url).as_uri()
    whole = f"{address}/{place}"
    return _NOT_ALLOWED.sub("_", whole)[:_LONGEST]


def note_lineage(store: Store, lineage: Lineage) -> None:
    """Emit the assets that a run wrote and what they were made of, and publish both as an artifact."""
    if lineage.written:
        keys = {asset_key(store, place): count for place, count in lineage.written.items()}
        sources: list[Asset | str] = [key for place in lineage.read if (key := asset_key(store, place)) not in keys]

        @materialize(*keys, by="memagent", asset_deps=sources, name="lineage", cache_policy=NO_CACHE)
        def emit(rows: Mapping[str, int], run_id: str) -> None:
            """Say how many rows each table got."""
            for key, count in rows.items():
                add_asset_metadata(key, {"rows": count, "run_id": run_id})

        emit(keys, lineage.run_id)
    create_markdown_artifact(lineage.page(), key=artifact_key(f"lineage-{lineage.of}"))
