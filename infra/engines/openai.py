"""Any OpenAI-compatible server as an engine."""

import asyncio
import json
import os
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from memagent.config import EngineConfig, without_login
from memagent.errors import ConfigError, MemagentError, RequestError, RetryableError
from memagent.reading.engine import Completion, EngineRequest, Sampling
from memagent.reading.providers import LIMITS, FailedCall, Reply, ServerTraits, parse
from memagent.reading.tokens import Tokenizer
from memagent.records import Json

_ATTEMPTS = 6
_PAUSE = wait_random_exponential(multiplier=0.5, max=30)
_LISTING_SECONDS = 10.0
_NO_LISTING = (400, 403, 404, 405, 501)
"""Statuses of servers that do not list their models."""
_TRIES = 3
"""Prompts that a server is tried with at most."""


class OpenAIEngine:
    """Requests over HTTP, with token ids if the server accepts them.

    ``ids``: completions with token ids in and out (vLLM; exact). ``text``: completions with the
    prompt's text. ``chat``: the prompt's text as one user message; needs a template with ``chat = true``.
    With the last two, control tokens that a document spells are broken up (`Tokenizer.as_prompt`), response ids are
    made by tokenising the response's text without its reasoning, and log-probabilities are not known. What the server
    refuses is found by the first requests (`server`).
    """

    def __init__(self, model: str, config: EngineConfig, tokenizer: Tokenizer) -> None:
        self._model = config.served_model or model
        self._config = config
        self._tokenizer = tokenizer
        self._client: Any = None
        self._address = without_login(config.base_url)
        """As it is told to people."""
        self._asked, self._answered = False, asyncio.Event()
        self.server = ServerTraits()

    async def start(self) -> None:
        """Connect, and check that the server has the model, if it lists its models.

        Raises ConfigError: the server does not answer, refuses the key, or serves other models.
        """
        import openai

        if self._client is not None:
            return
        # A local server needs no key, but the client requires one.
        key = os.environ.get(self._config.api_key_env) or "none"
        self._client = client = openai.AsyncOpenAI(
            base_url=self._config.base_url, api_key=key, timeout=self._config.timeout_seconds, max_retries=0
        )
        try:
            served = [model["id"] for model in _entries(await client.get("/models", cast_to=object))]
        except openai.AuthenticationError as error:
            raise ConfigError(f"{self._address} refuses the key in ${self._config.api_key_env}: set another") from error
        except openai.OpenAIError as error:
            if getattr(error, "status_code", 0) not in _NO_LISTING:
                why = self._without_key(str(error))
                raise ConfigError(f"no OpenAI-compatible server answers at {self._address}: {why}") from error
            served = []
        self.server.lists = bool(served)
        if served and self._model not in served:
            raise ConfigError(f"{self._address} serves {', '.join(served)}, not {self._model}: set engine.served_model")

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; retryable requests are sent again with growing pauses, or when the server says."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(RetryableError), wait=_pause, stop=self._gives_up, reraise=True
        ):
            with attempt:
                return await self.send(ids, sampling)
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _gives_up(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, RetryableError) and error.after:  # a limit of its rate, which is the same for all requests
            return (state.seconds_since_start or 0.0) + error.after > self._config.timeout_seconds
        return state.attempt_number >= _ATTEMPTS

    async def send(self, ids: list[int], sampling: Sampling, most: int = 10) -> Completion:
        """Continue `ids`, as `generate` does but without waiting for a server that is busy, in `most` requests at most:
        there are several where the server refuses parameters.
        """
        # The first request goes alone: what a server refuses is asked once, and not by all readings side by side.
        if self._asked:
            await self._answered.wait()
        self._asked = True
        try:
            for _ in range(most):
                parameters = self.server.parameters(sampling)
                reply = await self._post(ids, parameters | self._exact(sampling))
                if isinstance(reply, Reply):
                    return self._completion(reply, ids, sampling)
                if not self.server.adapt(reply, parameters):
                    break
        finally:
            self._answered.set()
        assert isinstance(reply, FailedCall)
        raise reply.error(f". {_OTHER_PROTOCOL if self._config.protocol == 'ids' else _CHECK}")

    async def _post(self, ids: list[int], parameters: Json) -> Reply | FailedCall:
        import openai

        prompt = ids if self._config.protocol == "ids" else self._tokenizer.as_prompt(ids)
        path, request = "/completions", {"model": self._model, "prompt": prompt, **parameters}
        if self._config.protocol == "chat":
            path = "/chat/completions"
            request = {"model": self._model, "messages": [{"role": "user", "content": prompt}], **parameters}
        try:
            return parse(200, {}, await self._client.post(path, cast_to=object, body=request))
        except openai.APIStatusError as error:
            said = self._without_key(json.dumps(error.body))
            return parse(error.status_code, error.response.headers, json.loads(said))
        except (openai.APIConnectionError, ValueError) as error:  # of a body that is not the JSON it claims to be
            raise RetryableError(f"{type(error).__name__}: {error}") from error

    def _without_key(self, said: str) -> str:
        """Return what a server says without the key, which some proxies repeat: errors are kept in the store."""
        key = os.environ.get(self._config.api_key_env, "")
        return said.replace(key, "(the key)") if len(key) >= _LEAST_KEY else said

    def _exact(self, sampling: Sampling) -> Json:
        """Return the parameters of token ids and of a response's end, as far as the protocol has them."""
        if self._config.protocol == "ids":
            return _EXACT | {"stop_token_ids": list(sampling.stop_ids)} | ({"logprobs": 0} if sampling.logprobs else {})
        stops = [self._tokenizer.decode([stop], special=True) for stop in sampling.stop_ids]
        return {"stop": stops} if stops and self._config.protocol == "text" else {}

    def _completion(self, reply: Reply, ids: list[int], sampling: Sampling) -> Completion:
        said = self.server.said(reply, sampling)
        exact = self._config.protocol == "ids"
        out = reply.token_ids if exact else self._tokenizer.encode(said)
        if out is None:
            raise RequestError(f"{self._address} returns no token ids. {_OTHER_PROTOCOL}")
        return Completion(
            list(out),
            reply.finish_reason,
            prompt_tokens=reply.prompt_tokens or len(ids),
            cached_tokens=reply.cached_tokens,
            logprobs=reply.logprobs if sampling.logprobs and exact else None,
        )


