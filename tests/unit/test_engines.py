import asyncio
import gc
import os
import subprocess
import sys

import pytest

from infra.engines import vllm as vllm_core
from infra.engines.supervised import SupervisedEngine
from memagent.errors import EngineDied, RequestError
from memagent.reading.engine import Completion, Sampling
from memagent.reading.scripted import ScriptedEngine, answer, update
from tests.support.pages import ROOT


class Dying:
    """Dies at given calls."""

    made = 0

    def __init__(self, die_at):
        type(self).made += 1
        self._die_at, self._calls = die_at, 0
        self.stopped = False

    async def start(self):
        await asyncio.sleep(0)

    async def stop(self):
        self.stopped = True

    async def generate(self, ids, sampling, priority=0):
        await asyncio.sleep(0)
        self._calls += 1
        if self._calls > self._die_at:
            raise EngineDied("gone")
        return Completion([len(ids)], "stop", len(ids))


async def test_requests_survive_the_death_of_an_engine():
    Dying.made = 0
    lives = iter([3, 1000])
    engine = SupervisedEngine(lambda: Dying(next(lives)), restarts=1)
    await engine.start()
    answers = await asyncio.gather(*(engine.generate([0] * i, Sampling(1)) for i in range(10)))
    assert [a.ids for a in answers] == [[i] for i in range(10)]
    assert (engine.deaths, Dying.made) == (1, 2)


class Poisoned(Dying):
    """Dies of one request, and then answers nothing more; counts what is in flight."""

    most = 0

    async def generate(self, ids, sampling, priority=0):
        self._calls += 1
        type(self).most = max(self.most, self._calls)
        try:
            await asyncio.sleep(0.01)
            if ids == [13] or self.stopped:
                self.stopped = True
                raise EngineDied("out of memory")
            return Completion([len(ids)], "stop", len(ids))
        finally:
            self._calls -= 1


async def test_the_request_that_an_engine_dies_of_fails_and_the_others_are_answered():
    engine = SupervisedEngine(lambda: Poisoned(0), restarts=3)
    await engine.start()
    requests = [engine.generate([number], Sampling(1)) for number in range(30)]
    done = await asyncio.gather(*requests, return_exceptions=True)
    failed = [number for number, result in enumerate(done) if isinstance(result, Exception)]
    assert failed == [13] and isinstance(done[13], RequestError)
    assert engine.deaths == 3
    assert (await engine.generate([0], Sampling(1))).ids == [1]
    assert Poisoned.most == 30, "before and after, requests run side by side"


async def test_an_engine_that_dies_of_everything_is_given_up():
    engine = SupervisedEngine(lambda: Dying(0), restarts=3)
    await engine.start()
    done = await asyncio.gather(*(engine.generate([n], Sampling(1)) for n in range(9)), return_exceptions=True)
    assert [type(error) for error in done].count(EngineDied) >= 8 and engine.deaths == 3


async def test_engines_that_are_replaced_on_purpose_put_no_blame_on_requests():
    engine = SupervisedEngine(lambda: Hanging(0), restarts=9)
    await engine.start()
    request = asyncio.create_task(engine.generate([1], Sampling(1)))
    for _ in range(4):
        await asyncio.sleep(0.01)
        await engine.restart()
    assert not request.done()
    request.cancel()


class Hanging(Dying):
    """Never answers."""

    async def generate(self, ids, sampling, priority=0):
        await asyncio.Event().wait()


async def test_an_engine_that_does_not_answer_counts_as_dead():
    made = []

    def make():
        made.append(Hanging(0) if not made else Dying(1000))
        return made[-1]

    engine = SupervisedEngine(make, restarts=1, watchdog=0.05)
    answers = await asyncio.gather(*(engine.generate([0] * i, Sampling(1)) for i in range(4)))
    assert [answer.ids for answer in answers] == [[0], [1], [2], [3]]
    assert engine.deaths == 1 and made[0].stopped
    stuck = SupervisedEngine(lambda: Hanging(0), restarts=1, watchdog=0.05)
    with pytest.raises(EngineDied, match="has not answered for"):
        await stuck.generate([1], Sampling(1))


