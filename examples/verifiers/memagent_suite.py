"""The product's suites as an environment of Prime Intellect's verifiers (0.4, `verifiers.v1`), for evaluation and RL.

The tasks are the samples of ``memagent evaluate``. The harness is the paper's loop (arXiv 2507.02259): every memory
update and the answer is a conversation of its own with the policy, so a trace has a branch for each of them, and all
of them share the reward, as in Multi-Conv DAPO. Another harness, as ``null``, gets text and question in one prompt.
"""

import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import Field
from verifiers.v1.clients import ModelContext

import memagent
from memagent.evaluation.grading import judge
from memagent.evaluation.suites import Suite
from memagent.evaluation.texts import Match, Sample, load_texts

__all__ = ["MemoryHarness", "SuiteTaskset"]
_ANSWER = "answer"
"""Where the harness leaves its answer in a trace's `info`."""


class SuiteData(vf.TaskData):
    """A sample; `prompt` is its text and, from `text_end` on, the question."""

    text_end: int
    question: str
    answers: list[str]
    """Gold; one empty text: the text does not say."""
    match: Match
    about: dict[str, object] = Field(default_factory=dict)


class SuiteTask(vf.Task[SuiteData]):
    """Scores an answer as ``memagent evaluate`` does."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """Return the score, 0 to 1; where the text does not say, only no answer (or "not found") is right."""
        data = self.data
        sample = Sample(
            sample_id=data.id or "",
            task=data.name or "",
            length=0,
            pieces=lambda: iter(()),
            question=data.question,
            answers=tuple(data.answers),
            match=data.match,
            about=data.about,
        )
        return judge(sample, _answer(trace)).score


def _answer(trace: vf.Trace) -> str:
    if _ANSWER in trace.info:
        return str(trace.info[_ANSWER])
    said = str(trace.assistant_messages[-1].content or "").strip() if trace.assistant_messages else ""
    return "" if said.lower().rstrip(".") == "not found" else said


class SuiteConfig(vf.TasksetConfig):
    """What ``memagent evaluate`` takes as --suite, --lengths, --kinds, --n, --seed, --text and --data."""

    suite: str = "needles"
    lengths: list[int] = Field(default_factory=lambda: [8_000])
    """Tokens of a text, as the tokenizer counts them."""
    kinds: list[str] = Field(default_factory=list)
    n: int = 50
    """Samples of each kind and length."""
    seed: int = 0
    text: list[str] = Field(default_factory=list)
    """Files and folders whose text hides the needles; by default those of the installed packages."""
    data: list[str] = Field(default_factory=list)
    tokenizer: str = "nano"


class SuiteTaskset(vf.Taskset[SuiteTask, SuiteConfig]):
    """The samples of a suite."""

    def load(self) -> Iterator[SuiteTask]:
        """Yield a task for each sample."""
        config = self.config
        suite = Suite(
            config.suite,
            kinds=tuple(config.kinds),
            lengths=tuple(config.lengths),
            n=config.n,
            seed=config.seed,
            data=tuple(config.data),
        )
        suite.check()
        tokenizer = _spec(config.tokenizer, ()).prompts.tokenizer
        texts = load_texts([Path(path) for path in config.text or (sysconfig.get_paths()["purelib"],)])
        for group in suite.groups():
            for sample in group.samples(tokenizer, texts):
                yield SuiteTask(_data(sample), config.task)


def _data(sample: Sample) -> SuiteData:
    text = sample.text()
    return SuiteData(
        id=sample.sample_id,
        name=sample.task,
        prompt=f"{text}\n\n{sample.question}",
        text_end=len(text),
        question=sample.question,
        answers=list(sample.answers),
        match=sample.match,
        about=sample.about if sample.match == "contract" else {},
    )


class MemoryHarnessConfig(vf.HarnessConfig):
    """How texts are read; the paper's values by default."""

    tokenizer: str = "nano"
    """Counts the tokens of segments and memories; best the policy's own: a folder, or a Hugging Face name."""
    segment_tokens: int = 5_000
    memory_tokens: int = 1_024
    answer_tokens: int = 1_024


class MemoryHarness(vf.Harness[MemoryHarnessConfig]):
    """Reads a text segment by segment; every conversation goes through the environment's endpoint."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: SuiteData,
    ) -> vf.ProgramResult:
        """Read, in this process, and leave the answer in the trace."""
        config = self.config
        spec = _spec(
            config.tokenizer,
            (
                ("segment_tokens", config.segment_tokens),
                ("memory_tokens", config.memory_tokens),
                ("answer_tokens", config.answer_tokens),
            ),
        )
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=3_600) as client:

            async def generate(prompt: str, most: int) -> str:
                said = await client.chat.completions.create(
                    model=ctx.model, messages=[{"role": "user", "content": prompt}], max_tokens=most
                )
                return said.choices[0].message.content or ""

            text = str(data.prompt)[: data.text_end]
            result = await memagent.read(text, data.question, memagent.from_text(generate, spec), spec)
        trace.info[_ANSWER] = result.answer
        trace.record_metric("segments", float(result.segments))
        return vf.ProgramResult(0, result.answer, "")


@cache
def _spec(tokenizer: str, reading: tuple[tuple[str, int], ...]) -> memagent.ReadingSpec:
    # As in the paper: the question first, and no update may be left out.
    return memagent.ReadingSpec.load(tokenizer, template="plain", layout="question-first", gate=False, **dict(reading))
