"""Lists of items: filters, pages by key, and counts."""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Self
from urllib.parse import urlencode

from memagent.errors import UsageError
from memagent.records import LEVELS
from pipelines.web.review.index import REVIEWS, STATES, TIME_BITS, UNKNOWN, moment

ANSWERS_PER_PAGE = 50
_MOST_WORDS = 8
_WHICH = ("", "mine", "others")
_KEY = "(item.confidence, item.id)"
_EDGE = "(SELECT edge.confidence, edge.id FROM item AS edge WHERE edge.id = :edge)"
_ORDER = {
    ("", True): ("item.id < :edge", "item.id DESC"),
    ("", False): ("item.id > :edge", "item.id"),
    ("confidence", True): (f"{_KEY} > {_EDGE}", "item.confidence, item.id"),
    ("confidence", False): (f"{_KEY} < {_EDGE}", "item.confidence DESC, item.id DESC"),
}
"""Terms and orders of what comes after an item of a list (True) and before it (False), by the filter's order."""


def whole(value: str | None) -> int | None:
    """Return a number of a request, as far as SQLite can hold it; None: it is none."""
    number = int(value) if value and value.isdecimal() and len(value) < 20 else None
    return number if number is not None and number < 2**63 else None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which items; an empty field lets all pass."""

    corpus: str = ""
    question: str = ""
    """Its row in the index."""
    state: str = ""
    review: str = ""
    by: str = ""
    """mine: judged by the person who looks; others: judged by others, and not by this person yet."""
    new: str = ""
    """1: answered since the last digest began."""
    words: str = ""
    """Beginnings of words of the answer, of what people said is right, or of the document's name."""
    level: str = ""
    """Of confidence."""
    order: str = ""
    """confidence: the least confident answers first, those of unknown confidence last; else the newest."""

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Return the filter of a query string. Raises UsageError: a value is none that the field has."""
        found = cls(**{field.name: values.get(field.name, "").strip() for field in fields(cls)})
        choices = {"state": STATES, "review": REVIEWS, "by": _WHICH[1:], "new": ("1",), "order": ("confidence",)}
        choices["level"] = LEVELS
        for name, known in choices.items():
            if getattr(found, name) not in ("", *known):
                raise UsageError(f"{name}={getattr(found, name)!r}: one of {', '.join(known)}")
        if found.question and whole(found.question) is None:
            raise UsageError(f"question={found.question!r}: the number of a question")
        return found

    def query(self, **more: str) -> str:
        """Return it as a query string, with other values besides."""
        return urlencode({name: value for name, value in {**asdict(self), **more}.items() if value})

    @property
    def narrow(self) -> bool:
        """Whether counts need more than the tallies."""
        return bool(self.by or self.new or self.words or self.level)


@dataclass(frozen=True, slots=True)
class ListedAnswer:
    """A row of a list."""

    id: int
    corpus: str
    reading_id: str
    """Empty: a reading that failed."""
    question: str
    question_id: str
    doc_id: str
    title: str
    copies: int
    answer: str
    """What the engine said; of a failed reading the reason."""
    right: str | None
    """What people said is right, where it is something else."""
    quote: str
    verbatim: int
    """Whether the quote says the answer word for word."""
    state: str
    """Of the answer that people are shown."""
    review: str
    reviewers: int
    answered_at: datetime
    run_id: str
    content_hash: str
    confidence: float | None
    """Of what the engine said; None: not known."""
    level: str
    """low, medium or high; empty: the reader declares none."""
    warnings: str
    """What speaks against what the engine said."""
    unread: str
    """What was not read of its document."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some items in their order, and where the pages before and after it begin."""

    items: list[ListedAnswer]
    previous: int | None
    next: int | None


