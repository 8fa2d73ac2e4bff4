"""The endpoint's rule of what is the document and what the question, and its errors."""

import asyncio
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from memagent.errors import EmptyResponse, EngineDied, MemagentError, UsageError
from pipelines.web.api import app as web_api
from pipelines.web.api.app import _stopped
from pipelines.web.api.protocol import (
    About,
    ApiError,
    ChatRequest,
    FoundAnswer,
    api_error,
    question_of,
    text_and_question,
)
from pipelines.web.api.reader import CorpusReading, TextReading

SYSTEM = ("system", "You are helpful.")
Q = "Who signed it?"


def chat(*messages, **fields):
    said = [{"role": role, "content": text} for role, text in messages]
    return ChatRequest.model_validate({"model": "memagent", "messages": said, **fields})


@pytest.mark.parametrize(
    ("messages", "fields", "text", "not_read"),
    [
        ([("user", Q)], {"document": "A text."}, "A text.", 0),
        ([SYSTEM, ("user", "Hello"), ("assistant", "Hi"), ("user", Q)], {"document": "A text."}, "A text.", 3),
        ([("user", f"<document>\nA text.\n</document>\n{Q}")], {}, "\nA text.\n", 0),
        ([("user", f"{Q}<document>One.</document>")], {}, "One.", 0),
        ([("user", "<document>A </document> B</document>"), ("user", Q)], {}, "A </document> B", 0),
        (
            [
                ("user", "<document>One.</document>Who?"),
                ("assistant", "Ann."),
                ("user", f"<document>Two.</document>{Q}"),
            ],
            {},
            "One.\n\nTwo.",
            1,
        ),
        ([("user", "<document>One.</document>"), ("user", "Thanks."), ("user", Q)], {}, "One.", 1),
        ([SYSTEM, ("user", "One."), ("assistant", "Noted."), ("user", "Two."), ("user", Q)], {}, "One.\n\nTwo.", 2),
        ([("user", f"One.\n\nTwo.\n \n{Q}\n")], {"split": "last-paragraph"}, "One.\n\nTwo.", 0),
        ([("user", "Zero."), ("user", f"One.\nTwo.\n{Q}")], {"split": "last-line"}, "Zero.\n\nOne.\nTwo.", 0),
    ],
)
def test_what_is_the_document_and_what_the_question(messages, fields, text, not_read):
    found = text_and_question(chat(*messages, **fields))
    assert (found.text, found.question, found.not_read) == (text, Q, not_read)


@given(st.text(), st.text())
def test_a_marked_document_is_taken_as_it_is(document, around):
    wrapped = f"{around.replace('<', '')}<document>x{document}x</document>{Q}"
    found = text_and_question(chat(("user", wrapped)))
    assert found.text == f"x{document}x" and found.question.endswith(Q)
    assert found == text_and_question(chat(("user", wrapped), split="last-line")), "marks come before a split"


def test_the_server_says_how_to_split_where_a_request_does_not():
    request = chat(("user", f"A text.\n{Q}"))
    assert text_and_question(request, "last-line").question == Q
    assert (
        text_and_question(chat(("user", f"A\n\ntext.\n{Q}"), split="last-line"), "last-paragraph").text == "A\n\ntext."
    )


@pytest.mark.parametrize(
    ("messages", "fields", "code"),
    [
        ([("user", "a long message " * 1000 + Q)], {}, "no_document"),
        ([SYSTEM, ("user", Q)], {}, "no_document"),
        ([("user", Q)], {"document": " "}, "no_document"),
        ([("user", Q)], {"split": "last-line"}, "no_document"),
        ([("user", "<document>A text.</document>")], {}, "no_question"),
        ([("user", "A text."), ("user", " ")], {}, "no_question"),
        ([("user", "A text."), ("assistant", Q)], {}, "no_question"),
        ([("tool", "A text."), ("user", Q)], {}, "invalid_value"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(messages, fields, code):
    with pytest.raises(ApiError) as refused:
        text_and_question(chat(*messages, **fields))
    assert refused.value.status == 400 and refused.value.code == code


def test_a_corpus_has_its_own_documents():
    assert question_of(chat(SYSTEM, ("user", "Hello"), ("user", f" {Q} "))) == Q
    with pytest.raises(ApiError, match="leave `document` out"):
        question_of(chat(("user", Q), document="A text."))


def test_parts_of_text_are_joined_and_others_refused():
    content = [{"type": "text", "text": "One."}, {"type": "text", "text": Q}]
    request = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert request.messages[0].text == f"One.\n\n{Q}"
    content.append({"type": "image_url", "image_url": {"url": "data:"}})
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": content}]})
    error = api_error(refused.value)
    assert error.status == 400 and "image_url" in error.message and error.param is not None


@pytest.mark.parametrize(("limit", "lost", "status"), [(1, False, 400), (1, True, 503), (64, False, 503)])
async def test_an_answer_without_room_is_the_fault_of_who_limits_it(limit, lost, status):
    async def run(request, spec, record):
        record(SimpleNamespace(kind="update", finish_reason="empty" if lost else "stop"))
        record(SimpleNamespace(kind="answer", finish_reason="empty"))
        raise EmptyResponse("the response is empty: the reasoning used up the room")

    spec = SimpleNamespace(config=SimpleNamespace(answer_tokens=limit))
    with pytest.raises(MemagentError) as failed:
        [_ async for _ in TextReading(SimpleNamespace(), spec, run, About(), 64).answers()]
    error = api_error(failed.value)
    assert error.status == status and ("max_tokens leaves no room" in error.message) == (status == 400)


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"logprobs": True},
        {"tools": [{}]},
        {"functions": [{}]},
        {"response_format": {"type": "json_object"}},
        {"temperature": -1},
        {"top_p": 0},
        {"max_tokens": 0},
        {"max_tokens": 10**19},
        {"seed": 10**19},
        {"temperature": float("inf")},
        {"messages": []},
    ],
)
def test_what_a_reading_cannot_do_is_refused_by_name(field):
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": Q}], **field})
    error = api_error(refused.value)
    assert error.status == 400 and next(iter(field)) in error.message


