"""Sources: what folders, globs, files and ``s3://`` URLs hold, each with a stable name."""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from fsspec.utils import glob_translate

from infra.naming import quoted
from infra.store import file_system
from memagent.errors import UsageError

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Source:
    """A file to be read."""

    path: str
    """Where to open it; bytes that are no UTF-8 are as `os.fsdecode` gives them."""
    source: str
    """`path`, fit for tables; names it between runs."""
    doc_id: str
    """Its path relative to the source that it was found under, fit for tables."""
    size: int
    """Bytes."""
    stamp: str
    """Size and time, or size and ETag: it changes when the content may have changed."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Something that was found and is no readable file."""

    source: str
    reason: str
    detail: str


@dataclass
class Listing:
    """What was found under all sources of one call."""

    found: list[Source] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)
    hidden: int = 0
    """Files and folders whose name starts with a dot; they are passed over."""
    covers: list[Callable[[str], bool]] = field(default_factory=list)
    """One for each root: whether a source of this name would have been found under it."""

    def covered(self, source: str) -> bool:
        """Whether a source would have been found if it still existed.

        Not so for one that lies in a folder that could not be listed.
        """
        if any(source.startswith(bad.source + "/") for bad in self.unusable if bad.reason == "unreadable"):
            return False
        return any(covers(source) for covers in self.covers)


def list_sources(arguments: list[str], earlier: Collection[str] = ()) -> Listing:
    """Find everything that `arguments` name, each file once, in a stable order.

    Folders are read recursively. Links to files are followed where they stay within their folder, links
    to folders are not. Names that start with a dot are passed over unless given.

    Args:
        arguments: folders, globs (``*``, ``?``, ``[..]``, ``**``), files, and ``s3://`` URLs of each kind.
        earlier: names of sources that an earlier run has read; that one of them is gone is no wrong use.

    Raises:
        UsageError: a source does not exist or matches nothing.
    """
    if not arguments:
        raise UsageError("no sources: give folders, globs, files or s3:// URLs")
    listing = Listing()
    for argument in arguments:
        if argument.startswith("s3://"):
            _list_s3(argument, listing, earlier)
        elif "://" in argument:
            raise UsageError(f"source {argument!r}: give a folder, a glob, a file or an s3:// URL")
        else:
            _list_local(os.path.abspath(os.path.expanduser(argument)), argument, listing, earlier)
    first: dict[str, Source] = {}
    for source in listing.found:
        first.setdefault(source.source, source)
    listing.found = list(first.values())
    listing.unusable = list({bad.source: bad for bad in listing.unusable}.values())
    return listing


def assign_ids(found: list[Source], taken: dict[str, str], earlier: dict[str, str]) -> list[Source]:
    """Return `found` with ids that no two of them share.

    An id is the path relative to the source's root. Where another source has it already, as many
    folders before it are added as it takes. A source that was there in an earlier run keeps its id.

    Args:
        found: sources in listing order; the first one of a name gets it.
        taken: ids that are taken, and the source that has each.
        earlier: ids of sources in earlier runs.
    """
    owner = dict(taken)
    for source in found:
        if source.source in earlier:
            owner[earlier[source.source]] = source.source
    named = []
    for source in found:
        doc_id = earlier.get(source.source)
        if doc_id is None:
            doc_id = next(name for name in _names(source) if owner.get(name, source.source) == source.source)
            owner[doc_id] = source.source
        named.append(replace(source, doc_id=doc_id))
    return named


def _names(source: Source) -> Iterator[str]:
    """Yield ever longer names, the last of which is the full path."""
    yield source.doc_id
    full = source.source.removeprefix("s3://").lstrip("/")
    parts = full.split("/")
    for start in range(len(parts) - source.doc_id.count("/") - 2, -1, -1):
        yield "/".join(parts[start:])
    yield source.source