class Terms:
    """A filter as SQL, for one person."""

    def __init__(self, chosen: Filter, reviewer: str, connection: sqlite3.Connection) -> None:
        self.values: dict[str, object] = {"reviewer": reviewer}
        self.order = chosen.order
        terms = ["item.shown"]
        if chosen.corpus:
            row = connection.execute("SELECT id, digest FROM corpus WHERE name = ?", (chosen.corpus,)).fetchone()
            terms.append("item.corpus = :corpus")
            self.values["corpus"] = row["id"] if row else -1
        if chosen.question:
            terms.append("item.question = :question")
            self.values["question"] = int(chosen.question)
        if chosen.state:
            terms.append("item.state = :state")
            self.values["state"] = STATES.index(chosen.state)
        if chosen.review:
            # Not bound, so that the index of what was reviewed can be used. In what failed there is nothing to judge.
            review = REVIEWS.index(chosen.review)
            terms.append(f"item.review = {review}" + (" AND item.state < 2" if not review else ""))
        if chosen.by:
            mine = (
                "item.id IN (SELECT mine.id FROM judge CROSS JOIN item AS mine WHERE judge.reviewer = :reviewer "
                "AND mine.subject = judge.subject AND mine.question = judge.question)"
            )
            terms.append(mine if chosen.by == "mine" else f"item.reviewers > 0 AND NOT {mine}")
        if chosen.new:
            digests = connection.execute("SELECT id, digest FROM corpus").fetchall()
            terms.append(f"item.id >= {min((row['digest'] for row in digests), default=0) << TIME_BITS}")
            since = " OR ".join(
                f"(item.corpus = {row['id']} AND item.id >= {row['digest'] << TIME_BITS})" for row in digests
            )
            terms.append(f"({since or 'item.shown'})")
        if chosen.level:
            terms.append("item.level = :level")
            self.values["level"] = LEVELS.index(chosen.level)
        for number, word in enumerate(_words(chosen.words)):
            terms.append(
                f"(item.id IN (SELECT rowid FROM words WHERE words MATCH :word{number}) OR item.subject IN "
                f"(SELECT rowid FROM names WHERE names MATCH :word{number}))"
            )
            self.values[f"word{number}"] = word
        self.where = " AND ".join(terms)


def page(connection: sqlite3.Connection, chosen: Filter, reviewer: str, *, before: int = 0, after: int = 0) -> Page:
    """Return a page of items in the filter's order: before the item that a page began with, after the one that it ended
    with, or the first page.
    """
    items = _items(
        connection, Terms(chosen, reviewer, connection), after or before, ANSWERS_PER_PAGE + 1, on=not before
    )
    more, items = len(items) > ANSWERS_PER_PAGE, items[:ANSWERS_PER_PAGE]
    if before:
        items.reverse()
    has_previous, has_next = (more, bool(items)) if before else (bool(after and items), more)
    return Page(items, items[0].id if has_previous else None, items[-1].id if has_next else None)


def beside(
    connection: sqlite3.Connection, chosen: Filter, reviewer: str, item: int, *, on: bool
) -> ListedAnswer | None:
    """Return the item of a list that comes next (`on`) or stands before one, which need not be in it.

    Those that failed are passed over: there is nothing to judge.
    """
    terms = Terms(chosen, reviewer, connection)
    terms.where += " AND item.state < 2"
    return next(iter(_items(connection, terms, item, 1, on=on)), None)


def every(connection: sqlite3.Connection, chosen: Filter, reviewer: str) -> Iterator[ListedAnswer]:
    """Yield all items of a list, a page in memory at a time."""
    terms, last = Terms(chosen, reviewer, connection), 0
    while items := _items(connection, terms, last, 1_000, on=True):
        yield from items
        last = items[-1].id


def find(connection: sqlite3.Connection, corpus: str, reading_id: str) -> ListedAnswer | None:
    """Return the item of a reading, whether it is shown in lists or not."""
    return _one(connection, "detail.reading_id = ? AND corpus.name = ?", reading_id, corpus)


def find_failed(connection: sqlite3.Connection, item: int) -> ListedAnswer | None:
    """Return the item of a reading that failed."""
    return _one(connection, "item.id = ? AND item.state = 2", item)


def count(connection: sqlite3.Connection, chosen: Filter, reviewer: str) -> int:
    """Return how many items pass a filter."""
    if chosen.narrow:
        terms = Terms(chosen, reviewer, connection)
        query = f"SELECT COUNT(*) FROM item WHERE {terms.where}"
        return int(connection.execute(query, terms.values).fetchone()[0])
    return sum(tallies(connection, chosen).values())


