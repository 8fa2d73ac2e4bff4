"""The report of a run: one HTML file that needs no network.

`data` loads a run from the tables, `timeline` the changes of a reading's memory, `details` selects memories and
passages of documents up to the size limit, `overview` has the headline figures and the list of readings, and `page`
renders the file. Reports of evaluations and trainings are in `evaluation` and `training`.
"""

from pathlib import Path
from urllib.parse import urlsplit

from infra.store.claims import used
from infra.store.location import Corpus, Store
from memagent.errors import UsageError
from pipelines.report.html import write_sheet
from pipelines.report.page import LIMIT_BYTES, page
from pipelines.run_names import new_run_id

__all__ = ["LIMIT_BYTES", "build", "write", "write_to_store"]


def build(store: Store, run_id: str, limit: int = LIMIT_BYTES, review_url: str = "") -> str:
    """Return the report of a finished run as HTML of about `limit` bytes at most.

    Raises:
        UsageError: the store does not know the run.
    """
    return page(store, run_id, limit, _address(review_url))


def write(store: Store, run_id: str, path: str | Path, limit: int = LIMIT_BYTES, review_url: str = "") -> Path:
    """Write the report of a finished run to `path` atomically; return the path.

    Its readings link to the review server at the address `review_url`, if there is one.

    Raises:
        UsageError: the store does not know the run, or the file cannot be written.
    """
    return write_sheet(Path(path), build(store, run_id, limit, review_url))


def write_to_store(store: Store, run_id: str) -> str:
    """Write the report beside the run's other files; return its path or URL."""
    with used(Corpus(store, "_reports"), new_run_id(), wait=True, show=None):
        path = store.write_bytes(build(store, run_id).encode("utf-8"), "runs", run_id, "report.html")
    return f"s3://{path}" if store.is_s3 else path


def _address(review_url: str) -> str:
    parts = urlsplit(review_url)
    if review_url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise UsageError(
            f"--review-url {review_url!r}: give the address of a review server, as in http://127.0.0.1:4300"
        )
    return review_url.rstrip("/")
