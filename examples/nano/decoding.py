"""Reading without a server: a small engine over transformers, for trials beside the training.

It decodes greedily, and batches the requests that arrive together.
"""

import asyncio
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from memagent.reading.engine import Completion, Sampling

_Request = tuple[list[int], Sampling, "asyncio.Future[Completion]"]


class GreedyEngine:
    """A model folder, decoded greedily in batches of up to `batch` requests."""

    def __init__(self, folder: Path, batch: int = 64) -> None:
        self._folder = folder
        self._batch = batch
        self._model: Qwen2ForCausalLM | None = None
        self._waiting: list[_Request] = []
        self._worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the model. Idempotent."""
        if self._model is None:
            self._model = Qwen2ForCausalLM.from_pretrained(self._folder, dtype=torch.float32).eval()

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids` greedily; the temperature must be 0.

        Raises:
            ValueError: sampling was asked for.
        """
        if sampling.temperature > 0:
            raise ValueError("GreedyEngine does not sample; use the vllm engine")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, sampling, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return await future

    async def stop(self) -> None:
        """Free the model. Idempotent."""
        self._model = None

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # so that all readings that are ready send their requests
            self._waiting.sort(key=lambda request: len(request[0]))
            now, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
            try:
                responses = self._decode([ids for ids, _, _ in now], [sampling for _, sampling, _ in now])
            except Exception as error:
                for _, _, future in now:
                    future.set_exception(error)
                continue
            for (ids, sampling, future), response in zip(now, responses, strict=True):
                done = bool(response) and response[-1] in sampling.stop_ids
                if not future.cancelled():
                    future.set_result(Completion(response, "stop" if done else "length", len(ids)))

    @torch.inference_mode()
    def _decode(self, prompts: list[list[int]], sampling: list[Sampling]) -> list[list[int]]:
        assert self._model is not None, "start the engine first"
        longest = max(map(len, prompts))
        # Prompts are padded on the left, so that all responses begin at one place.
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        position = (seen.cumsum(-1) - 1).clamp(min=0)
        responses: list[list[int]] = [[] for _ in prompts]
        going = list(range(len(prompts)))
        cache = None
        while going:
            out = self._model(
                input_ids=ids,
                attention_mask=seen,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            best = out.logits[:, -1].argmax(-1)
            keep = []
            for row, (request, token) in enumerate(zip(going, best.tolist(), strict=True)):
                responses[request].append(token)
                limit = sampling[request]
                if token not in limit.stop_ids and len(responses[request]) < limit.max_tokens:
                    keep.append(row)
            going = [going[row] for row in keep]
            rows = torch.tensor(keep, dtype=torch.long)
            cache.batch_select_indices(rows)
            ids, position = best[rows][:, None], position[rows][:, -1:] + 1
            seen = torch.cat([seen[rows], torch.ones(len(keep), 1, dtype=seen.dtype)], dim=-1)
        return responses
