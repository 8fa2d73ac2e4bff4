"""Damage: files of the store that are gone or cannot be read, and how they are set aside.

A file that cannot be read is never deleted: it goes to ``damaged/``, under the path that it had.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypedDict
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from infra.store.buckets import groups_of
from infra.store.data_files import stored_file
from infra.store.delta import Table, is_damage, path_corpus
from infra.store.location import Corpus, Store
from infra.store.schemas import POLICIES_OF, TABLES
from memagent.errors import MemagentError

Part = Literal[
    "tables",
    "settings",
    "plans",
    "texts",
    "sources",
    "forgettings",
    "segments",
    "turn log",
    "archives",
    "answers",
    "policies",
]
_FOLDER = "damaged"
_GROUP_BYTES = 64 * 2**20


class Damage(TypedDict):
    """Something in the store that is not as it was written."""

    part: Part
    item: str
    """A file of the store, a document's content hash, a source, a reading or a policy."""
    detail: str
    repair: str
    """What a repair does about it; empty: nothing can."""


def unreadable(store: Store, path: str) -> str:
    """Return why a Parquet file, at a path of the store, cannot be read whole; empty: it can.

    Raises OSError: a server or a disk does not answer, or memory is short; that says nothing of the file.
    """
    try:
        file = pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False, page_checksum_verification=True)
        rows = sum(batch.num_rows for batch in file.iter_batches(batch_size=1024, use_threads=False))
    except FileNotFoundError:
        return "it is gone"
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        return f"it cannot be read: {str(error)[:200]}"
    # A page that says it has no values ends a file early, and nothing complains.
    if rows != file.metadata.num_rows:
        return f"it has {rows} of its {file.metadata.num_rows} rows"
    return f"its column {column} is not stored as its schema says" if (column := _mistyped(file)) else ""


def raise_if_damaged(store: Store, path: str, columns: Sequence[str]) -> None:
    """Read a row of some columns of each row group of a Parquet file; raise where a column is not what the schema says.

    A dataset that filters by such a column ends the process: Arrow (26.0) reads the statistics of a filter's columns
    where nothing catches an error.

    Raises OSError, pyarrow.ArrowException: as `pyarrow.parquet.ParquetFile` has it.
    """
    file = pq.ParquetFile(path, filesystem=store.arrow, pre_buffer=False)
    for group in range(file.num_row_groups):
        next(file.iter_batches(1, row_groups=[group], columns=list(columns), use_threads=False), None)
    if column := _mistyped(file, columns):
        raise pa.ArrowInvalid(f"column {column} is not stored as its schema says")


def _mistyped(file: pq.ParquetFile, columns: Collection[str] = ()) -> str:
    """Return a column of which a chunk has another type than the schema says: of some, or of all; empty: there is none.

    To be called after the columns have been read: before, a damaged footer may end the process.
    """
    named = [(place, file.schema.column(place)) for place in range(len(file.schema))]
    for group in range(file.num_row_groups):
        chunks = file.metadata.row_group(group)
        for place, column in named:
            if columns and column.name not in columns:
                continue
            if chunks.column(place).physical_type != column.physical_type:
                return str(column.path)
    return ""


_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_EMPTY = b'{"commitInfo":{"operation":"memagent check --repair"}}'
"""A commit that changes nothing."""
_ACTIONS: Mapping[str, Mapping[str, type]] = {
    "add": {"path": str, "partitionValues": dict, "size": int, "modificationTime": int, "dataChange": bool},
    "remove": {"path": str, "dataChange": bool},
    "metaData": {"id": str, "format": dict, "schemaString": str, "partitionColumns": list, "configuration": dict},
    "protocol": {"minReaderVersion": int, "minWriterVersion": int},
    "txn": {"appId": str, "version": int},
    "commitInfo": {},
}
"""The actions of a commit that this store's tables have, with the fields that the Delta protocol requires."""

