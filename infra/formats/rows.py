"""Rows as documents: what csv, json lines and parquet have in common."""

from collections.abc import Mapping
from typing import Any

from infra.formats.allowance import Allowance
from infra.formats.base import Parsed, Refused
from infra.formats.decoding import blank, clean
from infra.naming import quoted
from memagent.config import IngestConfig
from memagent.errors import SourceError

_LOOK_AHEAD = 100
_ID_CHARS = 1000


class RowReader:
    """Turns the rows of one table into documents."""

    def __init__(self, options: IngestConfig, media_type: str, encoding: str = "utf-8") -> None:
        self._options = options
        self._media_type = media_type
        self._encoding = encoding
        self._seen: set[str] = set()
        self._allowance = Allowance(options)

    def read(self, number: int, values: Mapping[str, Any]) -> Parsed | Refused:
        """Return row `number` (from 1) as a document, or why it is none.

        Raises:
            SourceError: ``too-large`` when the texts together pass ``ingest.max_bytes``.
        """
        options = self._options
        if options.text_column not in values:
            return self.refused(number, "no-column", f"it has no {options.text_column!r}; see ingest.text_column")
        text = values[options.text_column]
        if text is not None and not isinstance(text, str):
            kind = type(text).__name__
            return self.refused(number, "wrong-type", f"{options.text_column!r} is {kind}, and not text")
        if text is None or blank(text):
            return self.refused(number, "empty", f"{options.text_column!r} is empty")
        row = str(number)
        if options.id_column is not None:
            value = values.get(options.id_column)
            if value is None or value == "" or isinstance(value, (list, dict)):
                return self.refused(number, "missing-id", f"it has no id in {options.id_column!r}")
            if len(str(value)) > _ID_CHARS:
                return self.refused(number, "long-id", f"its id has more than {_ID_CHARS} characters")
            row = quoted(str(value), safe="#")
            if row in self._seen:
                return self.refused(number, "duplicate-id", f"an earlier row has the id {row[:100]!r}")
            self._seen.add(row)
        self._allowance.take(len(text))
        title = values.get(options.title_column) if options.title_column else None
        title = clean(title) if isinstance(title, str) else ""
        return Parsed(clean(text), title, self._media_type, self._encoding, row)

    def refused(self, number: int, reason: str, detail: str) -> Refused:
        """Return why row `number` is no document."""
        return Refused(str(number), reason, detail)


class ColumnWatch:
    """Tells a table without a text column from one with a few bad rows."""

    def __init__(self) -> None:
        self._held: list[Refused] | None = []

    def take(self, record: Parsed | Refused) -> list[Parsed | Refused]:
        """Return what can be handed on now; rows without the column are held back at the start.

        Raises:
            SourceError: ``no-column`` when the first rows all lack it.
        """
        if self._held is None:
            return [record]
        if isinstance(record, Refused):
            self._held.append(record)
            if record.reason == "no-column" and len(self._held) >= _LOOK_AHEAD:
                self.end()
            return []
        held, self._held = self._held, None
        return [*held, record]

    def end(self) -> list[Refused]:
        """Return what is still held back when the table ends.

        Raises:
            SourceError: ``no-column`` when there were rows and all lacked it.
        """
        held, self._held = self._held, None
        if held and all(record.reason == "no-column" for record in held):
            raise SourceError("no-column", f"no row has the text column; the first one: {held[0].detail}")
        return held or []
