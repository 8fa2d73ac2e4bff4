"""What comparisons of contract answers share: straight quotes, whole words, "perpetual"."""

import re

from memagent.scoring import containment, normalise

PERPETUAL = re.compile(r"(?i)\bperpetu(?:al|ally|ity)\b|\bindefinite(?:ly)?\b")
"""Said in place of a date or a duration."""
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
_LINES = re.compile(r"\n\s*\n")


def contains(prediction: str, gold: str) -> bool:
    """Tell whether gold, or one of several after ";", stands in the answer as whole words, line by line."""
    said = straight(prediction)
    names = [_LINES.split(part) for part in straight(gold).split(";") if normalise(part)]
    return any(all(containment(said, [line]) == 1.0 for line in name if normalise(line)) for name in names)


def straight(text: str) -> str:
    """Return the text with straight quotation marks."""
    return text.translate(_QUOTES)
