"""vLLM in process, on GPU or CPU. No other module imports vllm."""

import asyncio
import gc
import os
import re
import secrets
import stat
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from infra.cluster.placement import ranks_are_actors
from infra.engines.cpu_format import cpu_format, own_format
from infra.system.processes import own_engines, usable_cores
from memagent.config import EngineConfig
from memagent.errors import ConfigError, EngineDied, RequestError
from memagent.reading.engine import LONGEST, Completion, EngineRequest, Sampling

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_FEW_CORES = 4
"""Up to so many cores, a process that only schedules is not worth a core."""
_TAIL_BYTES = 200_000
_ERROR = re.compile(r"^(?:.*\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a traceback, also where a logger has put its prefix before it."""


def computes_in_core(world_size: int = 1) -> bool:
    """Whether the core process also runs the model on CPU: few cores, and no thread binding by the user."""
    return world_size == 1 and usable_cores() <= _FEW_CORES and _binding() in ("auto", "nobind")


def core_threads() -> dict[str, str]:
    """Return the variable that gives a core which computes all cores but one, unless the user binds threads."""
    # Ray sets OMP_NUM_THREADS to the CPUs that a worker requests, not to those available.
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() - 1))} if _binding() == "auto" else {}


def forking_environment(world_size: int) -> dict[str, str]:
    """Return the variables of a process that forks its core; none where vLLM starts it in its own way."""
    if not is_cpu_build() or not computes_in_core(world_size) or os.environ.get(START_METHOD, "fork") != "fork":
        return {}
    return {START_METHOD: "fork", "LD_PRELOAD": _allocator_and_threads(), **core_threads()}


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection while vLLM is imported, and exempt what the imports have made from it: that stays.

    They make a million objects, which the collector would look at repeatedly, for a quarter of the time until an
    engine runs. A later start in the same process changes nothing: an engine that ended must be collected.
    """
    if "vllm" in sys.modules:
        yield
        return
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def last_error(output: Path = Path("/proc/self/fd/2")) -> str:
    """Return the last error in a file, by default this process's error output, if it is a file; else nothing.

    vLLM's other processes write there, and say no more than that they failed to this one.
    """
    try:
        if not stat.S_ISREG(output.stat().st_mode):
            return ""
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    errors = [line for line in _ERROR.findall(text) if "initialization failed" not in line]
    return errors[-1][:500] if errors else ""


def _binding() -> str:
    return os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")


def is_cpu_build() -> bool:
    """Return whether vLLM is its CPU build; asking vLLM would import it."""
    if any(distributions(name="vllm-cpu")):
        return True
    return any("cpu" in build.version for build in distributions(name="vllm"))


def _allocator_and_threads() -> str:
    """Return LD_PRELOAD as vLLM sets it for its processes: PyTorch's OpenMP, and the allocator that vLLM brings."""
    before = os.environ.get("LD_PRELOAD", "")
    preload = [before] if before else []
    torch, vllm = _package("torch"), _package("vllm")
    openmp = [*(torch.parent / "torch.libs").glob("libgomp*.so*"), *(torch / "lib").glob("libgomp*.so*")]
    if openmp and not any(name in before for name in ("libomp", "libgomp", "libiomp")):
        preload.append(str(openmp[0]))
    allocator = [*(vllm / "libs").glob("libtcmalloc_minimal*.so*"), *(vllm / "libs").glob("libtcmalloc.so*")]
    if allocator and "libtcmalloc" not in before:
        preload.insert(0, str(allocator[0]))
    return ":".join(preload)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} is installed"
    return Path(spec.origin).parent


_CPU_STEP = 768
"""Tokens of one step on CPU.

A conversation waits for whole steps: with vLLM's 2,048 the longest documents, which decide when a run ends, advanced
five times slower. Even smaller steps cost the other documents more than the longest ones gain.
"""


_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has room for."""


@dataclass(frozen=True, slots=True)
class _Adapter:
    """LoRA's factors of a version."""

    folder: str
    version: str
    number: int
    """Never one that was used before: vLLM's prefix cache knows adapters by their names."""

    def request(self) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"{self.version}#{self.number}", self.number, self.folder)


