"""A batched engine on PyTorch alone, for the benchmarks of a GPU on which vLLM is not installed.

Models of Llama's family. Requests that wait together are continued together: their prompts are computed first, then a
token at a time, on a GPU as a CUDA graph.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from memagent.reading.engine import Completion, Sampling

_LOOK = 4
"""Tokens between looks whether all responses have ended."""
_CHUNK = 128
"""Prompts that are computed at once."""


@dataclass
class _Waiting:
    ids: list[int]
    sampling: Sampling
    done: "asyncio.Future[Completion]"


@dataclass
class _State:
    """What is computed with; B rows, G new tokens at most, then S - G places for the prompt."""

    keys: Tensor
    """[layers, B, key heads, S, head]."""
    values: Tensor
    lengths: Tensor
    """[B] of the prompts."""
    token: Tensor
    """[B] the last one."""
    step: Tensor
    """[] tokens that were sampled so far, less one."""
    temperature: Tensor
    """[B]; 0: greedy."""
    out: Tensor
    """[G, B] tokens."""
    logprobs: Tensor
    """[G, B]."""
    open: Tensor
    """[B] whether the response goes on."""


@dataclass
class TorchEngine:
    """Continues up to `rows` prompts at once."""

    folder: Path
    rows: int = 512
    prompt: int = 640
    """Tokens of a prompt at most."""
    new: int = 128
    """Tokens of a response at most."""
    stops: Sequence[int] = ()
    version: str = ""
    _queue: list[_Waiting] = field(default_factory=list)
    _task: "asyncio.Task[None] | None" = None
    _graph: "torch.cuda.CUDAGraph | None" = None

    def __post_init__(self) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        model = AutoModelForCausalLM.from_pretrained(str(self.folder), dtype=self._dtype)
        config = model.config
        assert isinstance(config, LlamaConfig), "models of Llama's family alone"
        self._config = config
        self._weights = {name: one.detach().to(self._device) for name, one in model.named_parameters()}
        del model
        heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        rotary = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2, device=self._device).float() / size)
        angles = torch.outer(torch.arange(self.prompt + self.new, device=self._device).float(), rotary)
        self._cos, self._sin = (f(torch.cat((angles, angles), -1)).to(self._dtype) for f in (torch.cos, torch.sin))
        shape = (config.num_hidden_layers, self.rows, heads, self.new + self.prompt, size)

        def zeros(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=self._device)

        self._state = _State(
            zeros(*shape, dtype=self._dtype),
            zeros(*shape, dtype=self._dtype),
            lengths=zeros(self.rows) + 1,
            token=zeros(self.rows),
            step=zeros(),
            temperature=zeros(self.rows, dtype=torch.float32),
            out=zeros(self.new, self.rows),
            logprobs=zeros(self.new, self.rows, dtype=torch.float32),
            open=zeros(self.rows, dtype=torch.bool),
        )
        self._stops = torch.tensor(list(self.stops), device=self._device)

    async def start(self) -> None:
        """Do nothing: the weights are loaded."""

    async def stop(self) -> None:
        """Do nothing: memory goes with the object."""

    def take(self, weights: Iterable[tuple[str, Tensor]], version: str) -> None:
        """Change the weights, by their names in the model's folder."""
        for name, weight in weights:
            self._weights[name].copy_(weight)
        self.version = version

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue a prompt, together with all that wait."""
        if len(ids) > self.prompt or sampling.max_tokens > self.new:
            raise ValueError(f"{len(ids)} tokens and {sampling.max_tokens} more do not fit")
        waiting = _Waiting(ids, sampling, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._serve())
        return await waiting.done

    async def _serve(self) -> None:
        while self._queue:
            before = 0
            while len(self._queue) != before:
                before = len(self._queue)
                for _ in range(4):  # what was just answered asks again
                    await asyncio.sleep(0)
            now, self._queue = self._queue[: self.rows], self._queue[self.rows :]
            for one, completion in zip(now, self._continue(now), strict=True):
                if not one.done.done():
                    one.done.set_result(completion)
            await asyncio.sleep(0)

    @torch.inference_mode()
    def _continue(self, batch: Sequence[_Waiting]) -> list[Completion]:
        state = self._state
        lengths = [len(one.ids) for one in batch]
        state.lengths.fill_(1)
        state.lengths[: len(batch)] = torch.tensor(lengths, device=self._device)
        state.temperature.zero_()
        state.temperature[: len(batch)] = torch.tensor([one.sampling.temperature for one in batch], device=self._device)
        state.open.zero_()
        state.open[: len(batch)] = True
        last = torch.cat(
            [self._prefill(first, batch[first : first + _CHUNK]) for first in range(0, len(batch), _CHUNK)]
        )
        state.step.zero_()
        self._sample(F.pad(last, (0, 0, 0, self.rows - len(batch))))
        most = max(one.sampling.max_tokens for one in batch)
        for made in range(1, most):
            if made % _LOOK == 0 and not state.open.any():
                break
            self._advance()
        out, scores = state.out.T.tolist(), state.logprobs.T.tolist()
        stops = set(self.stops)
        completions = []
        for one, ids, logprobs in zip(batch, out, scores, strict=False):
            end = next((i + 1 for i, token in enumerate(ids[: one.sampling.max_tokens]) if token in stops), 0)
            size = end or one.sampling.max_tokens
            reason = "stop" if end else "length"
            completions.append(
                Completion(ids[:size], reason, len(one.ids), logprobs=logprobs[:size], weight_version=self.version)
            )
        return completions

    def _prefill(self, first: int, batch: Sequence[_Waiting]) -> Tensor:
        """Compute prompts into rows from `first` on; return the last states, [n, hidden]."""
        size = max(len(one.ids) for one in batch)
        ids = torch.zeros(len(batch), size, dtype=torch.long)
        for row, one in enumerate(batch):
            ids[row, : len(one.ids)] = torch.tensor(one.ids)
        places = torch.arange(size, device=self._device)
        rows = slice(first, first + len(batch))

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            kept = slice(self.new, self.new + size)
            self._state.keys[layer, rows, :, kept] = key
            self._state.values[layer, rows, :, kept] = value
            groups = query.shape[1] // key.shape[1]
            key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

        states = self._layers(ids.to(self._device), places[None].expand(len(batch), -1), attend)
        last = self._state.lengths[rows] - 1
        return states[torch.arange(len(batch), device=self._device), last]

    def _advance(self) -> None:
        """Sample one token more of each row."""
        if self._device.type == "cpu":
            self._step()
            return
        if self._graph is None:
            kept = self._state.step.clone(), self._state.token.clone(), self._state.open.clone()
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()
            for mine, before in zip((self._state.step, self._state.token, self._state.open), kept, strict=True):
                mine.copy_(before)
        self._graph.replay()

    def _step(self) -> None:
        state = self._state
        places = torch.arange(self.new + self.prompt, device=self._device)
        seen = (places <= state.step) | ((places >= self.new) & (places - self.new < state.lengths[:, None]))
        bias = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, -torch.inf)[:, None, None]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = state.keys[layer], state.values[layer]
            keys.index_copy_(2, state.step[None], key)
            values.index_copy_(2, state.step[None], value)
            rows, heads, _, size = query.shape
            grouped = query.reshape(rows, keys.shape[1], -1, size)
            scores = (grouped @ keys.transpose(-1, -2)).float() * size**-0.5 + bias
            mixed: Tensor = scores.softmax(-1).to(values.dtype) @ values
            return mixed.reshape(rows, heads, 1, size)

        # The token that was sampled last is at its prompt's length and the number of tokens since.
        states = self._layers(state.token[:, None], (state.lengths + state.step)[:, None], attend)
        state.step += 1
        self._sample(states[:, 0])

    def _sample(self, states: Tensor) -> None:
        state = self._state
        head = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        logits = (states @ head.T).float()
        heat = torch.where(state.temperature > 0, state.temperature, 1.0)[:, None]
        scores = (logits / heat).log_softmax(-1)
        noise = -torch.empty_like(scores).exponential_().log()
        drawn = (scores + noise * (state.temperature > 0)[:, None]).argmax(-1)
        state.token.copy_(drawn)
        state.out.index_copy_(0, state.step[None], drawn[None])
        state.logprobs.index_copy_(0, state.step[None], scores.gather(-1, drawn[:, None])[:, 0][None])
        state.open &= ~torch.isin(drawn, self._stops)

    def _layers(
        self, ids: Tensor, positions: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Return the last states [rows, tokens, hidden] of ids and positions [rows, tokens]."""
        weights, config = self._weights, self._config
        size = config.hidden_size // config.num_attention_heads
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]

        def turned(x: Tensor) -> Tensor:
            half = size // 2
            return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

        def normed(x: Tensor, name: str) -> Tensor:
            return F.rms_norm(x, (config.hidden_size,), weights[f"{name}.weight"], config.rms_norm_eps)

        def split(x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:-1], -1, size).transpose(1, 2)

        x = weights["model.embed_tokens.weight"][ids]
        for layer in range(config.num_hidden_layers):
            at = f"model.layers.{layer}"
            y = normed(x, f"{at}.input_layernorm")
            query, key, value = (split(y @ weights[f"{at}.self_attn.{name}_proj.weight"].T) for name in "qkv")
            mixed = attend(layer, turned(query), turned(key), value)
            x = x + mixed.transpose(1, 2).flatten(2) @ weights[f"{at}.self_attn.o_proj.weight"].T
            y = normed(x, f"{at}.post_attention_layernorm")
            gate, up = (y @ weights[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
        return normed(x, "model.norm")
