"""The registry: the versions of each policy, and which of them is promoted.

A version is a model folder of the store and a row of the `policies` table; the row comes last, so a version whose row
stands is whole. Versions of one lineage (one name) replace each other: at most one is promoted. A change of status is a
single commit that is decided on the rows it replaces; of two at once the later one decides again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from infra.models import check_folder, fetch_folder, folder_hash, tokenizer_print, upload
from infra.sources.base import quoted
from infra.store.delta import Table
from infra.store.location import Store
from infra.store.schemas import POLICIES_OF, PolicyRow, PolicyStatus, now
from memagent.errors import ConfigError, UsageError
from memagent.nano import bundled
from memagent.reading.tokens import tokenizer_file
from memagent.records import Json


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a version comes from."""

    parent: str
    """policy_id of the version that the training began with."""
    run_id: str
    """Of the training."""
    data_version: int | None
    """Delta version of the `qa` table that it learnt from."""
    config: Json
    """The recipe."""
    metrics: Json
    """Of the training's best step."""
    commit: str
    """Version of the code."""


_JSON = ("config", "metrics", "promotion")
ANY = "any"
"""For `promote`: whichever is promoted now."""


def publish(store: Store, folder: Path, name: str, provenance: Provenance, *, parent_folder: Path | None = None) -> str:
    """Copy a trained model into the store as a candidate of its lineage; return its policy_id.

    Published again, nothing changes.

    Args:
        folder: the model, in Hugging Face format.
        name: the lineage, for example nano: the policy's name of the model that the training began with.
        parent_folder: the parent's model folder, where the parent is neither registered nor bundled.

    Raises ConfigError: the folder is not whole, its tokenizer is not the parent's, or it is the parent itself.
    """
    parent = provenance.parent
    if not name.strip():
        raise ConfigError("a policy needs the name of its lineage")
    check_folder(folder)
    policy_id = f"{name}@{folder_hash(folder)}"
    if policy_id == parent:
        raise ConfigError(f"{folder} holds the weights of its parent {parent}: weights unchanged; nothing to publish")
    known = {row["policy_id"]: row for row in policies(store)}
    if policy_id in known:
        return policy_id
    _check_tokenizer(store, folder, name, parent=parent, known=known, parent_folder=parent_folder)
    path = f"policies/{quoted(policy_id)}"
    upload(store, folder, path, {"name": name, "parent": parent, "run_id": provenance.run_id})
    if policy_id != f"{name}@{folder_hash(folder)}":
        raise ConfigError(f"{folder} changed while it was copied: publish it when the training has ended")
    published_at = now()
    row: PolicyRow = {
        "corpus": POLICIES_OF,
        "policy_id": policy_id,
        "name": name,
        "path": path,
        "parent": parent,
        "status": "candidate",
        "reason": "",
        "data_version": provenance.data_version,
        "run_id": provenance.run_id,
        "config": provenance.config,
        "metrics": provenance.metrics,
        "promotion": None,
        "commit": provenance.commit,
        "made_at": published_at,
        "changed_at": published_at,
    }
    Table(store, "policies").insert_new([_stored(row)])
    return policy_id


def policies(store: Store) -> list[PolicyRow]:
    """Return all versions, oldest first."""
    rows = [_plain(row) for row in Table(store, "policies").read(POLICIES_OF).to_pylist()]
    return sorted(rows, key=lambda row: (row["made_at"], row["policy_id"]))