def tallies(connection: sqlite3.Connection, chosen: Filter) -> dict[tuple[str, str], int]:
    """Return the numbers of items by state and review; of a filter's fields only those that `tally` has count."""
    terms = Terms(replace(chosen, by="", new="", words="", level=""), "", connection)
    where = terms.where.replace("item.shown", "n > 0").replace("item.", "")
    rows = connection.execute(
        f"SELECT state, review, SUM(n) AS n FROM tally WHERE {where} GROUP BY state, review", terms.values
    ).fetchall()
    return {(STATES[row["state"]], REVIEWS[row["review"]]): row["n"] for row in rows}


def questions(connection: sqlite3.Connection, corpus: str) -> list[tuple[int, str, str, int]]:
    """Return row, text, corpus and number of items of each question, those with most first."""
    rows = connection.execute(
        "SELECT question.id, question.text, corpus.name, SUM(n) AS n FROM tally JOIN question ON question.id = "
        "tally.question JOIN corpus ON corpus.id = tally.corpus WHERE n > 0 AND (:corpus = '' OR "
        "corpus.name = :corpus) GROUP BY question.id ORDER BY n DESC, question.text LIMIT 500",
        {"corpus": corpus},
    ).fetchall()
    return [(row["id"], row["text"], row["name"], row["n"]) for row in rows]


def names(connection: sqlite3.Connection) -> list[str]:
    """Return the corpora."""
    return [row["name"] for row in connection.execute("SELECT name FROM corpus ORDER BY name")]


_SELECT = (
    "SELECT item.id, corpus.name AS corpus, reading_id, question.text AS question, question_id, doc_id, title, copies, "
    'detail.answer, shown_answer AS "right", quote, verbatim, state, review, reviewers, answered_at, run_id, '
    "content_hash, confidence, level, warnings, COALESCE((SELECT version.warnings FROM version WHERE version.corpus = "
    "item.corpus AND version.content_hash = subject.content_hash ORDER BY present DESC, doc_id LIMIT 1), '') AS unread "
    "FROM item JOIN corpus ON corpus.id = item.corpus "
    "JOIN question ON question.id = item.question "
    "JOIN subject ON subject.id = item.subject JOIN detail ON detail.id = item.id"
)
"""Columns by the names of `ListedAnswer`."""


def _items(connection: sqlite3.Connection, terms: Terms, edge: int, most: int, *, on: bool) -> list[ListedAnswer]:
    beyond, order = _ORDER[terms.order, on]
    inside = f"{terms.where} AND {beyond}" if edge else terms.where
    # Ids alone first, from the narrow table: the rest is looked up for one page.
    chosen = f"SELECT item.id FROM item WHERE {inside} ORDER BY {order} LIMIT :most"
    rows = connection.execute(
        f"{_SELECT} WHERE item.id IN ({chosen}) ORDER BY {order}", {**terms.values, "edge": edge, "most": most}
    ).fetchall()
    return [_item(row) for row in rows]


def _one(connection: sqlite3.Connection, where: str, *values: object) -> ListedAnswer | None:
    row = connection.execute(f"{_SELECT} WHERE {where}", values).fetchone()
    return _item(row) if row else None


def _item(row: sqlite3.Row) -> ListedAnswer:
    values = {
        "state": STATES[row["state"]],
        "review": REVIEWS[row["review"]],
        "answered_at": moment(row["answered_at"]),
        "confidence": None if row["confidence"] == UNKNOWN else row["confidence"],
        "level": ("", *LEVELS)[row["level"] + 1],
    }
    return ListedAnswer(**{**dict(row), **values})


def _words(text: str) -> list[str]:
    """Return queries of the indexes of words and names: the beginning of each word of a text, as a plain term."""
    words = [word.replace('"', "") for word in text.replace("\x00", " ").split()][:_MOST_WORDS]
    return [f'"{word}"*' for word in words if any(char.isalnum() for char in word)]