class VllmEngine:
    """One continuously batching vLLM engine: prefix caching on, longer readings first."""

    def __init__(self, model: str, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._llm: Any = None
        self._cpu = self._sleeps = False
        self._adapter: _Adapter | None = None
        self._adapters = 0
        self._in_flight = Counter[_Adapter | None]()
        self._one_ended = asyncio.Event()

    @property
    def max_model_len(self) -> int | None:
        """The context window in tokens, once started."""
        return int(self._llm.model_config.max_model_len) if self._llm is not None else None

    async def start(self) -> None:
        """Load the model. Takes 10 to 20 seconds on CPU, most of it imports."""
        if self._llm is not None:
            return
        _environment(self._config)
        own_engines()
        start_method = os.environ.get(START_METHOD)
        with uncollected():
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.executor import Executor, UniProcExecutor

        config = self._config
        cpu = self._cpu = current_platform.is_cpu()
        self._sleeps = config.sleep_mode and not cpu
        dtype = cpu_format(self._model, config).dtype if cpu else config.dtype
        if dtype == "auto" and own_format(Path(self._model)) == "float32":
            dtype = "float32"  # vLLM's auto rounds these to 16 bits, by which most of a short training is lost
        options: dict[str, Any] = (
            {"seed": secrets.randbits(31)} if cpu else {"gpu_memory_utilization": config.gpu_memory}
        )
        step = config.max_num_batched_tokens or (max(_CPU_STEP, config.max_num_seqs) if cpu else None)
        if step:
            options["max_num_batched_tokens"] = step
        if config.max_model_len:
            options["max_model_len"] = config.max_model_len
        if rank := config.lora_rank:  # two: while one is loaded, the responses of the one before it go on
            room = next((one for one in _LORA_RANKS if one >= rank), rank)
            options |= {"enable_lora": True, "max_loras": 2, "max_lora_rank": room}
        try:
            args = AsyncEngineArgs(
                model=self._model,
                tokenizer=config.tokenizer,
                dtype=dtype,
                tensor_parallel_size=config.tensor_parallel,
                distributed_executor_backend="ray" if ranks_are_actors() else None,
                max_num_seqs=config.max_num_seqs,
                enforce_eager=cpu if config.enforce_eager is None else config.enforce_eager,
                trust_remote_code=config.trust_remote_code,
                enable_prefix_caching=True,
                scheduling_policy="priority",
                disable_log_stats=True,
                enable_sleep_mode=self._sleeps,
                load_format="safetensors",
                worker_extension_cls="infra.engines.vllm_worker.WeightSyncWorker",
                logprobs_mode="processed_logprobs",  # of the sampling distribution, after temperature
                **options,
            )
            # Batch work: with this, a step on a GPU takes 8,192 or 16,384 tokens instead of 2,048.
            vllm_config = args.create_engine_config(UsageContext.LLM_CLASS)
            executor = Executor.get_class(vllm_config)
            if cpu and computes_in_core(config.tensor_parallel):
                executor = UniProcExecutor
                os.environ.update(core_threads())
                if start_method == "fork":  # set from outside for this process; vLLM's CPU build puts another there
                    os.environ[START_METHOD] = start_method
            self._llm = AsyncLLM(vllm_config, executor, log_stats=False, log_requests=False)
        except (ValueError, OSError) as error:
            raise ConfigError(f"vLLM cannot load {self._model}: {error}") from error
        except RuntimeError as error:  # of its core, which has written the cause to the error output
            raise EngineDied(f"vLLM cannot start {self._model}: {last_error() or error}") from error

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; see `memagent.reading.engine.Engine`."""
        from vllm.v1.engine.exceptions import EngineGenerateError

        prompt, adapter = {"prompt_token_ids": ids}, self._adapter
        options: dict[str, Any] = {"priority": priority, "lora_request": adapter and adapter.request()}
        final: Any = None
        self._in_flight[adapter] += 1
        try:
            with self._alive() as llm:
                async for output in llm.generate(prompt, self._params(sampling), uuid.uuid4().hex, **options):
                    final = output
        except (EngineGenerateError, ValueError) as error:
            if llm.errored:
                raise EngineDied(str(error)) from error
            raise RequestError(f"{type(error).__name__}: {error}") from error
        finally:
            self._in_flight[adapter] -= 1
            self._one_ended.set()
        sequence = final.outputs[0]
        out = list(sequence.token_ids)
        steps: Any = zip(cast(Any, sequence.logprobs), out, strict=True) if sampling.logprobs else ()
        return Completion(
            out,
            sequence.finish_reason or "stop",
            prompt_tokens=len(ids),
            cached_tokens=final.num_cached_tokens or 0,
            logprobs=[float(step[token].logprob) for step, token in steps] if sampling.logprobs else None,
            weight_version=adapter.version if adapter else _version(sequence.weight_versions),
        )

    @contextmanager
    def _alive(self) -> Iterator[Any]:
        """Give vLLM's engine. Raises EngineDied: there is none, or it ends meanwhile."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is None:
            raise EngineDied("the engine is not started")
        try:
            yield self._llm
        except EngineDeadError as error:
            raise EngineDied(str(error) or "the engine process ended") from error

    def _params(self, sampling: Sampling) -> Any:
        from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, SamplingParams

        times = sampling.repetitions
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            # The CPU build crashes on a seeded request with a chunked prompt, as its generators cannot be reset.
            # Requests use the engine's own generator there, which is not seeded.
            seed=None if self._cpu else sampling.seed,
            stop_token_ids=list(sampling.stop_ids),
            repetition_detection=RepetitionDetectionParams(LONGEST, 1, times) if times > 1 else None,
            logprobs=0 if sampling.logprobs else None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    async def update(self, folder: str, version: str, *, keep: bool = False) -> None:
        """Load other weights of the same model in place; `version` labels what they respond.

        Of a folder with LoRA's factors (``engine.lora_rank``) those are used from the next response on, beside the
        weights; responses go on meanwhile.

        Args:
            folder: of the model, or of the factors.
            version: of a response the one of its last token is kept.
            keep: go on with the responses in progress, from where they are and with the new weights, of which what they
                have attended to is computed again; else wait for their end first.

        Raises EngineDied: the engine is gone.
        """
        if not (Path(folder) / "adapter_config.json").is_file():
            await self._take(version, "take_weights", {"folder": folder}, keep=keep)
            return
        with self._alive() as llm:
            while any(count for adapter, count in self._in_flight.items() if adapter != self._adapter):
                self._one_ended.clear()
                await self._one_ended.wait()  # there is room for two
            self._adapters += 1
            adapter = _Adapter(folder, version, self._adapters)
            await llm.add_lora(adapter.request())
        self._adapter, self._in_flight = adapter, +self._in_flight

    def use_adapter(self, folder: str, version: str) -> None:
        """Use LoRA's factors from the first response on; called before `start`."""
        self._adapters += 1
        self._adapter = _Adapter(folder, version, self._adapters)

    async def receive(self, meeting: Any, first: int, version: str, *, keep: bool = False) -> None:
        """Receive other weights of the same model by broadcast.

        Args:
            meeting: where (`infra.learner.weights.Rendezvous`).
            first: number of this engine's first process among the receivers, from 1.
            version: labels their responses.
            keep: as of `update`.

        Raises EngineDied: the engine is gone.
        """
        await self._take(version, "receive_weights", {"meeting": asdict(meeting), "first": first}, keep=keep)

    async def _take(self, version: str, method: str, arguments: dict[str, Any], *, keep: bool) -> None:
        with self._alive() as llm:
            await llm.pause_generation(mode="keep" if keep else "wait", clear_cache=not keep)
            await llm.collective_rpc(method, kwargs=arguments)
            await llm.reset_prefix_cache(reset_running_requests=keep)  # it is of the old weights
            await llm.update_weight_version(version)
            self._adapter = None
            await llm.resume_generation()

    async def sleep(self) -> None:
        """Give the GPU's memory back, with nothing in flight; weights wait in main memory. On a CPU nothing is given.

        Raises EngineDied: the engine is gone.
        """
        with self._alive() as llm:
            if self._sleeps:
                await llm.sleep(mode="wait")

    async def wake(self) -> None:
        """Undo `sleep`. Raises EngineDied: the engine is gone."""
        with self._alive() as llm:
            if self._sleeps:
                await llm.wake_up()

    async def stop(self) -> None:
        """Shut the engine's processes down and free its memory."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()


def make_engine(request: EngineRequest) -> VllmEngine:
    """Make the engine; it loads its weights when it is started."""
    return VllmEngine(request.model, request.config)


def _environment(config: EngineConfig) -> None:
    """Set options that vLLM reads only from the environment; the user's own settings are kept."""
    # vLLM compiles one helper of its log-probabilities even where it runs eagerly: two seconds of the first request.
    eager = {"TORCH_COMPILE_DISABLE": "1"} if is_cpu_build() and config.enforce_eager is not False else {}
    for name, value in {
        **eager,
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
    }.items():
        os.environ.setdefault(name, value)


def _version(spans: Any) -> str:
    """Return the version of the weights that produced the last token; empty for the initial ones."""
    return spans[-1].version if spans and spans[-1].version != "default" else ""