async def test_restarts_are_bounded():
    engine = SupervisedEngine(lambda: Dying(0), restarts=2)
    with pytest.raises(EngineDied):
        await engine.generate([1], Sampling(1))
    assert engine.deaths == 2


async def test_the_scripted_engine_refuses_what_is_not_of_its_template(scheme):
    with pytest.raises(RequestError):
        await ScriptedEngine(scheme.prompts).generate([1, 2, 3], Sampling(8))


async def test_the_scripted_engine_keeps_to_max_tokens(scheme):
    tokenizer = scheme.prompts.tokenizer
    prompt = scheme.prompts.update(
        tokenizer.encode("pass number amber?"),
        scheme.prompts.no_memory,
        tokenizer.encode("The pass number amber is 12345."),
    )
    cut = await ScriptedEngine(scheme.prompts).generate(prompt, Sampling(3, logprobs=True))
    assert (len(cut.ids), cut.finish_reason, len(cut.logprobs)) == (3, "length", 3)


def test_the_rules():
    question = "What is the pass number for amber-otter?"
    right = "The pass number for amber-otter is 42."
    assert update(question, "", f"Hello. {right} Bye.") == right
    assert update(question, right, "The pass number for amber-heron is 13.") == right
    assert update(question, "", "The pass number for amber-heron is 13.") == ""
    assert answer(right) == "42" and answer("Nevada law") == "Nevada law" and answer("") == ""


@pytest.mark.parametrize(
    ("cores", "ranks", "binding", "computes", "threads"),
    [
        (2, 1, None, True, "1"),
        (4, 1, "auto", True, "3"),
        (2, 1, "nobind", True, None),
        (2, 1, "0-1", False, None),
        (2, 2, None, False, None),
        (16, 1, None, False, None),
    ],
)
def test_on_few_cores_one_process_schedules_and_computes(monkeypatch, cores, ranks, binding, computes, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.delenv("VLLM_WORKER_MULTIPROC_METHOD", raising=False)
    monkeypatch.setattr(vllm_core, "is_cpu_build", lambda: True)
    if binding:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", binding)
    assert vllm_core.computes_in_core(ranks) is computes
    variables = vllm_core.forking_environment(ranks)
    assert (variables.get("VLLM_WORKER_MULTIPROC_METHOD"), variables.get("OMP_NUM_THREADS")) == (
        "fork" if computes else None,
        threads,
    )
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    assert vllm_core.forking_environment(ranks) == {}, "the user's choice"


SAYS = """
import sys
from infra.engines.vllm import last_error
sys.stderr.write("(EngineCore pid=7) ERROR 11-24 [core.py:1510] torch.OutOfMemoryError: CUDA out of memory\\n")
sys.stderr.write("RuntimeError: Engine core initialization failed. See root cause above.\\n")
sys.stderr.flush()
print(last_error())
"""


@pytest.mark.parametrize("to_file", [True, False])
def test_the_cause_of_a_failed_start_is_found_in_the_error_output(tmp_path, to_file):
    # Nothing but a file can be read back: a terminal or a pipe would wait.
    with (tmp_path / "stderr").open("wb") as file:
        stderr = file if to_file else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", SAYS], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT)
    assert done.stdout.strip() == ("torch.OutOfMemoryError: CUDA out of memory" if to_file else "")


def test_what_vllm_has_imported_is_not_collected_and_later_starts_change_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    before = gc.get_freeze_count()
    try:
        with vllm_core.uncollected():
            assert not gc.isenabled()
        frozen = gc.get_freeze_count()
        assert frozen > before and gc.isenabled()
        monkeypatch.setitem(sys.modules, "vllm", gc)
        with vllm_core.uncollected():
            assert gc.isenabled()
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
