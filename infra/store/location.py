"""The store: one URL, a local folder or ``s3://``. No other module distinguishes the two.

Also what is said of a store that cannot be used, and how room on a disk is held.
"""

import errno
import io
import os
import random
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlparse

import fsspec
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from filelock import FileLock
from filelock import Timeout as LockTimeout

from infra.store.schemas import TABLES
from memagent.config import without_login
from memagent.errors import ConfigError, MemagentError, UsageError

_UPDATE_SECONDS = 300
_S3_ATTEMPTS = 12
"""Of a request that S3 answers by 500, 503 or not at all."""
_S3_SECONDS = 60
"""Without a byte, of an attempt: what s3fs waits. pyarrow's three are over each time where a server is busy."""
FIRST_ATTEMPTS = 3
"""The same before anything else is done: a wrong address is said soon."""
_FIRST_SECONDS = 5
"""Then also the time that a server has to take a connection."""
_LOST = ("PreconditionFailed", "412", "ConditionalRequestConflict", "OperationAborted", "409", "NoSuchKey", "404")
"""Codes of a condition that does not hold; the last two where the file was deleted meanwhile."""

_NO_VERSIONS = ("NotImplemented", "MethodNotAllowed", "501", "405")
"""Codes of a server that keeps no versions."""

_FOLDERS = {"claims", "corpora", "counts", "damaged", "policies", "promotions", "runs", "segments", "streams"}
_FOLDERS |= {"training", "turns"}
"""Of a store, beside those of its tables."""
_IN_TABLE = re.compile(r"corpus=[^/]+/.+\.parquet|_delta_log/.+")

_ODD = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\\x00-\x1f\x7f]")
"""In a path, deltalake takes it for something else."""


