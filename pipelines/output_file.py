"""A file that a command writes for its user."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memagent.errors import UsageError


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to it at the end; nothing is left after an error.

    Missing folders are made.

    Raises:
        UsageError: the file cannot be written.
    """
    target = path.expanduser()
    if not target.name or target.is_dir():
        raise UsageError(f"{str(path)!r} is a folder: name a file in it")
    aside = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        aside.replace(target)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # its folder may be missing, or a file
            aside.unlink(missing_ok=True)