def test_what_means_nothing_to_a_reading_is_passed_over():
    unset = {"n": None, "tools": None, "stop": None, "response_format": {"type": "text"}, "user": "u", "stream": None}
    assert chat(("user", Q), **unset).stops == ()
    assert chat(("user", Q), stop="\n").stops == ("\n",) and chat(("user", Q), stop=["", "a"]).stops == ("a",)


def test_an_answer_ends_before_the_first_stop():
    assert _stopped("1002\n\nQ: and", ("Q:", "\n\n")) == ("1002", True)
    assert _stopped("1002", ("x",)) == ("1002", False)


def test_errors_have_openais_form():
    body = ApiError(401, "no", "invalid_api_key").body()["error"]
    assert body == {"message": "no", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
    assert api_error(UsageError("the question is empty")).status == 400
    assert api_error(EngineDied("gone")).status == 503
    unknown = api_error(ValueError("a secret"))
    assert unknown.status == 500 and "secret" not in unknown.message, "what nobody expected is in the log alone"
    waits = ApiError(429, "later", retry_after=5).response()
    assert waits.status_code == 429 and waits.headers["retry-after"] == "5"


def test_marks_without_an_end_cost_no_more_than_other_text():
    began = time.process_time()
    found = text_and_question(chat(("user", "<document>" * 200_000), ("user", "Who?")))
    assert found.question == "Who?" and time.process_time() - began < 5


async def test_an_upload_that_stalls_gives_its_place_back(monkeypatch):
    monkeypatch.setattr(web_api, "_STALLED_SECONDS", 0.05)

    class Uploading:
        headers: ClassVar[dict[str, str]] = {"content-length": "20"}

        def __init__(self, *pauses):
            self.pauses = pauses

        async def stream(self):
            for pause in self.pauses:
                await asyncio.sleep(pause)
                yield b'{"a": 1}' if pause == self.pauses[-1] else b" "

    assert await web_api._body_of(Uploading(0.03, 0.03, 0.031), 100) == {"a": 1}, "slow, and never silent for long"
    with pytest.raises(ApiError, match=r"nothing of the request has come for 0\.05 seconds") as refused:
        await web_api._body_of(Uploading(0.01, 1.0), 100)
    assert refused.value.status == 408


def test_warnings_and_doubted_reviews_follow_an_answer_in_the_text():
    found = FoundAnswer(document="a.txt", answer="Nevada", found=True, evidence=[], reading_id="r")
    doubted = found.model_copy(update={"warnings": ["2 pages not read"], "review": "rejected"})
    alone = TextReading(SimpleNamespace(), SimpleNamespace(), print, About(), 64)
    assert alone.line(found) == "Nevada" and alone.line(doubted) == "Nevada [2 pages not read]"
    missing = {"answer": "not found", "found": False}
    assert alone.line(doubted.model_copy(update=missing)) == "not found", "as programs compare it"
    outside = TextReading(SimpleNamespace(), SimpleNamespace(), print, About(warnings=["outside"]), 64)
    assert outside.line(doubted.model_copy(update=missing)) == "not found [outside]"
    for archive, before in ((False, "a.txt: "), (True, "")):
        lines = CorpusReading(SimpleNamespace(), SimpleNamespace(archive=archive), print, "p")
        assert lines.line(found) == f"{before}Nevada"
        assert lines.line(doubted) == f"{before}Nevada [rejected; 2 pages not read]"
