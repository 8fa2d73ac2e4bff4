"""The report of a run: one HTML file that needs no network.

`data` gathers what the tables say about a run, `readings` how a memory came about, `excerpts` which
passages of the documents stand beside it, `details` how much of both the file can hold, `header` and
`listing` what is seen first; `render` makes the file. The rest is the page itself.
"""

from pathlib import Path

from infra.store import Store
from pipelines.report.page import LIMIT_BYTES, page

__all__ = ["LIMIT_BYTES", "build", "write", "write_to_store"]


def build(store: Store, run_id: str, limit: int = LIMIT_BYTES) -> str:
    """Return the report of a finished run as HTML of about `limit` bytes at most.

    Raises:
        UsageError: the store does not know the run.
    """
    return page(store, run_id, limit)


def write(store: Store, run_id: str, path: str | Path, limit: int = LIMIT_BYTES) -> Path:
    """Write the report of a finished run to `path`, whole or not at all; return the path.

    Raises:
        UsageError: the store does not know the run.
        OSError: the file cannot be written.
    """
    target = Path(path).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.tmp")
    aside.write_text(build(store, run_id, limit), encoding="utf-8")
    aside.replace(target)
    return target


def write_to_store(store: Store, run_id: str) -> str:
    """Write the report beside the run's other files; return its path or URL."""
    path = store.write_bytes(build(store, run_id).encode("utf-8"), "runs", run_id, "report.html")
    return f"s3://{path}" if store.is_s3 else path
