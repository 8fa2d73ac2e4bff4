"""What of a chat is the document and what the question. The rule is explicit, and nothing is guessed from lengths.

1. `document` of the request is the document, and the last user message the question.
2. Else what stands between ``<document>`` and ``</document>`` in user messages is the document, and the question is the
   last user message without it.
3. Else, with `split`, the last paragraph or line of the last user message is the question; what is before it, with the
   user messages before, is the document.
4. Else the user messages before the last one are the document, and the last one is the question.

Without a document of these it is an error. System messages and the assistant's are never read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.web.api.errors import ApiError
from pipelines.web.api.protocol import ChatRequest, Split

_MARKED = re.compile(r"<document>(.*)</document>", re.DOTALL)
"""From the first mark to the last one: a document may hold marks itself."""
_ENDS = {"last-paragraph": re.compile(r"\n[ \t\r]*\n"), "last-line": re.compile(r"\n")}
_READ = {"user", "system", "developer", "assistant"}
_HOW = (
    "give the text as `document` (in extra_body of OpenAI's client), between <document> and </document>, or as a user "
    "message before the question; or say with `split` that the last message ends with the question"
)


@dataclass(frozen=True, slots=True)
class TextAndQuestion:
    """What a request wants read."""

    text: str
    question: str
    not_read: int = 0
    """Messages of which nothing is read."""


def question_of(request: ChatRequest) -> str:
    """Return what is asked of a corpus: the last user message.

    Raises:
        ApiError: there is none, or the request brings a document of its own.
    """
    if request.document is not None:
        message = "a corpus has its documents: leave `document` out, or ask the model memagent"
        raise ApiError(400, message, "invalid_value", "document")
    return _stripped(_user_texts(request)[-1])


def text_and_question(request: ChatRequest, split: Split | None = None) -> TextAndQuestion:
    """Return what of a chat is the document and what the question; see the rule above.

    Args:
        request: the chat.
        split: how the last message is split where the request does not say.

    Raises:
        ApiError: there is no document or no question.
    """
    texts, split = _user_texts(request), request.split or split
    others = len(request.messages) - len(texts)
    if request.document is not None:
        return _made(request.document, texts[-1], others + len(texts) - 1)
    marked = [match for text in texts if (match := _MARKED.search(text))]
    if marked:
        question = _MARKED.sub("", texts[-1])
        unmarked = sum(not _MARKED.search(text) for text in texts[:-1])
        return _made(_joined([match[1] for match in marked]), question, others + unmarked)
    if split is not None:
        before, question = _split(texts[-1], split)
        return _made(_joined([*texts[:-1], before]), question, others)
    return _made(_joined(texts[:-1]), texts[-1], others)


def _user_texts(request: ChatRequest) -> list[str]:
    """Return the texts of the user's messages, the question's among them as the last."""
    for index, message in enumerate(request.messages):
        if message.role not in _READ:
            where = f"messages.{index}.role"
            raise ApiError(400, f"{where}: a message of role {message.role!r} cannot be read", "invalid_value", where)
    if request.messages[-1].role != "user":
        raise ApiError(400, "the last message is not the user's, so nothing is asked", "no_question", "messages")
    return [message.text for message in request.messages if message.role == "user"]


def _made(text: str, question: str, not_read: int) -> TextAndQuestion:
    if not text.strip():
        raise ApiError(400, f"there is no document to read: {_HOW}", "no_document", "messages")
    return TextAndQuestion(text, _stripped(question), not_read)


def _stripped(question: str) -> str:
    if not question.strip():
        raise ApiError(400, "the question is empty: it is the last user message", "no_question", "messages")
    return question.strip()


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())


def _split(text: str, split: Split) -> tuple[str, str]:
    stripped = text.rstrip()
    ends = [match.span() for match in _ENDS[split].finditer(stripped)]
    start, end = ends[-1] if ends else (0, 0)
    return stripped[:start], stripped[end:]
