"""Wrong answers to a task, by kind: what a reward must not pay.

Each is one that policies were seen to give, or learn to give, where something pays for them.
"""

import re
from collections.abc import Iterator, Sequence

from memagent.metrics import containment, normalise
from memagent.rl.dataset import Task
from memagent.rl.judging import exact

NONSENSE = "zyxq vlkw"
"""What no reward can have a reason to pay."""
_PLAIN = {
    "does not know": "I do not know",
    "not stated": "The text does not say.",
    "not applicable": "N/A",
    "unknown": "unknown",
    "nobody": "none",
    "yes": "yes",
    "no": "no",
    "yes and no": "yes and no",
    "another number": "7",
    "another date": "May 8, 1931",
    "another name": "Ann Otherwise",
    "another list": "one, two, three, four and five",
    "a letter": "x",
    "an instruction": "See the text above.",
    "a promise": "The answer is",
}
_NUMBER = re.compile(r"\d+")
_MOST_CHARS = 2000


def wrong_answers(task: Task, others: Sequence[str] = ()) -> dict[str, str]:
    """Return wrong answers to a task by kind, at least twenty; an empty text is "not found".

    Args:
        task: the task.
        others: answers to other tasks.
    """
    gold = [answer for answer in task.gold if answer.strip()]
    other = next((answer for answer in others if answer.strip() and not exact(answer, gold)), "Ann Otherwise")
    kinds = dict(_PLAIN) | {"the question": task.question} | dict(_of_text(task, gold))
    kinds |= dict(_of_gold(gold, other, task.sample.match)) if gold else dict(_of_nothing(task, other))
    return {kind: answer for kind, answer in kinds.items() if not _is_right(task, gold, answer)}


def _of_text(task: Task, gold: Sequence[str]) -> Iterator[tuple[str, str]]:
    segment = next((s.text for s in task.segments if containment(s.text, gold)), "") if gold else ""
    segment = segment or (task.segments[0].text if task.segments else "")
    yield "a segment", segment[:_MOST_CHARS]
    yield "the text", task.text[: 5 * _MOST_CHARS]
    yield "a line of the text", max(segment.splitlines(), key=len, default="")


def _of_nothing(task: Task, other: str) -> Iterator[tuple[str, str]]:
    words = "".join(s.text for s in task.segments[:1]).split()
    yield "another answer", other
    yield "a word of the text", words[0] if words else "word"
    yield "words of the text", " ".join(words[:5]) or "some words"
    yield "a sentence", f"It is {other}."


def _of_gold(gold: Sequence[str], other: str, match: str) -> Iterator[tuple[str, str]]:
    right = " and ".join(gold) if match == "all" else gold[0]
    if match == "contract":  # one of several is right
        right = right.split(";")[0].strip() or right
    # Half of a list is partly right, and so is Ontario where gold says that it is in Canada.
    first = gold[0] if match == "all" else right.split(",")[0] if match == "contract" else right
    yield "not found", ""
    yield "another answer", other
    yield "negated", f"not {right}"
    yield "denied", f"It is certainly not {right}."
    yield "twice", f"{right} {right}"
    yield "one of two", f"{right} or {other}"
    yield "a longer list", f"{other}, {right}, Otherwise and others"
    yield "taken back", f"{right}? No, {other}."
    yield "doubted", f"maybe {right}, but I do not know"
    yield "a word that contains it", f"un{right}ish"
    if match != "contract":  # 1/1/99
        yield "backwards", right[::-1]
    yield "its beginning", first[: len(first) // 2].strip()
    yield "its end", first[(len(first) + 1) // 2 :].strip()
    yield "one character changed", _changed(right)
    if match != "all" and normalise(right) in ("yes", "no"):
        yield "the opposite", "no" if normalise(right) == "yes" else "yes"
        yield "undecided", "yes or no"
    if number := _NUMBER.search(right):
        start, end = number.span()
        for kind, digits in _other_numbers(number[0]):
            yield kind, right[:start] + digits + right[end:]
        if right.strip() == number[0]:
            yield "a number among others", f"Chapter {number[0]} of {number[0]}0"
            yield "the number negated", f"-{number[0]}"
            yield "the point moved", f"{number[0][:-1] or '0'}.{number[0][-1]}"


def _other_numbers(digits: str) -> Iterator[tuple[str, str]]:
    yield "another number that contains it", f"1{digits}"
    yield "another number that begins with it", f"{digits}0"
    yield "the next number", str(int(digits) + 1)


def _changed(text: str) -> str:
    """Change a letter or digit in the middle."""
    middle = len(text) // 2
    changed = next((i for i in (*range(middle, len(text)), *range(middle)) if text[i].isalnum()), None)
    if changed is None:
        return text + "q"
    return text[:changed] + ("q" if text[changed].lower() != "q" else "w") + text[changed + 1 :]


def _is_right(task: Task, gold: Sequence[str], answer: str) -> bool:
    """Whether a made-up wrong answer happens to be the gold, or a part of what is asked for."""
    if not gold:
        return not answer.strip()
    words = normalise(answer)
    if task.sample.match == "all" and len(gold) > 1:
        return words in {normalise(text) for text in gold}
    return bool(exact(answer, gold))
