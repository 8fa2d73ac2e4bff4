"""vLLM in process, on GPU or CPU. No other module imports vllm."""

import os
import secrets
import uuid
from dataclasses import asdict
from typing import Any

from infra.cluster.placement import ranks_are_actors
from infra.engines.cpu_format import cpu_format
from infra.engines.vllm_core import START_METHOD, computes_in_core, core_threads, is_cpu_build, last_error, uncollected
from infra.processes import own_engines
from memagent.config import EngineConfig
from memagent.engine import LONGEST, Completion, EngineRequest, Sampling
from memagent.errors import ConfigError, EngineDied, RequestError

_CPU_STEP = 768
"""Tokens of one step on CPU.

A conversation waits for whole steps: with vLLM's 2,048 the longest documents, which decide when a run ends, advanced
five times slower. Even smaller steps cost the other documents more than the longest ones gain.
"""


class VllmEngine:
    """One continuously batching vLLM engine: prefix caching on, longer readings first."""

    def __init__(self, model: str, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._llm: Any = None
        self._cpu = False

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
        dtype = cpu_format(self._model, config).dtype if cpu else config.dtype
        options: dict[str, Any] = (
            {"seed": secrets.randbits(31)} if cpu else {"gpu_memory_utilization": config.gpu_memory}
        )
        step = config.max_num_batched_tokens or (max(_CPU_STEP, config.max_num_seqs) if cpu else None)
        if step:
            options["max_num_batched_tokens"] = step
        if config.max_model_len:
            options["max_model_len"] = config.max_model_len
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
                enable_sleep_mode=config.sleep_mode and not cpu,
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
        """Continue `ids`; see `memagent.engine.Engine`."""
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if self._llm is None:
            raise EngineDied("the engine is not started")
        prompt, params = {"prompt_token_ids": ids}, self._params(sampling)
        final: Any = None
        try:
            async for output in self._llm.generate(prompt, params, uuid.uuid4().hex, priority=priority):
                final = output
        except EngineDeadError as error:
            raise EngineDied(str(error) or "the engine process ended") from error
        except (EngineGenerateError, ValueError) as error:
            if self._llm.errored:
                raise EngineDied(str(error)) from error
            raise RequestError(f"{type(error).__name__}: {error}") from error
        sequence = final.outputs[0]
        out = list(sequence.token_ids)
        return Completion(
            out,
            sequence.finish_reason or "stop",
            prompt_tokens=len(ids),
            cached_tokens=final.num_cached_tokens or 0,
            logprobs=_logprobs(sequence.logprobs, out) if sampling.logprobs else None,
            weight_version=_version(sequence.weight_versions),
        )

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

    async def update(self, folder: str, version: str) -> None:
        """Load other weights of the same model in place, with nothing in flight; `version` labels their responses.

        Raises:
            EngineDied: the engine is gone.
        """
        await self._take(version, "take_weights", {"folder": folder})

    async def receive(self, meeting: Any, first: int, version: str) -> None:
        """Receive other weights of the same model by broadcast, with nothing in flight.

        Args:
            meeting: where (`infra.learner.weight_broadcast.Rendezvous`).
            first: number of this engine's first process among the receivers, from 1.
            version: labels their responses.

        Raises:
            EngineDied: the engine is gone.
        """
        await self._take(version, "receive_weights", {"meeting": asdict(meeting), "first": first})

    async def _take(self, version: str, method: str, arguments: dict[str, Any]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is None:
            raise EngineDied("the engine is not started")
        try:
            await self._llm.pause_generation(mode="wait", clear_cache=True)
            await self._llm.collective_rpc(method, kwargs=arguments)
            await self._llm.reset_prefix_cache()  # cached prefixes were computed with the old weights
            await self._llm.update_weight_version(version)
            await self._llm.resume_generation()
        except EngineDeadError as error:
            raise EngineDied(str(error) or "the engine process ended") from error

    async def sleep(self) -> None:
        """Give the GPU's memory back, with nothing in flight; weights wait in main memory. On a CPU nothing is given.

        Raises:
            EngineDied: the engine is gone.
        """
        await self._switch("sleep", mode="wait")

    async def wake(self) -> None:
        """Undo `sleep`.

        Raises:
            EngineDied: the engine is gone.
        """
        await self._switch("wake_up")

    async def _switch(self, method: str, **options: str) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is None:
            raise EngineDied("the engine is not started")
        try:
            if self._config.sleep_mode and not self._cpu:
                await getattr(self._llm, method)(**options)
        except EngineDeadError as error:
            raise EngineDied(str(error) or "the engine process ended") from error

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


def _logprobs(steps: Any, ids: list[int]) -> list[float]:
    return [float(step[token].logprob) for step, token in zip(steps, ids, strict=True)]
