"""The review server's parts by themselves: pages by key, pieces of a text, tallies."""

import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.store.schemas import ANSWERS as ANSWERS_SCHEMA
from memagent.errors import UsageError
from memagent.records import LEVELS
from pipelines.views.passages import WINDOW, Span, find_words, in_context, passage, place_of
from pipelines.web.address import token_file
from pipelines.web.review import listing
from pipelines.web.review.app import _own
from pipelines.web.review.index import REVIEWS, STATES, AnswerIndex, add_verdicts, corpus_id, microseconds, moment
from pipelines.web.review.intake import ANSWERS, take_answers, take_documents
from pipelines.web.review.listing import Filter

START = datetime(2026, 8, 1, tzinfo=UTC)


def answers(rows):
    filled = [
        dict(reading_id=f"r{i}", question_id=f"q{q}", question=f"Question {q}?", scope="document", run_id="run")
        | dict(
            content_hash=f"h{doc}", answer=text, found=bool(text), evidence=[], answered_at=START + timedelta(hours=at)
        )
        | dict(confidence=confidence(i), confidence_level=level(i), warnings=["one", "two"] if i % 3 else None)
        for i, (doc, q, text, at) in enumerate(rows)
    ]
    return pa.Table.from_pylist(filled, pa.schema([ANSWERS_SCHEMA.field(name) for name in ANSWERS]))


def confidence(i):
    """Some share values, some have none."""
    return None if i % 5 == 4 else (i * 7 % 11) / 10 if i * 7 % 11 < 10 else 1.0


def level(i):
    return (*LEVELS, None)[i % 4]


def documents(names):
    rows = [
        dict(content_hash=f"h{n}", doc_id=f"d{n}", title="", source="", media_type="", warnings=["one", "two"])
        | dict(state="present", seen_at=START)
        for n in names
    ]
    return pa.Table.from_pylist(rows)


def feedback(reading, verdict, who, at):
    given_at = START + timedelta(days=1, seconds=at)
    right = "x" if at % 2 else ""
    row = dict(
        corpus="c", reading_id=reading, verdict=verdict, answer=right, given_at=given_at, reviewer=who, comment=""
    )
    return row | {"spans": [], "decides": False}


ROWS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.sampled_from(["", "a", "b c"]), st.integers(0, 3)), max_size=60
)
SAID = st.lists(
    st.tuples(
        st.integers(0, 59), st.sampled_from(["accepted", "corrected", "rejected"]), st.sampled_from(["ann", "bo"])
    ),
    max_size=12,
)
FILTERS = st.builds(
    Filter,
    review=st.sampled_from(["", *REVIEWS]),
    state=st.sampled_from(["", *STATES]),
    by=st.sampled_from(["", "mine", "others"]),
    words=st.sampled_from(["", "a", "c b", "d1"]),
    level=st.sampled_from(["", *LEVELS]),
    order=st.sampled_from(["", "confidence"]),
)


