"""What replies and errors of different providers mean."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import RequestError, RetryableError
from memagent.reading.engine import Sampling
from memagent.reading.providers import FIELDS, TAGS, FailedCall, Reply, ServerTraits, parse, without_reasoning
from tests.support.model_server import chat, refusal

MARKS = st.sampled_from([*TAGS, *TAGS.values(), "a note", " ", "\n"])
PLAIN = st.text().filter(lambda text: not any(mark in text for mark in (*TAGS, *TAGS.values())))


@given(st.sampled_from(list(TAGS.items())), PLAIN, PLAIN)
def test_nothing_of_reasoning_is_left_and_nothing_else_is_lost(tags, thought, answer):
    opening, closing = tags
    assert without_reasoning(opening + thought + closing + answer) == answer
    assert without_reasoning(thought + closing + answer) == answer, "the prompt held the opening tag"
    assert without_reasoning(opening + thought) == "", "cut while it reasoned"
    assert without_reasoning(answer) == answer


@given(st.lists(MARKS, max_size=8).map("".join), PLAIN)
def test_a_template_has_a_tag_besides(text, answer):
    assert without_reasoning(f"{text}<<done>>{answer}", "<<done>>") == answer
    assert not any(closing in without_reasoning(text) for closing in TAGS.values())


def test_a_tag_that_a_note_speaks_of_is_no_reasoning():
    assert without_reasoning("The tag is called <think> there.") == "The tag is called <think> there."
    assert without_reasoning("Well.\n  <think>\nperhaps") == "Well.\n"


def reply(said, status=200, **headers):
    return parse(status, headers, said.body)


@pytest.mark.parametrize("name", FIELDS)
def test_reasoning_in_a_field_is_no_text(name):
    found = reply(chat("a note", **{name: "perhaps"}))
    assert isinstance(found, Reply) and (found.text, found.reasoning) == ("a note", name)


def test_a_content_in_parts_is_their_text():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "perhaps"}]},
        {"type": "text", "text": "a "},
        {"type": "output_text", "text": "note"},
    ]
    found = reply(chat(parts))
    assert (found.text, found.reasoning) == ("a note", "parts of the content")


@pytest.mark.parametrize(
    "usage", [None, {"prompt_tokens": None, "completion_tokens": None}, "many", {"prompt_tokens": {}}]
)
def test_usage_without_counts_is_no_usage(usage):
    found = reply(chat("a note", usage=usage))
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (None, None, 0)


@pytest.mark.parametrize(
    ("given", "finish"),
    [
        (None, "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "content_filter"),
    ],
)
def test_finish_reasons_have_one_word_each(given, finish):
    assert reply(chat("a note", given)).finish_reason == finish


@pytest.mark.parametrize(
    ("said", "status", "kind", "words"),
    [
        ({"error": {"message": "gone", "code": 502}}, 200, RetryableError, "502: gone"),
        ({"error": {"message": "no such key", "code": "invalid_api_key"}}, 200, RequestError, "no such key"),
        ({"error": "still loading"}, 200, RetryableError, "still loading"),
        ({"choices": []}, 200, RetryableError, "no choices"),
        ({"choices": None, "error": None}, 200, RetryableError, "no choices"),
        ({"choices": [{"error": {"message": "upstream", "code": 429}}]}, 200, RetryableError, "upstream"),
        ({}, 200, RetryableError, "no choices"),
        ([], 200, RetryableError, "nothing"),
        ("<html>Bad gateway</html>", 200, RetryableError, "Bad gateway"),
        ("<html>Bad gateway</html>", 502, RetryableError, "HTTP 502"),
        ({"detail": [{"loc": ["body", "seed"], "type": "extra_forbidden"}]}, 422, RequestError, "seed"),
        ({"error": {"message": "pay", "code": "insufficient_quota"}}, 429, RequestError, "pay"),
        ({"error": {"message": "slowly", "code": "rate_limit_exceeded"}}, 429, RetryableError, "slowly"),
        (
            {"error": {"message": "no", "code": 400, "metadata": {"raw": "what it means"}}},
            400,
            RequestError,
            "it means",
        ),
    ],
)
def test_an_error_is_what_it_states_and_is_sent_again_where_that_helps(said, status, kind, words):
    found = parse(status, {}, said)
    assert isinstance(found, FailedCall)
    assert type(found.error("")) is kind and words in found.message


def test_a_server_says_when_to_ask_again():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90))
    assert reply(refusal("slowly", 429), 429, **{"Retry-After": "1.5"}).error("").after == 1.5
    assert 80 < reply(refusal("slowly", 429), 429, **{"retry-after": later}).error("").after <= 90
    assert reply(refusal("slowly", 429), 429, **{"retry-after": "soon"}).error("").after == 0


def test_refused_parameters_are_renamed_or_left_out_and_values_that_matter_are_not():
    traits, sampling = ServerTraits(), Sampling(9, temperature=1.0, seed=3)
    asked = [traits.parameters(sampling)]
    for message in (
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        "extra_forbidden: seed",
        "temperature and top_p cannot both be specified",
        "temperature is deprecated",
    ):
        assert traits.adapt(reply(refusal(message), 400), asked[-1])
        asked.append(traits.parameters(sampling))
    assert asked[0] == {"max_tokens": 9, "seed": 3, "top_p": 1.0, "temperature": 1.0}
    assert asked[-1] == {"max_completion_tokens": 9}
    assert traits.adapt(reply(refusal("max_tokens is not supported"), 400), asked[0]), "one that was under way"
    assert not traits.adapt(reply(refusal("max_completion_tokens is not supported"), 400), asked[-1])
    assert not traits.adapt(reply(refusal("max_tokens is too large: 9"), 400), asked[0])
    with pytest.raises(RequestError, match=r"only the default\. Set reading.temperature=1"):
        refused = reply(refusal("takes only the default", param="temperature", code="unsupported_value"), 400)
        ServerTraits().adapt(refused, ServerTraits().parameters(Sampling(9)))


def test_a_reply_that_was_cut_before_its_text_had_all_the_room_says_nothing():
    sampling = Sampling(100)

    def said(reply, traits=None):
        return (traits or ServerTraits()).said(reply, sampling)

    assert said(Reply("a note", "length")) == "a note", "cut at the limit of the memory"
    assert said(Reply("a note", "length", output_tokens=100)) == "a note"
    assert said(Reply("a note", "length", output_tokens=12)) == "", "the server's own limit"
    assert said(Reply("a note", "length", reasoning="reasoning", output_tokens=100)) == ""
    assert said(Reply("<think>so</think>a note", "length")) == ""
    assert said(Reply("a part", "content_filter")) == ""
    assert said(Reply("<think>so</think>\na note", "stop")) == "a note"


def test_a_server_whose_template_opens_the_reasoning_is_remembered():
    traits, sampling = ServerTraits(), Sampling(100)
    assert traits.said(Reply("so</think>a note", "stop"), sampling) == "a note"
    assert traits.said(Reply("and so on and", "length"), sampling) == "", "cut before the closing tag"
    assert traits.said(Reply("a note", "stop"), sampling) == "a note"