def policy(store: Store, wanted: str) -> PolicyRow:
    """Return one version: by its id, a prefix of the id or of its hash, as ``promoted`` or ``NAME@promoted``.

    Raises UsageError: there is none, or several; it says which there are.
    """
    rows = policies(store)
    lineage, _, version = wanted.rpartition("@")
    if version == "promoted":
        matching = [row for row in rows if row["status"] == "promoted" and lineage in ("", row["name"])]
    else:
        matching = [row for row in rows if row["policy_id"] == wanted] or [
            row
            for row in rows
            for name, _, known in [row["policy_id"].rpartition("@")]
            if version and lineage in ("", name) and known.startswith(version)
        ]
    if len(matching) == 1:
        return matching[0]
    if version == "shipped":
        raise UsageError(f"{wanted!r} is the model itself, no version of it: memagent policies rollback returns to it")
    if matching:
        raise UsageError(f"{wanted!r} may be any of {_listed(matching)}: give more of the id")
    raise UsageError(f"no policy {wanted!r} in {store.url}. There are: {_listed(rows) or 'none'}.")


def promoted(store: Store, name: str) -> PolicyRow | None:
    """Return the promoted version of a lineage; None: its base model is used."""
    return _promoted([row for row in policies(store) if row["name"] == name])


def fetch(store: Store, row: PolicyRow) -> Path:
    """Return the folder of a version on this machine (`infra.models.fetch_folder`).

    Raises ConfigError: its files are gone or damaged.
    """
    return fetch_folder(store, row["path"], row["policy_id"])


def promote(
    store: Store,
    policy_id: str,
    reason: str,
    record: Json | None = None,
    *,
    force: bool = False,
    instead_of: str | None = ANY,
) -> PolicyRow:
    """Promote a version; the one that was promoted retires, in the same commit. Return its row.

    Args:
        policy_id: the version, in full.
        record: the promotion check's record; None keeps an earlier one.
        force: promote one that was refused.
        instead_of: policy_id that must still be promoted (None: none); by default any may be.

    Raises UsageError: no such version; it was refused; or another one is promoted than `instead_of`.
    """

    def decide(rows: list[PolicyRow]) -> list[PolicyRow]:
        row = _find(store, rows, policy_id)
        lineage = [other for other in rows if other["name"] == row["name"]]
        present = _promoted(lineage)
        before = present["policy_id"] if present else None
        if instead_of not in (ANY, before):
            raise UsageError(
                f"{before or 'the first model'} was promoted while {policy_id} was compared with "
                f"{instead_of or 'the first model'}: compare it again"
            )
        if row["status"] == "promoted":
            return []
        if row["status"] == "refused" and not force:
            raise UsageError(
                f"{policy_id} was refused ({row['reason']}): memagent policies promote {policy_id} --force"
            )
        reason_ended = f"{policy_id} was promoted"
        retired = [_changed(other, "retired", reason_ended) for other in lineage if other["status"] == "promoted"]
        return [*retired, _changed(row, "promoted", reason, record)]

    return _find(store, _change(store, decide), policy_id)


def refuse(store: Store, policy_id: str, reason: str, record: Json | None = None) -> PolicyRow:
    """Refuse a candidate; return its row. One that was promoted before stays retired, and keeps the record.

    Raises UsageError: no such version, or it is promoted.
    """

    def decide(rows: list[PolicyRow]) -> list[PolicyRow]:
        row = _find(store, rows, policy_id)
        if row["status"] == "promoted":
            raise UsageError(f"{policy_id} is promoted: memagent policies rollback {row['name']}")
        return [_changed(row, "retired" if row["status"] == "retired" else "refused", reason, record)]

    return _find(store, _change(store, decide), policy_id)


def rollback(store: Store, name: str, *, instead_of: str | None = ANY) -> PolicyRow | None:
    """Promote the version again that was promoted before `instead_of`; return its row. The present one is refused.

    None: there was none before, and the model that the lineage began with is used.

    Raises UsageError: nothing of the lineage is promoted, or another version than `instead_of`.
    """

    def decide(rows: list[PolicyRow]) -> list[PolicyRow]:
        lineage = [row for row in rows if row["name"] == name]
        current = _promoted(lineage)
        if current is None:
            raise UsageError(f"no version of {name!r} is promoted to roll back from: memagent policies shows them")
        if instead_of not in (ANY, current["policy_id"]):
            raise UsageError(f"{current['policy_id']} was promoted meanwhile, so nothing was rolled back")
        ended = [_changed(row, "refused", "rolled back") for row in lineage if row["status"] == "promoted"]
        earlier = [row for row in lineage if row["status"] == "retired"]
        if not earlier:
            return ended
        back = max(earlier, key=lambda row: row["changed_at"])
        return [*ended, _changed(back, "promoted", f"{current['policy_id']} was rolled back")]

    return _promoted([row for row in _change(store, decide) if row["name"] == name])


