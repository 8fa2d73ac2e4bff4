"""Finds sources: what folders, globs, files and ``s3://`` URLs hold."""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from urllib.parse import unquote

import pyarrow as pa
from deltalake.exceptions import DeltaError
from fsspec.utils import glob_translate

from infra.sources.base import quoted
from infra.sources.listing import Listing, Source, Unusable, is_passed_over
from infra.store.delta import open_delta
from infra.store.location import file_system, probe, s3_options
from memagent.config import without_login
from memagent.errors import UsageError

LOG_FOLDER = "_delta_log"
"""What a folder has that is a Delta table."""


def _add_delta_table(
    table: str, prefix: str, listing: Listing, matches: Callable[[str], bool] = lambda name: True
) -> None:
    """Add the current files of a Delta table, in the order of its log.

    A table that cannot be read, or has rows deleted by vectors, becomes an unusable source, and what was read of it
    stays.

    Args:
        table: its folder or ``s3://`` URL.
        prefix: of the names that its files get: empty, or its path below the source and a slash.
        matches: whether a file of this name is wanted.
    """
    try:
        delta = open_delta(table, s3_options() if table.startswith("s3://") else {})
        files = pa.table(delta.get_add_actions(flatten=True)).select(["path", "size_bytes", "modification_time"])
    except (DeltaError, OSError, ValueError) as error:
        detail = f"a Delta table that cannot be read: {error}; what was read of it is kept"
        listing.unusable.append(Unusable(quoted(table), "unreadable", detail))
        return
    inside = None if table.startswith("s3://") else os.path.realpath(table)
    files = files.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    for batch in files.to_batches(max_chunksize=10_000):
        for path, size, changed in zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True):
            relative = unquote(path)
            if "://" in relative or relative.startswith("/") or ".." in relative.split("/"):
                detail = f"the Delta table's log names a file outside its folder: {relative}"
                listing.unusable.append(Unusable(quoted(f"{table}/{relative}"), "link", detail))
            elif inside is None:
                full = f"{table}/{relative}"
                listing.add(Source(full, quoted(full), quoted(prefix + relative), size, stamp=f"{size}-{changed}"))
            elif matches(prefix + relative):
                _add_local(os.path.join(table, relative), prefix + relative, inside, listing)


_Names = Callable[[], Iterable[str]]
_MAGIC = re.compile(r"[*?\[]")


class _NotThereError(UsageError):
    """A source does not exist, or matches nothing, and no document is kept of it."""


def list_sources(arguments: list[str], earlier: _Names = tuple, remembered: Collection[str] = ()) -> Listing:
    """Find everything that `arguments` name, each file once, in a stable order.

    Folders are read recursively; of one that is a Delta table, the files of its newest version. Links to files are
    followed where they stay within their folder, links to folders are not. Names of files that are no documents
    (`is_passed_over`) are passed over unless given.

    Args:
        arguments: folders, globs (``*``, ``?``, ``[..]``, ``**``), files, and ``s3://`` URLs of each kind.
        earlier: returns the names of the sources that an earlier run has read; that one of them is gone is no error.
        remembered: those of the arguments that the corpus has. Their files may have been deleted, moved or forgotten
            long ago, and nobody can take a source out of a corpus: that they are not there is no error.

    Raises UsageError: any other source does not exist or matches nothing.
    """
    if not arguments:
        raise UsageError("no sources: give folders, globs, files or s3:// URLs")
    listing = Listing()
    for argument in arguments:
        if not argument.strip():
            raise UsageError("a source is empty: give a folder, a glob, a file or an s3:// URL")
        try:
            if argument.startswith("s3://"):
                _list_s3(argument, listing, earlier)
            elif "://" in argument:
                raise UsageError(f"source {argument!r}: give a folder, a glob, a file or an s3:// URL")
            else:
                _list_local(os.path.abspath(os.path.expanduser(argument)), argument, listing, earlier)
        except _NotThereError:
            if argument not in remembered:
                raise
    listing.end()
    return listing


