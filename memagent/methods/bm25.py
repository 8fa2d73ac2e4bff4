"""Retrieval: the segments that rank first for the question by BM25, as many as fit one conversation.

Words are runs of two or more letters and digits, lower-cased, without English stop words and not stemmed; scripts
that do not part words are ranked poorly.
"""

import asyncio
import logging
from typing import Any

from memagent.methods.window import WindowReading
from memagent.records import Segment

_OTHER = ""
"""Stands for every word that was not asked for: it counts in a segment's length and in nothing else."""


class BM25(WindowReading):
    """One reading of the segments nearest to the question, in the order of the stream. Made and run as `Reading` is."""

    async def choose(self, window_tokens: int) -> list[Segment]:
        """Rank all segments; of equals the earlier comes first. Take from the top until the next one does not fit."""
        asked = _words(self._question)
        texts: list[list[str]] = []
        tokens: list[int] = []
        async for segment in self._stream.read(0, len(self._stream)):
            # A long document's text is not kept: for this question all its other words are one.
            texts.append([word if word in asked else _OTHER for word in _words(segment.text)])
            tokens.append(len(segment.token_ids))
        scores = await asyncio.to_thread(_scores, texts, sorted(set(asked)))
        best: list[int] = []
        for position in sorted(range(len(texts)), key=lambda at: (-scores[at], at)):
            window_tokens -= tokens[position]
            if window_tokens < 0:
                break
            best.append(position)
        return [segment for position in sorted(best) async for segment in self._stream.read(position, position + 1)]


def _words(text: str) -> list[str]:
    words: list[list[str]] = _library().tokenize([text], return_ids=False, show_progress=False)
    return words[0]


def _scores(texts: list[list[str]], asked: list[str]) -> list[float]:
    if not asked or not any(texts):
        return [0.0] * len(texts)  # the library divides by the mean length and takes no empty query
    ranker = _library().BM25()
    ranker.index(texts, show_progress=False)
    return [float(score) for score in ranker.get_scores(asked)]


def _library() -> Any:
    import bm25s  # type: ignore[import-untyped]

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG, whatever the program has set
    return bm25s
