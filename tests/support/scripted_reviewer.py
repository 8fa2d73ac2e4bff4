"""A reviewer who works through the review pages in a browser by keys alone, as a person would."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Page

ACCEPT = True
"""The answer is right."""
_MARKED_WORDS = 3
"""A right answer of so many words is selected in the document; a longer one is written."""
_NOT_FOUND = "Not found"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page of an answer shows."""

    document: str
    question: str
    answer: str
    """Empty: not found."""


Judge = Callable[[Shown], str | bool | None]
"""Returns `ACCEPT`, the right answer (empty: not in the document), or None for what the reviewer cannot tell."""


@dataclass(slots=True)
class Review:
    """What a reviewer has done."""

    said: Counter[str] = field(default_factory=Counter)
    """accepted, marked (selected in the document), written, absent, passed over."""
    seconds: list[float] = field(default_factory=list)
    """Of each verdict: from the page that shows the answer to the next page, which says "Saved"."""

    @property
    def corrected(self) -> int:
        """Number of corrections."""
        return self.said["marked"] + self.said["written"] + self.said["absent"]


def review(page: Page, address: str, judge: Judge, corrections: int) -> Review:
    """Work through the answers that nobody has checked, newest first, until so many are corrected or none is left.

    Args:
        page: of a browser in which somebody is logged in.
        address: the review server's.
        judge: what the reviewer knows.
        corrections: when to stop.
    """
    done = Review()
    page.goto(f"{address}/?review=open")
    page.keyboard.press("j")
    _press(page, "Enter")
    while True:
        local, began = urlsplit(page.url).path, time.monotonic()
        right = judge(_shown(page))
        if right is None:
            done.said["passed over"] += 1
            if not page.locator("#next").count():
                return done
            _press(page, "j")
            continue
        done.said[_say(page, right)] += 1
        assert page.locator(".done").inner_text().startswith("Saved"), page.inner_text("main")
        done.seconds.append(time.monotonic() - began)
        if done.corrected >= corrections or urlsplit(page.url).path == local:
            return done


def _shown(page: Page) -> Shown:
    said = page.inner_text("#said")
    return Shown(
        document=page.inner_text("section.first .over bdi"),
        question=page.inner_text("h1.asked"),
        answer="" if said == _NOT_FOUND else said,
    )


def _say(page: Page, right: str | bool) -> str:
    """Give a verdict; return what it was."""
    if right is ACCEPT:
        _press(page, "a")
        return "accepted"
    if not right:
        _press(page, "n")
        return "absent"
    marked = len(str(right).split()) <= _MARKED_WORDS and _mark(page, str(right))
    if not marked:
        page.keyboard.press("e")
        page.keyboard.type(str(right))
    _press(page, "Enter")
    return "marked" if marked else "written"


def _mark(page: Page, words: str) -> bool:
    """Find words in the document, select them with the arrow keys and take them as the right answer."""
    page.keyboard.press("f")
    page.keyboard.type(words)
    _press(page, "Enter")
    page.keyboard.press("c")
    for _ in range(2 * len(words.split()) + 2):
        page.keyboard.press("Shift+ArrowRight")
        selected = " ".join(str(page.evaluate("String(getSelection())")).split())
        if len(selected) >= len(words):
            break
    if selected != words:
        return False
    page.keyboard.press("Enter")
    return page.input_value("#answer") == words


def _press(page: Page, key: str) -> None:
    """Press a key that leads to another page, and wait for that."""
    with page.expect_navigation():
        page.keyboard.press(key)