def _list_local(path: str, argument: str, listing: Listing, earlier: _Names) -> None:
    shown, before = quoted(path), (listing.count, len(listing.unusable))
    if os.path.isdir(path):
        below = shown.rstrip("/") + "/"
        _walk(path, lambda relative: True, None, listing)
        if os.path.isdir(os.path.join(path, LOG_FOLDER)):
            before = (-1, 0)  # a table without rows is there
        _cover(
            shown, lambda source: source == shown or source.startswith(below), listing, before=before, earlier=earlier
        )
        return
    folder, name = os.path.split(path)
    listing.covers.append(lambda source: source == quoted(folder))  # what was said of it in an earlier run is over
    if os.path.lexists(path):
        listing.covers.append(lambda source: source == shown)
        _add_local(path, name, None, listing)
        return
    if not _MAGIC.search(path):
        known = set(earlier())
        if any(source.startswith(shown.rstrip("/") + "/") for source in known):
            # It may be a disk that is not mounted: its documents are kept, and the other sources are read.
            listing.unusable.append(Unusable(shown, "no-folder", "the folder is not there; its documents are kept"))
        elif shown in known:
            if os.access(folder, os.R_OK | os.X_OK) and os.listdir(folder):
                listing.covers.append(lambda source: source == shown)
            else:
                detail = f"it is empty, gone or closed; what {name} said is kept, and `memagent forget` deletes it"
                listing.unusable.append(Unusable(quoted(folder), "no-folder", detail))
        else:
            raise _NotThereError(f"source {argument!r}: no such file or folder")
        return
    base, pattern = split_glob(path)
    matches = glob_matcher(pattern)
    prefix = quoted(base).rstrip("/") + "/"

    def covers(source: str) -> bool:
        return source.startswith(prefix) and matches(source.removeprefix(prefix)) is not None

    depth = None if "**" in pattern else pattern.count("/")
    is_there = os.path.isdir(base)
    if is_there:
        _walk(base, lambda relative: matches(relative) is not None, depth, listing)
    if not _cover(shown, covers, listing, before=before, earlier=earlier):
        missing = " matches no file" if is_there else f": there is no folder {base}"
        raise _NotThereError(f"source {argument!r}{missing}")


def _cover(
    shown: str, covers: Callable[[str], bool], listing: Listing, *, before: tuple[int, int], earlier: _Names
) -> bool:
    """Note what a source covers, by which its documents are told from those that are gone; return whether it is known.

    Where it has no file any more, it covers nothing, and its documents are kept: a disk that is not mounted leaves an
    empty folder, or links that lead nowhere. What another source covers, too, is there or gone. `before` counts the
    files and unusable sources listed before it.
    """
    unusable = {bad.source for bad in listing.unusable}
    if listing.count > before[0]:
        listing.covers.append(covers)
    elif shown not in unusable and any(
        covers(one) and not any(other(one) for other in listing.covers)
        for one in earlier()
        if one != shown and one not in unusable
    ):
        detail = "it has no file any more; its documents are kept, and `memagent forget` deletes them"
        listing.unusable.append(Unusable(shown, "empty-source", detail))
    elif len(listing.unusable) == before[1]:
        listing.covers.append(lambda source: source == shown)  # what was said of it in an earlier run is over
        return False
    return True


def _walk(root: str, matches: Callable[[str], bool], depth: int | None, listing: Listing) -> None:
    """List a folder and those below it, however deep: `os.walk` calls itself for each level before Python 3.12."""
    inside = os.path.realpath(root)
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        folder = os.path.join(root, prefix[:-1]) if prefix else root
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError as error:
            detail = f"the folder cannot be listed: {error.strerror}"
            listing.unusable.append(Unusable(quoted(folder), "unreadable", detail))
            continue
        if names.get(LOG_FOLDER):
            _add_delta_table(folder.rstrip("/"), prefix, listing, matches)
            continue
        shown = sorted(name for name in names if not is_passed_over(name))
        listing.hidden += len(names) - len(shown)
        if depth is None or prefix.count("/") < depth:
            waiting += [f"{prefix}{name}/" for name in reversed(shown) if names[name]]
        for name in shown:
            if not names[name] and matches(prefix + name):
                _add_local(os.path.join(folder, name), prefix + name, inside, listing)


def _add_local(path: str, relative: str, inside: str | None, listing: Listing) -> None:
    source = quoted(path)

    def refuse(reason: str, detail: str) -> None:
        listing.unusable.append(Unusable(source, reason, detail))

    if inside is not None and os.path.islink(path):
        if os.path.isdir(path):
            return refuse("link", "a link to a folder is not followed; give the folder itself as a source")
        if not os.path.exists(path):  # also for cycles of links, which `realpath` would follow
            return refuse("link", "a link that leads nowhere, or to itself")
        target = os.path.realpath(path)
        if not target.startswith(inside.rstrip("/") + "/"):
            return refuse("link", "a link out of the folder is not followed; give its target as a source")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return refuse("vanished", "it went away while the folder was listed")
    except OSError as error:
        return refuse("unreadable", f"it cannot be looked at: {error.strerror}")
    if not stat.S_ISREG(status.st_mode):
        return refuse("not-a-file", "a pipe, socket or device, and no file")
    stamp = f"{status.st_size}-{status.st_mtime_ns}"
    listing.add(Source(path, source, quoted(relative), size=status.st_size, stamp=stamp))