_LEAST_KEY = 8
"""Characters; a shorter word may be part of others."""
_EXACT = {"return_token_ids": True, "skip_special_tokens": False, "add_special_tokens": False}
_QUESTION, _SENTENCE = "Who keeps the key of the store room?", "Ada Marsh keeps the key of the store room."
_OTHER_PROTOCOL = "If this server takes no token ids, set engine.protocol to text or chat"
_CHECK = "Check engine.base_url (most end in /v1), engine.served_model and engine.protocol"


def make_engine(request: EngineRequest) -> OpenAIEngine:
    """Make the engine; it connects when it is started."""
    return OpenAIEngine(request.model, request.config, request.tokenizer())


async def try_server(request: EngineRequest) -> list[str]:
    """Read a sentence with a server, in at most four calls, and say what the server takes and gives.

    Raises MemagentError: it cannot be read with as configured, and why.
    """
    spec, tokenizer = request.spec(), request.tokenizer()
    ids = spec.prompts.update(tokenizer.encode(_QUESTION), spec.prompts.no_memory, tokenizer.encode(_SENTENCE))
    engine = make_engine(request)
    try:
        await engine.start()
        completion = await engine.send(ids, spec.sampling(spec.config.memory_tokens), _TRIES)
    finally:
        await engine.stop()
    server = engine.server
    if not spec.prompts.body(completion.ids, cut=completion.finish_reason == "length"):
        raise MemagentError(completion.why_empty)
    return [
        "lists its models" if server.lists else "does not list its models",
        f"takes {server.limit}" + ("" if server.limit == LIMITS[0] else f" and not {LIMITS[0]}"),
        *(f"refuses {name}, which is left out" for name in sorted(server.left_out)),
        f"reasoning: {server.reasoning}; none of it is kept" if server.reasoning else "no reasoning",
        "counts tokens" if server.counts else "does not count tokens",
        "log-probabilities" if completion.logprobs else "no log-probabilities, so answers have no confidence",
    ]


def listed_weights(config: EngineConfig, served: str) -> str:
    """Return what the server's model listing says about the weights behind a served name.

    vLLM lists the folder or hub name as ``root`` and a LoRA's base as ``parent``. Empty if the server says no more or
    does not answer; `OpenAIEngine.start` reports that.
    """
    import openai

    key = os.environ.get(config.api_key_env) or "none"
    with openai.OpenAI(base_url=config.base_url, api_key=key, timeout=_LISTING_SECONDS, max_retries=0) as client:
        try:
            listing = _entries(client.get("/models", cast_to=object))
        except (openai.OpenAIError, ValueError):  # some servers do not answer with a listing
            return ""
    model = next((entry for entry in listing if entry["id"] == served), {})
    weights = {key: model[key] for key in ("root", "parent") if model.get(key) not in (None, "", served)}
    return json.dumps(weights, sort_keys=True) if weights else ""


def _entries(listing: Any) -> list[Json]:
    """Return the models of a listing; none: it is something else."""
    data = listing.get("data") if isinstance(listing, dict) else None
    return [model for model in data if isinstance(model, dict) and "id" in model] if isinstance(data, list) else []


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return _PAUSE(state) + (error.after if isinstance(error, RetryableError) else 0.0)