def _change(store: Store, decide: Callable[[list[PolicyRow]], list[PolicyRow]]) -> list[PolicyRow]:
    """Replace the rows that `decide` gives, made of all rows, in one commit; return all rows as they stand then.

    Rows that differ get a time of change that is later than any before, except those that stay retired: they are put
    back in the order in which they retired.
    """
    after: dict[str, PolicyRow] = {}

    def decided(stored: pa.Table) -> list[dict[str, object]]:
        rows = {row["policy_id"]: row for row in map(_plain, stored.to_pylist())}
        changed_at = max([now(), *(row["changed_at"] + timedelta(microseconds=1) for row in rows.values())])
        changed: list[PolicyRow] = []
        for row in decide(list(rows.values())):
            stays = row["status"] == rows[row["policy_id"]]["status"] == "retired"
            changed.append(row if stays else {**row, "changed_at": changed_at})
        after.clear()
        after.update(rows | {row["policy_id"]: row for row in changed})
        return [_stored(row) for row in changed]

    Table(store, "policies").revise(POLICIES_OF, decided)
    return list(after.values())


def _check_tokenizer(
    store: Store, folder: Path, name: str, parent: str, known: dict[str, PolicyRow], parent_folder: Path | None
) -> None:
    """Refuse another tokenizer: memories and samples of the lineage's versions could not be compared."""
    if parent in known and known[parent]["name"] != name:
        raise ConfigError(f"{parent} is a version of {known[parent]['name']!r}, not of {name!r}")
    before = known.get(parent)
    if before is None and parent_folder is None:
        before = next((row for row in known.values() if row["name"] == name), None)
    if before is not None:
        whose, parent_path = before["policy_id"], fetch(store, before)
    elif parent_folder is not None or name == "nano":
        whose, parent_path = parent, parent_folder or bundled()
    else:
        return
    spec = tokenizer_file(str(parent_path)).read_bytes()
    path = folder / "tokenizer.json"
    if tokenizer_print(path.read_bytes(), str(path)) != tokenizer_print(spec, f"the tokenizer of {whose}"):
        raise ConfigError(
            f"{path} is not the tokenizer of {whose}: a version keeps its parent's. Copy tokenizer.json and "
            "tokenizer_config.json from there, or begin another lineage with another name."
        )


def _promoted(lineage: list[PolicyRow]) -> PolicyRow | None:
    return max((row for row in lineage if row["status"] == "promoted"), key=lambda row: row["changed_at"], default=None)


def _find(store: Store, rows: list[PolicyRow], policy_id: str) -> PolicyRow:
    for row in rows:
        if row["policy_id"] == policy_id:
            return row
    raise UsageError(f"no policy {policy_id!r} in {store.url}. There are: {_listed(rows) or 'none'}.")


def _listed(rows: list[PolicyRow]) -> str:
    return ", ".join(row["policy_id"] for row in rows[-10:])


def _changed(row: PolicyRow, status: PolicyStatus, reason: str, record: Json | None = None) -> PolicyRow:
    return {**row, "status": status, "reason": reason, "promotion": record or row["promotion"]}


def _plain(row: Mapping[str, Any]) -> PolicyRow:
    return cast(PolicyRow, {**row, **{name: json.loads(row[name]) if row[name] else None for name in _JSON}})


def _stored(row: PolicyRow) -> dict[str, object]:
    values: dict[str, object] = {**row}
    return values | {name: json.dumps(values[name], default=str) for name in _JSON if values[name] is not None}