def _list_local(path: str, argument: str, listing: Listing, earlier: Collection[str]) -> None:
    shown = quoted(path)
    if os.path.isdir(path):
        listing.covers.append(lambda source: source.startswith(shown.rstrip("/") + "/"))
        _walk(path, lambda relative: True, None, listing)
        return
    if os.path.lexists(path):
        listing.covers.append(lambda source: source == shown)
        _add_local(path, os.path.basename(path), None, listing)
        return
    if not _MAGIC.search(path):
        if shown not in earlier:
            raise UsageError(f"source {argument!r}: no such file or folder")
        listing.covers.append(lambda source: source == shown)
        return
    base, pattern = _split_glob(path)
    if not os.path.isdir(base):
        raise UsageError(f"source {argument!r}: there is no folder {base}")
    matches = re.compile(glob_translate(pattern)).match
    prefix = quoted(base).rstrip("/") + "/"

    def covers(source: str) -> bool:
        return source.startswith(prefix) and matches(source.removeprefix(prefix)) is not None

    before = len(listing.found) + len(listing.unusable)
    depth = None if "**" in pattern else pattern.count("/")
    _walk(base, lambda relative: matches(relative) is not None, depth, listing)
    if len(listing.found) + len(listing.unusable) == before and not any(map(covers, earlier)):
        raise UsageError(f"source {argument!r} matches no file")
    listing.covers.append(covers)


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
        shown = sorted(name for name in names if not name.startswith("."))
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
        if not os.path.exists(path):  # nor where too many links lead to each other: `realpath` would follow them all
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
    listing.found.append(Source(path, source, quoted(relative), size=status.st_size, stamp=stamp))


def _list_s3(url: str, listing: Listing, earlier: Collection[str]) -> None:
    url = url if url.count("/") > 2 else url + "/"
    base, pattern = _split_glob(url) if _MAGIC.search(url) else (url, "")
    prefix = base.rstrip("/") + "/"
    try:
        objects = _s3_objects(url if not pattern else prefix, None if "**" in pattern or not pattern else pattern)
        if not objects and pattern:  # a key may hold the characters of a glob
            objects, prefix, pattern = _s3_objects(url, None), url.rstrip("/") + "/", ""
    except FileNotFoundError as error:
        raise UsageError(f"source {url!r}: there is no such bucket") from error
    except Exception as error:  # s3fs lets several libraries' errors through
        raise UsageError(f"source {url!r} cannot be listed: {type(error).__name__}: {error}") from error
    matches = re.compile(glob_translate(pattern)).match if pattern else None
    shown, single = quoted(prefix), quoted(url)

    def covers(source: str) -> bool:
        if source == single:
            return True
        return source.startswith(shown) and (matches is None or matches(source.removeprefix(shown)) is not None)

    count = 0
    for path, size, etag in objects:
        relative = path.removeprefix(prefix) if path.startswith(prefix) else path.rsplit("/", 1)[-1]
        if any(part.startswith(".") and part.strip(".") for part in relative.split("/")):
            listing.hidden += 1
        elif matches is None or matches(relative):
            listing.found.append(Source(path, quoted(path), quoted(relative), size=size, stamp=f"{size}-{etag}"))
            count += 1
    if not count and not any(map(covers, earlier)):
        raise UsageError(f"source {url!r}: there is no such object, or nothing under it")
    listing.covers.append(covers)


def _s3_objects(url: str, pattern: str | None) -> list[tuple[str, int, str]]:
    """Return URL, size and ETag of the objects at or under `url`, by name; as deep as `pattern`."""
    found = file_system(url).find(
        url.removeprefix("s3://"), maxdepth=None if pattern is None else pattern.count("/") + 1, detail=True
    )
    return [
        (f"s3://{key}", int(info["size"]), str(info.get("ETag", "")).strip('"'))
        for key, info in sorted(found.items())
        if not key.endswith("/") and info["type"] == "file"
    ]


def _split_glob(path: str) -> tuple[str, str]:
    """Return the folder before the first part with a wildcard, and the pattern from there on."""
    parts = path.split("/")
    first = next(i for i, part in enumerate(parts) if _MAGIC.search(part))
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])