_BEGINNING = {"metaData": (b'{"metaData', b"schemaString"), "protocol": (b'{"protocol', b"minReaderVersion")}
"""What tells a damaged action of the first commit, which is made again from the table's schema."""
_BETWEEN = re.compile(rb'\n|(?=\{"[^"{}]{2,14}":\{")')
"""What is between two actions, also where the break of the line is damaged."""
_DATA_FILE = re.compile(rb"corpus=[\w.~%-]+/[\w./-]+\.parquet")
"""Paths of data files, as a log has them. Files of other names deltalake cannot drop."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """What is wrong with the log of a Delta table."""

    table: str
    commits: dict[int, str]
    """Versions whose commit is damaged or gone, and why; by default a repair replaces it by one without changes."""
    checkpoints: dict[str, str]
    """Files of checkpoints, and why they are of no use: the log has all without them."""
    lost: str
    """What the log can no longer say, which nothing mends; empty: all of it is there, or is mended."""
    mended: dict[int, bytes] = field(default_factory=dict)
    """What replaces those damaged commits of which enough is left."""


def log_damage(store: Store, name: str) -> LogDamage:
    """Compare a table's log with what the Delta protocol asks of it, and open the table if nothing is wrong.

    An opened table does not tell all: deltalake takes an empty commit for one without changes, and a folder without a
    log for no table.
    """
    files = {path.rsplit("/", 1)[-1]: path for path in store.list(name, _LOG, suffix="")}
    commits = {int(found[1]): path for file, path in files.items() if (found := _COMMIT.fullmatch(file))}
    checkpoints = {int(found[1]): path for file, path in files.items() if (found := _CHECKPOINT.fullmatch(file))}
    bad = {path: reason for path in checkpoints.values() if (reason := unreadable(store, path))}
    good = [version for version, path in checkpoints.items() if path not in bad]
    hint = files.get("_last_checkpoint")
    if hint and (of := _version_of(store.fs.cat_file(hint))) is not None and of not in good:
        bad[hint] = f"it names checkpoint {of}, which is gone or damaged"
    first = max(good, default=-1) + 1
    if not good and not commits:
        data = any(path.startswith(store.path(name, "corpus=")) for path in store.list(name))
        return LogDamage(name, {}, bad, "it is gone, and files of the table are there" if data or bad else "")
    if not good and (begins := min(commits)) > (0 if bad else 1):  # the first one alone is made again
        return LogDamage(name, {}, bad, f"the checkpoint with what was committed before version {begins} is gone")
    newest = max([first - 1, *commits])
    if good and bad and any(version not in commits for version in range(first, newest + 1)):
        return LogDamage(name, {}, bad, f"a checkpoint is damaged, and commits after checkpoint {first - 1} are gone")
    broken = {
        version: reason
        for version in range(first, newest + 1)
        if (reason := _broken(name, store.fs.cat_file(commits[version])) if version in commits else "it is gone")
    }
    there = [version for version in broken if version in commits]
    mended = {each: made for each in there if (made := _mended(store, name, each, store.fs.cat_file(commits[each])))}
    if not broken and not bad:
        try:
            Table(store, name).version()
        except MemagentError as error:
            return LogDamage(name, {}, {}, str(error).partition(": memagent check")[0])
    return LogDamage(name, broken, bad, "", mended=mended)


def commit_path(store: Store, name: str, version: int) -> str:
    """Return the path of a commit in a table's log."""
    return store.path(name, _LOG, f"{version:020}.json")


def mend_log(store: Store, damage: LogDamage) -> None:
    """Set damaged files of a log aside; put mended commits in the places of damaged ones, or commits without changes.

    The data files that a lost commit has added are no longer of the table; they stay until `optimize` deletes them.
    """
    for path in damage.checkpoints:
        set_aside(store, path)
    for version in damage.commits:
        path = commit_path(store, damage.table, version)
        set_aside(store, path)
        commit = damage.mended.get(version) or (_EMPTY if version else _first_commit(damage.table))
        store.write_bytes(commit, path.removeprefix(store.path("")))


def _first_commit(name: str) -> bytes:
    """Return the commit that makes a table, without rows."""
    with TemporaryDirectory() as folder:
        Table(Store(folder), name).create()
        return Store(folder).read_bytes(name, _LOG, f"{0:020}.json")


def _version_of(hint: bytes) -> int | None:
    try:
        version = json.loads(hint)["version"]
    except (ValueError, KeyError, TypeError):  # deltalake looks for the newest checkpoint itself
        return None
    return version if isinstance(version, int) else None


def _broken(name: str, commit: bytes) -> str:
    """Return why a commit of a table is none; empty: it is one."""
    try:
        actions = [json.loads(line) for line in commit.splitlines()]  # a text's own breaks of lines are none
    except ValueError:
        return "it is cut off or overwritten"
    odd = next((number for number, action in enumerate(actions, 1) if not _is_action(name, action)), 0)
    return f"its line {odd} is no action of the Delta protocol" if odd else "" if actions else "it is empty"


def _is_action(name: str, action: Any) -> bool:
    """Whether a line of a commit has what the Delta protocol and the table require of it."""
    kind, fields = next(iter(action.items()), ("", None)) if isinstance(action, dict) else ("", None)
    if not isinstance(fields, dict) or kind not in _ACTIONS:
        return False
    if not all(isinstance(fields.get(key), type_) for key, type_ in _ACTIONS[kind].items()):
        return False
    try:
        if kind == "metaData":
            columns = {column.name for column in Schema.from_json(fields["schemaString"]).fields}
            lacking = set(TABLES[name].schema.names) - columns  # as a table of an earlier version
            renamed = any(get_close_matches(each, lacking, 1, 0.8) for each in columns - {*TABLES[name].schema.names})
            read = fields["format"], fields["partitionColumns"]
            return read == ({"provider": "parquet", "options": {}}, ["corpus"]) and "corpus" in columns and not renamed
        if kind == "add":
            stats = json.loads(fields.get("stats") or "{}")
            named = _DATA_FILE.fullmatch(fields["path"].encode()) is not None
            return named and [*fields["partitionValues"]] == ["corpus"] and isinstance(stats, dict)
    except ValueError:
        return False
    return True