@settings(max_examples=25, deadline=None)
@given(ROWS, SAID, FILTERS, st.integers(1, 7), st.integers(1, 30))
def test_pages_by_key_are_the_list_and_tallies_its_counts(rows, said, chosen, size, batch):
    with tempfile.TemporaryDirectory() as folder:
        index = AnswerIndex(Path(folder) / "index.sqlite")
        with index.write() as connection:
            corpus = corpus_id(connection, "c")
            take_documents(connection, corpus, documents(range(8)))  # two texts belong to no document
            table = answers(rows)
            for first in range(0, max(1, len(rows)), batch):
                if len(rows):
                    take_answers(connection, corpus, table.slice(first, batch), "a.parquet")
            if len(rows):
                take_answers(connection, corpus, table, "b.parquet")  # once more, as after a compaction
            add_verdicts(connection, [feedback(f"r{i}", kind, who, at) for at, (i, kind, who) in enumerate(said)])
        connection = index.read()
        newest = {}
        for i, (doc, q, _, at) in enumerate(rows):
            if doc < 8 and at >= newest.get((doc, q), (-1, 0))[0]:
                newest[doc, q] = (at, i)
        everything = list(listing.every(connection, Filter(), "ann"))
        assert {item.reading_id for item in everything} == {f"r{i}" for _, i in newest.values()}
        assert [item.answered_at for item in everything] == sorted((i.answered_at for i in everything), reverse=True)
        shown = [(item.state, item.answer if item.right is None else item.right) for item in everything]
        assert all(state == ("found" if text else "not found") for state, text in shown)
        listed = list(listing.every(connection, chosen, "ann"))
        assert all(each.confidence == confidence(int(each.reading_id[1:])) for each in listed)
        numbers = [int(item.reading_id[1:]) for item in listed]
        assert [(item.level, item.warnings) for item in listed] == [
            (level(i) or "", "one; two" if i % 3 else "") for i in numbers
        ]
        if chosen.level:
            wanted = {f"r{i}" for _, i in newest.values() if level(i) == chosen.level}
            assert {item.reading_id for item in listed} <= wanted
            narrowest = Filter(level=chosen.level)
            assert listing.count(connection, narrowest, "ann") == len(wanted)
        if chosen.order:
            keys = [(2 if item.confidence is None else item.confidence, item.id) for item in listed]
            assert keys == sorted(keys)
        whole = [item.id for item in listed]
        steps = whole[:1]
        while following := steps and listing.beside(connection, chosen, "ann", steps[-1], on=True):
            steps.append(following.id)
        assert steps == whole and (len(whole) < 2 or whole[0] == before_it(connection, chosen, whole[1]))
        assert listing.count(connection, chosen, "ann") == len(whole)
        before, page_size = listing.ANSWERS_PER_PAGE, size
        listing.ANSWERS_PER_PAGE = page_size
        try:
            down, edge = [], 0
            while True:
                page = listing.page(connection, chosen, "ann", after=edge)
                down += [item.id for item in page.items]
                if page.next is None:
                    break
                edge = page.next
            assert down == whole
            up = [item.id for item in page.items]
            while page.previous is not None:
                page = listing.page(connection, chosen, "ann", before=page.previous)
                up = [item.id for item in page.items] + up
            assert up == whole
        finally:
            listing.ANSWERS_PER_PAGE = before
        tallied = {}
        for item in everything:
            tallied[item.state, item.review] = tallied.get((item.state, item.review), 0) + 1
        assert listing.tallies(connection, Filter()) == tallied
        for thread_connection in (connection,):
            thread_connection.close()


def before_it(connection, chosen, item):
    found = listing.beside(connection, chosen, "ann", item, on=False)
    return found and found.id


TEXT = st.text(st.sampled_from("ab \n\r\x00\u202e\U0001f600"), max_size=80)
SPANS = st.lists(
    st.tuples(st.integers(0, 80), st.integers(0, 80), st.sampled_from(["evidence", "segment", "right"])), max_size=5
)


@given(TEXT, SPANS)
def test_pieces_are_the_text_character_by_character(text, spans):
    marks = [Span(low, high, mark) for low, high, mark in spans if low < high <= len(text)]
    shown = passage(text, marks)
    assert "".join(piece.text for piece in shown.pieces).replace("\ufffd", "?") == "".join(
        {"\x00": "?", "\u202e": "?", "\r": " "}.get(char, char) for char in text
    )
    for piece in shown.pieces:
        end = piece.start + len(piece.text)
        wanted = {span.mark for span in marks if span.start <= piece.start and span.end >= end}
        assert set(piece.marks) == wanted


def test_a_long_document_is_shown_around_its_evidence():
    text = "".join(f"{i:09d}\n" for i in range(10_000))
    shown = passage(text, [Span(50_000, 50_010, "evidence")])
    assert shown.start < 50_000 < shown.end <= shown.start + WINDOW and shown.later == shown.end
    again = passage(text, [], at=shown.earlier)
    assert again.end >= shown.start or again.start == 0
    assert passage(text, [], at=10**9).end == len(text)
    assert find_words(text, "000000002  000000003") == (20, 39) and find_words(text, "nope") is None
    assert find_words("Aa aa", "aa", 1) == (3, 5) and find_words("Aa aa", "aa", 4) == (0, 2)