class Store:
    """Storage of all data. Pickles as its URL; clients are built where they are used.

    S3 endpoint, region and credentials come from the usual ``AWS_*`` variables, for plain files
    (s3fs) and for Delta tables (deltalake) alike.
    """

    def __init__(self, url: str) -> None:
        """Open the store at `url`; a local folder is made when something is written.

        Raises ConfigError: the URL is of another kind.
        """
        scheme = urlparse(url).scheme
        if scheme == "file":
            url, scheme = urlparse(url).path, ""
        if scheme not in ("", "s3"):
            raise ConfigError(f"store {url!r}: give a folder or an s3://bucket/prefix URL")
        if scheme == "s3" and not urlparse(url).netloc:
            raise ConfigError(f"store {url!r}: the bucket is missing (s3://bucket/prefix)")
        if scheme == "s3" and (set("?#") & set(url) or {"", ".", ".."} & set(url.rstrip("/").split("/")[3:])):
            raise ConfigError(f"store {without_login(url)}: a prefix has no '?', '#', empty part, '.' or '..'")
        if "@" in urlparse(url).netloc:
            raise ConfigError(f"store {without_login(url)}: keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        self.is_s3 = scheme == "s3"
        self.url = url.rstrip("/") if self.is_s3 else str(Path(url).expanduser().resolve())

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        return (Store, (self.url,))

    @cached_property
    def fs(self) -> Any:
        """The fsspec file system. s3fs is not fork-safe and caches listings, hence the settings."""
        return _S3(file_system(self.url)) if self.is_s3 else file_system(self.url)

    @cached_property
    def arrow(self) -> pa_fs.FileSystem:
        """pyarrow's own file system, with which tables and parts are read.

        With a Python file system, scan threads need the GIL, and a late one aborts a process at its exit (apache/arrow
        34314). pyarrow finds credentials where s3fs and deltalake do.
        """
        return _arrow_file_system() if self.is_s3 else pa_fs.LocalFileSystem()

    def path(self, *parts: str) -> str:
        """Return the path of something in the store, as `fs` takes it.

        Raises MemagentError: it would lie outside of the store; state files that others can write name paths, too.
        """
        if ".." in "/".join(parts).split("/"):
            raise MemagentError(f"{'/'.join(parts)!r} is no path within the store {self.url}")
        root = self.url.removeprefix("s3://")
        return "/".join([root, *parts])

    def is_own(self, path: str) -> bool:
        """Whether a file is one of memagent's: a store may lie in a folder or bucket with other files, which stay."""
        folder, _, rest = path.removeprefix(self.path("")).partition("/")
        return folder in _FOLDERS or (folder in TABLES and _IN_TABLE.fullmatch(rest) is not None)

    def has_folder(self, path: str) -> bool:
        """Whether a path is one of the store's own folders, or in one."""
        inside = path.startswith(self.path(""))
        return inside and path.removeprefix(self.path("")).partition("/")[0] in {*_FOLDERS, *TABLES}

    def delta_uri(self, table: str) -> str:
        """Return the address of a Delta table for deltalake. Raises ConfigError: it would take it for another."""
        if odd := _ODD.search(self.url):
            raise ConfigError(f"store {self.url!r}: Delta tables cannot be in a folder with {odd[0]!r} in its name")
        return f"{self.url}/{table}"

    @property
    def delta_options(self) -> dict[str, str]:
        """Settings for deltalake, which has an S3 client of its own."""
        return s3_options() if self.is_s3 else {}

    def write_bytes(self, data: bytes, *parts: str) -> str:
        """Write a file atomically, replacing an older one; return its path."""
        path = self.path(*parts)
        if self.is_s3:
            self.fs.pipe_file(path, data)  # a PUT is atomic
            return path
        with _replaced(Path(path)) as aside, aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path

    def update_bytes(self, change: Callable[[bytes | None], bytes], *parts: str) -> str:
        """Update a file atomically: write `change` of its bytes (None: no such file); return its path.

        Local updates take a lock. On S3 a concurrent update is detected, and `change` is called again with the new
        bytes, so it must be repeatable.

        Raises MemagentError: others keep changing the file.
        """
        if self.is_s3:
            return self._update_s3(change, *parts)
        target = Path(self.path(*parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(target.with_name(f".{target.name}.lock"), timeout=_UPDATE_SECONDS):
                return self.write_bytes(change(target.read_bytes() if target.exists() else None), *parts)
        except LockTimeout as error:
            raise MemagentError(f"{target} is held by others for {_UPDATE_SECONDS} s: try again") from error

    def _update_s3(self, change: Callable[[bytes | None], bytes], *parts: str) -> str:
        path = self.path(*parts)
        bucket, _, key = path.partition("/")
        until = time.monotonic() + _UPDATE_SECONDS
        while time.monotonic() < until:
            try:
                # The tag first: if the bytes are newer, the conditional write fails, and both are read again.
                condition = {"IfMatch": self.fs.info(path, refresh=True)["ETag"]}
                before = self.read_bytes(*parts)
            except FileNotFoundError:
                condition, before = {"IfNoneMatch": "*"}, None
            try:
                self.fs.call_s3("put_object", Bucket=bucket, Key=key, Body=change(before), **condition)
                return path
            except OSError as error:
                if _code(error) not in _LOST and not isinstance(error, FileExistsError):
                    raise  # another writer was not first
            time.sleep(random.uniform(0.01, 0.3))
        raise MemagentError(f"{path} was changed by others for {_UPDATE_SECONDS} s: try again")

    def write_part(self, table: pa.Table, *parts: str, row_group_size: int = 10_000) -> str:
        """Write a Parquet part atomically; return its path."""
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd", row_group_size=row_group_size, write_page_checksum=True)
        return self.write_bytes(buffer.getvalue(), *parts)

    def read_part(self, *parts: str, columns: list[str] | None = None) -> pa.Table:
        """Return the rows of a Parquet part. Raises FileNotFoundError."""
        return pq.read_table(self.path(*parts), columns=columns, filesystem=self.arrow, partitioning=None)

    def size(self, path: str) -> int:
        """Return a file's size in bytes. Raises FileNotFoundError."""
        return int(self.fs.size(path))

    def age(self, *parts: str) -> float:
        """Return the seconds since a file was written, on S3 by the server's clock alone. Raises FileNotFoundError."""
        path = self.path(*parts)
        if not self.is_s3:
            return time.time() - Path(path).stat().st_mtime
        bucket, _, key = path.partition("/")
        head = self.fs.call_s3("head_object", Bucket=bucket, Key=key)
        now = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
        return float((now - head["LastModified"]).total_seconds())

    def exists(self, *parts: str) -> bool:
        """Tell whether there is a file."""
        return bool(self.fs.isfile(self.path(*parts)))

    def read_bytes(self, *parts: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""
        data: bytes = self.fs.cat_file(self.path(*parts))
        return data

    def put_file(self, file: Path, *parts: str) -> str:
        """Copy a local file of any size into the store atomically; return its path."""
        path = self.path(*parts)
        if self.is_s3:
            self.fs.put_file(str(file), path)  # in parts, visible when the last one is there
            return path
        with _replaced(Path(path)) as aside:
            shutil.copyfile(file, aside)
        return path

    def get_file(self, file: Path, *parts: str) -> None:
        """Copy a file of the store to a local one. Raises FileNotFoundError."""
        self.fs.get_file(self.path(*parts), str(file))

    def folders(self, *parts: str) -> list[str]:
        """Return the names of the folders in a folder; nothing there gives an empty list."""
        try:
            entries = self.fs.ls(self.path(*parts), detail=True)
        except FileNotFoundError:
            return []
        names = [str(entry["name"]).rstrip("/").rsplit("/", 1)[-1] for entry in entries if entry["type"] == "directory"]
        return sorted(names)

    def list(self, *parts: str, suffix: str = ".parquet") -> list[str]:
        """Return the paths of all files under a folder, sorted; nothing there gives an empty list."""
        return list(self.sizes(*parts, suffix=suffix))

    def sizes(self, *parts: str, suffix: str = ".parquet", hidden: bool = False) -> dict[str, int]:
        """Return the bytes of all files under a folder by path, sorted by it; nothing there gives an empty dict.

        With `hidden` also of those that are being written, or were when their writer was killed.
        """
        try:
            found = self.fs.find(self.path(*parts), detail=True)
        except FileNotFoundError:
            return {}
        # s3fs gives the folder itself where its last file is gone; here may be pipes, and links to folders or nowhere.
        files = (path for path, info in found.items() if info["type"] == "file" or os.path.isfile(path))
        mine = (p for p in files if p.endswith(suffix) and (hidden or not p.rsplit("/", 1)[-1].startswith(".")))
        return {path: int(found[path]["size"]) if "size" in found[path] else self.size(path) for path in sorted(mine)}

    def check_erasable(self) -> None:
        """Refuse a store of which a part can be neither searched nor erased.

        Raises UsageError: a part is a symbolic link, or S3 does not show these keys the old versions of objects.
        """
        found = {} if self.is_s3 else self.fs.find(self.path(), detail=True)
        if link := next((path for path, info in found.items() if info.get("islink") and self.has_folder(path)), ""):
            raise UsageError(f"{link} is a symbolic link, so nobody can say what is left: move what it leads to here")
        next(self._versions(""), None)

    def erase_versions(self, *parts: str) -> None:
        """Erase from a bucket with versioning what it keeps of objects that were replaced or deleted.

        Args:
            parts: a file, whose present version goes as well; none: all files of memagent's.

        Raises UsageError: these keys may not list or delete versions, or a lock holds one.
        """
        # Markers of deleted files go last: without its marker, an old version would be the file again.
        for kind in ("Versions", "DeleteMarkers"):
            for page in self._versions("/".join(parts)):
                objects = [
                    {name: one[name] for name in ("Key", "VersionId")}
                    for one in page.get(kind, ())
                    if parts or self.is_own(f"{self.path().partition('/')[0]}/{one['Key']}")
                    # "null" is of a time without versioning: to delete the file erases it.
                    if kind != "Versions" or not one["IsLatest"] or (parts and one["VersionId"] != "null")
                ]
                if objects:
                    self._ask_versions("delete_objects", Delete={"Objects": objects, "Quiet": True})

    def _versions(self, name: str) -> Iterator[Any]:
        """Yield pages of what S3 has of a file, or of all, with old versions."""
        at: dict[str, str] = {}
        while self.is_s3:
            page = self._ask_versions("list_object_versions", Prefix=self.path(name).partition("/")[2], **at)
            yield page
            if not page.get("IsTruncated"):
                return
            at = {one: page[f"Next{one}"] for one in ("KeyMarker", "VersionIdMarker") if page.get(f"Next{one}")}

    def _ask_versions(self, request: str, **named: object) -> Any:
        """Ask S3 about versions of objects; return nothing where it keeps none. Raises UsageError: it refuses."""
        try:
            answer = self.fs.call_s3(request, Bucket=self.path().partition("/")[0], **named)
        except OSError as error:
            if _code(error) in _NO_VERSIONS:
                return {}
            if not isinstance(error, PermissionError):
                raise
            answer = {"Errors": [error]}
        if refused := answer.get("Errors"):
            raise UsageError(
                f"{self.url}: S3 refuses these keys old versions of objects, which may hold what is to be forgotten: "
                "grant s3:ListBucketVersions and s3:DeleteObjectVersion (infra/deploy/s3-policy.json), release locks, "
                f"and forget again ({refused[0]})"
            )
        return answer

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:
            return

    def check_reachable(self) -> None:
        """Ask a bucket for one name, so that wrong keys, a missing bucket or server are said at once and in one line.

        Raises ConfigError: saying which variable or bucket is wrong.
        """
        if not self.is_s3:
            return
        server, bucket = s3_options().get("AWS_ENDPOINT_URL", "AWS"), self.path().partition("/")[0]
        try:
            probe(self.url)
        except FileNotFoundError as error:
            raise ConfigError(
                f"store {self.url}: {server} has no bucket {bucket!r}: make it, or correct --store"
            ) from error
        except PermissionError as error:
            raise ConfigError(
                f"store {self.url}: {server} refuses the keys, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({error})"
            ) from error
        except Exception as error:  # botocore's own, for each way in which a server is not there
            if "NoCredentials" in type(error).__name__:
                raise ConfigError(f"store {self.url}: no keys; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY") from error
            detail = f"{type(error).__name__}: {error}"
            raise ConfigError(f"store {self.url}: no answer from {server} ({detail}): see AWS_ENDPOINT_URL") from error

    def check(self) -> None:
        """Check that the store can be written and read. Raises ConfigError: saying why not."""
        name = f".check-{uuid.uuid4().hex[:8]}"
        try:
            if self.is_s3:
                file_system(self.url, FIRST_ATTEMPTS).exists(self.path())
            path = self.write_bytes(b"ok", name)
            answer = self.read_bytes(name)
            self.delete(path)
        except Exception as error:  # each file system raises its own errors
            raise ConfigError(f"the store {self.url} cannot be used: {type(error).__name__}: {error}") from error
        if answer != b"ok":
            raise ConfigError(f"the store {self.url} gives back other bytes than were written")


@contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """Give the body a path beside `target`; what it writes there takes the target's place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield aside
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)  # on a full disk it would take the room that others need


def _code(error: OSError) -> str:
    """Return the code by which S3 names an error; empty: it is none of S3."""
    return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus of a store; `name` is its key in every table."""

    store: Store
    name: str


class _S3:
    """A file system of S3, whose errors are those of the system: botocore's, of a server that is away, are none."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return partial(_asked, getattr(self._files, name))


def _asked(ask: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    try:
        return ask(*arguments, **named)
    except BotoCoreError as error:
        raise ConnectionError(errno.EHOSTDOWN, f"S3 does not answer: {error}") from error


def probe(url: str) -> None:
    """Ask S3 for one name below a URL: where nobody answers, that is said soon. Raises what s3fs and botocore raise."""
    bucket, _, key = url.removeprefix("s3://").rstrip("/").partition("/")
    file_system(url, FIRST_ATTEMPTS).call_s3("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)


def file_system(url: str, attempts: int = _S3_ATTEMPTS) -> Any:
    """Return the fsspec file system for a path or URL; on S3 a request that fails is made so often."""
    if not url.startswith("s3://"):
        return fsspec.filesystem("file")
    options = s3_options()
    first = attempts == FIRST_ATTEMPTS
    made = fsspec.filesystem(
        "s3",
        endpoint_url=options.get("AWS_ENDPOINT_URL"),
        client_kwargs={"region_name": options["AWS_REGION"]},
        config_kwargs={
            "retries": {"mode": "standard", "total_max_attempts": attempts},
            **({"connect_timeout": _FIRST_SECONDS} if first else {}),
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    if first:
        made.retries = 1  # s3fs has five attempts of its own around botocore's where a connection is closed
    return made


def _arrow_file_system() -> pa_fs.S3FileSystem:
    options = s3_options()
    scheme, _, host = options.get("AWS_ENDPOINT_URL", "").rpartition("://")
    return pa_fs.S3FileSystem(
        region=options["AWS_REGION"],
        endpoint_override=host or None,
        scheme=scheme or "https",
        # The standard strategy gives up once some hundred requests of a process have failed, whatever else succeeds.
        retry_strategy=pa_fs.AwsDefaultS3RetryStrategy(max_attempts=_S3_ATTEMPTS),
        request_timeout=_S3_SECONDS,
    )


def s3_options() -> dict[str, str]:
    """Translate the ``AWS_*`` variables once, for all S3 clients."""
    options = {
        name: value
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        if (value := os.environ.get(name))
    }
    options["AWS_REGION"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    return options


_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, and of a quota that is used up."""


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that a disk is full."""
    return isinstance(error, OSError) and error.errno in _FULL


_ADVICE = {
    errno.ENOSPC: "no space is left on the disk: free some, and run the same command again; it goes on where it was",
    errno.EDQUOT: "the disk quota is used up: free some space, and run the same command again; it goes on where it was",
    errno.EROFS: "the disk is read-only: give a --store that can be written, or mount it for writing",
    errno.EACCES: "permission denied: give this user, or these keys, the right to write there, or give another --store",
    errno.EHOSTDOWN: "S3 does not answer (AWS_ENDPOINT_URL): run the same command again; it goes on where it was",
}
_NUMBERS = {"Generic S3 error": errno.EHOSTDOWN, "NETWORK_CONNECTION": errno.EHOSTDOWN, "ACCESS_DENIED": errno.EACCES}
"""Words of deltalake and Arrow, and the error that they mean."""
OS_ERROR = re.compile(r"os error (\d+)")
"""How deltalake names the system's error."""


def storage_error(error: BaseException) -> str | None:
    """Return what to tell of an error that the disk or S3 is the reason of; None for any other."""
    for cause in _chain(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if number not in _ADVICE and (match := OS_ERROR.search(str(cause))):
            number = int(match[1])
        if number not in _ADVICE:
            denied = errno.EACCES if isinstance(cause, PermissionError) else None
            number = next((code for words, code in _NUMBERS.items() if words in str(cause)), denied)
        if number in _ADVICE:
            file = getattr(cause, "filename", None)
            return f"{file}: {_ADVICE[number]}" if file else _ADVICE[number]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it comes from; Ray keeps a worker's error in `cause`."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [getattr(one, "cause", None), one.__cause__, one.__context__]


class DiskReserve:
    """Room on the disk of a folder, until it is given up or its process ends; nothing is left of it then."""

    def __init__(self, folder: str, size: int) -> None:
        """Hold `size` bytes in a folder, which is made, where the file system can. Raises OSError: the disk is full."""
        self._file: BinaryIO | None = None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - open while room is held
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            self.give_up()
            if is_full(error):
                raise
            # Some network file systems cannot hold room: the run goes on without.

    def give_up(self) -> None:
        """Leave the room to whoever writes next."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.give_up()
