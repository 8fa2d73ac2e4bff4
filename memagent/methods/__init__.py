"""What a user would pick in place of the reading segment by segment, on the same engine, prompts and log.

A method is made with the arguments of `Reading`, its `run` gives an `Outcome`, and its conversations are `Turn`s: a
worker runs any of them in a reading's place. Turns of two methods must not stand under one reading's name: name a
reading by `config_hash`.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from memagent.errors import UsageError
from memagent.methods.bm25 import BM25
from memagent.methods.mapreduce import MapReduce
from memagent.methods.truncate import Truncate
from memagent.reading import Reading
from memagent.records import Outcome, digest


class Readable(Protocol):
    """What a worker runs: a reading, or what stands in its place."""

    async def run(self) -> Outcome:
        """Read to the end and answer."""


Method = Callable[..., Readable]
"""Takes reading_id, question, stream, scheme, generate, record and past, as `Reading` does."""

METHODS: dict[str, Method] = {"memagent": Reading, "truncate": Truncate, "bm25": BM25, "map-reduce": MapReduce}


def method(name: str, window_tokens: int | None = None) -> Method:
    """Return the method of that name, reading at most `window_tokens` of text in one conversation.

    Without a window it has the one that the policy reads in anyway: ``segment_tokens`` of the reading configuration.
    The reading itself has no other.

    Raises:
        UsageError: no such method, or a window for the reading itself.
    """
    if name not in METHODS:
        raise UsageError(f"no method {name!r}. There are: {', '.join(METHODS)}.")
    if window_tokens is None:
        return METHODS[name]
    if name == "memagent":
        raise UsageError("the window of the reading itself is reading.segment_tokens: set that in place of a window.")
    return partial(METHODS[name], window_tokens=window_tokens)


def config_hash(name: str, window_tokens: int | None, reading_config_hash: str) -> str:
    """Return the hash that names a method's readings; for the reading itself it is the configuration's own."""
    return reading_config_hash if name == "memagent" else digest(name, window_tokens, reading_config_hash)