def test_a_list_knows_which_quotes_say_the_answer_word_for_word():
    piece = dict(content_hash="h", segment_index=0, char_start=2, char_end=9, quote="b", quote_start=3, quote_end=4)
    table = answers([(0, 0, "a", 0), (1, 0, "a", 0), (2, 0, "a", 0)]).to_pylist()
    for row, verbatim in zip(table, (True, False, None), strict=True):
        row["evidence"] = [] if verbatim is None else [piece | {"verbatim": verbatim}]
    with tempfile.TemporaryDirectory() as folder:
        index = AnswerIndex(Path(folder) / "index.sqlite")
        with index.write() as connection:
            corpus = corpus_id(connection, "c")
            take_documents(connection, corpus, documents(range(3)))
            take_answers(connection, corpus, pa.Table.from_pylist(table, answers([]).schema), "a.parquet")
        listed = {item.reading_id: item for item in listing.every(index.read(), Filter(), "ann")}
    assert [(listed[f"r{i}"].quote, bool(listed[f"r{i}"].verbatim)) for i in range(3)] == [
        ("b", True),
        ("b", False),
        ("", True),
    ]


def test_evidence_stands_where_its_quote_does_or_where_its_segment_does():
    piece = dict(content_hash="h", segment_index=0, char_start=2, char_end=9, quote="b", quote_start=3, quote_end=4)
    unquoted = piece | dict(quote="", quote_start=-1, quote_end=-1)
    assert place_of(piece) == Span(3, 4, "evidence")
    assert place_of(unquoted) == place_of(unquoted | {"quote_start": None}) == Span(2, 9, "segment")
    assert in_context("0123456789", Span(3, 5), 4) == ("012", "34", "5678")


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
def test_times_are_kept_to_the_microsecond(value):
    assert moment(microseconds(value.replace(tzinfo=UTC))) == value.replace(tzinfo=UTC)


def test_a_filter_says_what_is_possible():
    assert Filter.parse({"state": "found", "words": " x ", "other": "1"}) == Filter(state="found", words="x")
    with pytest.raises(UsageError, match="one of open, accepted"):
        Filter.parse({"review": "nope"})
    with pytest.raises(UsageError, match="one of low, medium, high"):
        Filter.parse({"level": "0.5"})
    assert Filter.parse({"level": "low", "order": "confidence"}).query() == "level=low&order=confidence"
    with pytest.raises(UsageError, match="number of a question"):
        Filter.parse({"question": "1 OR 1"})
    assert Filter(state="not found").query(before="3") == "state=not+found&before=3"


@pytest.mark.parametrize("back", ["//evil.example", "/\\evil", "https://evil.example", "javascript:x", "/a\nb", ""])
def test_nobody_is_sent_away_after_logging_in(back):
    assert _own(back) == ""
    assert _own("/answers/c/r?words=a") == "/answers/c/r?words=a"


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a b", "a/b", "x" * 65])
def test_a_reviewer_is_a_plain_word(name):
    with pytest.raises(UsageError, match="reviewer"):
        token_file("review", name)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_of_two_answers_to_a_reading_counts_whichever_file_comes_first(tmp_path, order):
    index = AnswerIndex(tmp_path / "index.sqlite")
    earlier, later = answers([(0, 0, "first", 1)]), answers([(0, 0, "second", 2)])
    files = [(earlier, "earlier.parquet"), (later, "later.parquet")]
    with index.write() as connection:
        corpus = corpus_id(connection, "c")
        take_documents(connection, corpus, documents(range(1)))
        for number in order:
            take_answers(connection, corpus, *files[number])
    (row,) = index.read().execute("SELECT answer, part, shown FROM detail JOIN item USING (id)").fetchall()
    assert (row["answer"], row["part"], row["shown"]) == ("first", "earlier.parquet", 1)


def test_words_that_a_text_repeats_are_looked_for_in_good_time():
    began = time.process_time()
    assert find_words("a " * 200_000, "a " * 2_000 + "q") == (0, 199)
    assert time.process_time() - began < 10
