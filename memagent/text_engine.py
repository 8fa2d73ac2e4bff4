"""A model that takes and gives text, as a `generate` of token ids."""

from collections.abc import Awaitable, Callable

from memagent.conversations import Generate, ReadingSpec
from memagent.engine import Completion, Sampling

TextGenerate = Callable[[str, int], Awaitable[str]]
"""Continues a prompt; the second argument is the most tokens of the response."""


def from_text(generate: TextGenerate, spec: ReadingSpec) -> Generate:
    """Make a `generate` for `memagent.read` of a coroutine function that takes a prompt and returns a text.

    The spec's tokenizer counts: it need not be the model's own. The memory is decoded and encoded again on the way,
    which engines that speak token ids avoid; for bulk work and training use one of these.

    Args:
        generate: is given the prompt as text and the most tokens of the response, which may be ignored: what is longer
            is cut off.
        spec: of a template without control tokens, as in ``ReadingSpec.load(template="plain")``.
    """
    tokenizer = spec.prompts.tokenizer

    async def continue_ids(ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        said = tokenizer.encode(await generate(tokenizer.decode(ids, special=True), sampling.max_tokens))
        cut = len(said) > sampling.max_tokens
        return Completion(said[: sampling.max_tokens], "length" if cut else "stop", prompt_tokens=len(ids))

    return continue_ids