def _list_s3(url: str, listing: Listing, earlier: _Names) -> None:
    url = url if url.count("/") > 2 else url + "/"
    if "@" in url.split("/")[2]:
        keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise UsageError(f"source {without_login(url)!r}: keys come from {keys}")
    base, pattern = split_glob(url)
    prefix = base.rstrip("/") + "/"
    try:
        probe(base)
        before = (listing.count, len(listing.unusable))
        count, covers = _add_s3(url, prefix, pattern, listing)
        if not count and pattern:  # a key may hold the characters of a glob
            count, as_key = _add_s3(url, url.rstrip("/") + "/", "", listing)
            covers = as_key if count else covers
    except Exception as error:  # s3fs lets several libraries' errors through
        gone = isinstance(error, FileNotFoundError)
        why = "the bucket is not there" if gone else f"it cannot be listed: {type(error).__name__}: {error}"
        if not any(source.startswith(quoted(prefix)) for source in earlier()):
            raise (_NotThereError if gone else UsageError)(f"source {url!r}: {why}") from error
        reason, detail = "no-folder" if gone else "unreadable", f"{why}; its documents are kept"
        listing.unusable.append(Unusable(quoted(url), reason, detail))
        return
    if count or set(filter(covers, earlier())) == {quoted(url)}:  # an object, which may be gone
        listing.covers.append(covers)
    elif not _cover(quoted(url), covers, listing, before=before, earlier=earlier):
        raise _NotThereError(f"source {url!r}: there is no such object, or nothing under it")


def _add_s3(url: str, prefix: str, pattern: str, listing: Listing) -> tuple[int, Callable[[str], bool]]:
    """Add the objects under a prefix that match a pattern; return how many, and what they cover."""
    matches = glob_matcher(pattern) if pattern else None
    shown, single = quoted(prefix), quoted(url)

    def covers(source: str) -> bool:
        if source == single:
            return True
        return source.startswith(shown) and (matches is None or matches(source.removeprefix(shown)) is not None)

    before = listing.count
    if not pattern and file_system(url).exists(f"{url.rstrip('/')}/{LOG_FOLDER}"):
        _add_delta_table(url.rstrip("/"), "", listing)
        return max(1, listing.count - before), covers
    inside = ""
    for path, size, etag in _s3_objects(prefix if pattern else url, flat=bool(pattern) and "/" not in pattern):
        relative = path.removeprefix(prefix) if path.startswith(prefix) else path.rsplit("/", 1)[-1]
        table, log, _ = path.partition(f"/{LOG_FOLDER}/")
        if log and not pattern and table != inside:  # the log comes before files whose names begin with a letter
            inside = table
            _add_delta_table(table, table.removeprefix(prefix) + "/", listing)
        if log or (inside and path.startswith(inside + "/")):
            continue
        if any(is_passed_over(part) and part.strip(".") for part in relative.split("/")):
            listing.hidden += 1
        elif matches is None or matches(relative):
            listing.add(Source(path, quoted(path), quoted(relative), size=size, stamp=f"{size}-{etag}"))
    return listing.count - before, covers


def _s3_objects(url: str, flat: bool) -> Iterator[tuple[str, int, str]]:
    """Yield URL, size and ETag of the object at `url` and of those under it, a page of the listing at a time.

    Args:
        url: of an object or a prefix.
        flat: leave out what is in "folders" below.

    Raises FileNotFoundError: there is no such bucket.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    client = file_system(url)
    folder = key if key.endswith("/") or not key else key + "/"
    if folder != key and client.isfile(f"{bucket}/{key}"):
        info = client.info(f"{bucket}/{key}")
        yield url, int(info["size"]), str(info.get("ETag", "")).strip('"')
    options = {"Bucket": bucket, "Prefix": folder, **({"Delimiter": "/"} if flat else {})}
    while True:
        page = client.call_s3("list_objects_v2", **options)
        for entry in page.get("Contents", ()):
            if not entry["Key"].endswith("/"):
                yield f"s3://{bucket}/{entry['Key']}", int(entry["Size"]), str(entry.get("ETag", "")).strip('"')
        if not page.get("IsTruncated"):
            return
        options["ContinuationToken"] = page["NextContinuationToken"]


def glob_matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """Return what matches paths under a glob's folder by its pattern. Raises UsageError: it has ``**`` in a name."""
    try:
        return re.compile(glob_translate(pattern)).match
    except ValueError as error:
        raise UsageError(f"pattern {pattern!r}: ** stands for folders, between slashes, as in **/*.pdf") from error


def split_glob(path: str) -> tuple[str, str]:
    """Return the folder in which a source is looked for, and its pattern there; empty: it is no glob."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])