def _mended(store: Store, name: str, version: int, commit: bytes) -> bytes:
    """Return a commit with its damaged actions made again, from the data files; empty: too little of it is left.

    A beginning that says no file is left out: deltalake begins with what a commit was made by.
    """
    actions = list[dict[str, Any]]()
    for line in filter(None, _BETWEEN.split(commit)):
        try:
            actions.append(_remade(store, name, line))
        except ValueError:
            if actions or b'"path"' in line:
                return b""
    if version == 0 and actions:  # the table's beginning, if it was left out
        there = {kind for action in actions for kind in action}
        actions[:0] = [made for made in map(json.loads, _first_commit(name).splitlines()) if not there & {*made}]
    return b"\n".join(json.dumps(action, ensure_ascii=False).encode() for action in actions)


def _remade(store: Store, name: str, line: bytes) -> dict[str, Any]:
    """Return the action of a line; one with a damaged letter is made again by the file, or the kind, that it names.

    Two words tell each kind, of which one is whole. Raises ValueError: the line is cut off, or names nothing.
    """
    for text in (line, line[:-1]):  # the break of the line may be the damage
        with suppress(ValueError):
            if _is_action(name, action := json.loads(text)):
                return dict(action)
    files = _DATA_FILE.findall(line)
    if len(files) == 1 and b"}" in line[-2:]:
        path = files[0].decode()
        if b'{"remove' in line or b"deletionTimestamp" in line:
            return {"remove": {"path": path, "dataChange": True}}
        bad = unreadable(store, store.path(name, unquote(path)))  # then it was removed later, or is dropped next
        file: Mapping[str, Any] = {"size": 0, "stats": None} if bad else stored_file(store, name, path)
        fields = {"path": path, "partitionValues": {"corpus": path_corpus(path)}, "modificationTime": 0}
        return {"add": fields | {"size": file["size"], "stats": file["stats"], "dataChange": True}}
    kind = next((kind for kind, words in _BEGINNING.items() if any(word in line for word in words)), "")
    if files or not kind or b'"operation"' in line:
        raise ValueError("too little is left")
    return next(made for made in map(json.loads, _first_commit(name).splitlines()) if kind in made)


def misstated(store: Store, name: str, entry: Mapping[str, Any]) -> str:
    """Return what the log says wrongly of a whole data file (`infra.store.delta.Table.entries`); empty: nothing."""
    path = unquote(entry["path"])
    table, size = store.read_part(name, path), store.size(store.path(name, path))
    stated = {
        "corpus": (entry["partition.corpus"], path_corpus(entry["path"])),
        "bytes": (entry["size_bytes"], size),
        "rows": (entry["num_records"], table.num_rows),
    }
    wrong = [f"{what} {said} instead of {there}" for what, (said, there) in stated.items() if said != there]
    wrong += [
        f"another range of {column} than is there"
        for column in table.column_names
        if _other_range(table, column, entry)
    ]
    return f"the log says of it: {', '.join(wrong)}" if wrong else ""


def _other_range(table: pa.Table, name: str, entry: Mapping[str, Any]) -> bool:
    """Whether the log has other statistics of a column than a file; reads and deletions skip files by them.

    A long text's are shortened: its lower one is a beginning, its upper one a beginning with a higher end.
    """
    low, high, nulls = (entry.get(f"{kind}.{name}") for kind in ("min", "max", "null_count"))
    if nulls is None and low is None and high is None:  # as of lists
        return False
    text = pa.types.is_string_view(table[name].type)
    bounds = pc.min_max(table[name].cast(pa.string()) if text else table[name]).as_py()
    least, most = bounds["min"], bounds["max"]
    if isinstance(least, str) and isinstance(low, str) and isinstance(high, str):
        same = least.startswith(low) and (most == high or (most < high and most.startswith(high[:-1])))
    else:
        same = (low, high) == (least, most)
    return not same or nulls not in (None, table[name].null_count)


def table_entries(corpus: Corpus, name: str) -> Iterator[list[dict[str, Any]]]:
    """Yield what the log says of a table's files that a corpus has, by log or path, in groups of some megabytes."""
    rows = Table(corpus.store, name).entries().to_pylist()
    names = {corpus.name, POLICIES_OF}  # what is of no corpus is checked with each
    mine = (row for row in rows if names & {row["partition.corpus"], path_corpus(row["path"])})
    yield from groups_of(((row, row["size_bytes"]) for row in mine), _GROUP_BYTES)


def set_aside(store: Store, path: str) -> None:
    """Move a file to ``damaged/``, if it is there."""
    if store.fs.exists(path):
        relative = path.removeprefix(store.path(""))
        names = (f"{relative}.{number}" if number else relative for number in count())
        free = next(name for name in names if not store.exists(_FOLDER, name))  # what was set aside before stays
        store.write_bytes(store.fs.cat_file(path), _FOLDER, free)
        store.delete(path)


def drop_files(store: Store, name: str, paths: Collection[str]) -> None:
    """Set files of a Delta table aside, and commit that they are gone."""
    for path in paths:
        set_aside(store, path)
    DeltaTable(store.delta_uri(name), storage_options=store.delta_options).repair(dry_run=False)
