"""Any OpenAI-compatible server as an engine."""

import json
import os
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from memagent.config import EngineConfig
from memagent.errors import ConfigError, RequestError, RetryableError
from memagent.reading.engine import Completion, EngineRequest, Sampling
from memagent.reading.tokens import Tokenizer
from memagent.records import Json

_ATTEMPTS = 6
_LISTING_SECONDS = 10.0


class OpenAIEngine:
    """Requests over HTTP, with token ids if the server accepts them.

    ``ids``: completions with token ids in and out (vLLM; exact). ``text``: completions with the
    prompt's text. ``chat``: the prompt's text as one user message; needs a template with ``chat = true``.
    With the last two, response ids are made by tokenising the response's text, and log-probabilities are not known.
    """

    def __init__(self, model: str, config: EngineConfig, tokenizer: Tokenizer) -> None:
        self._model = config.served_model or model
        self._config = config
        self._tokenizer = tokenizer
        self._client: Any = None

    async def start(self) -> None:
        """Connect, and check that the server has the model.

        Raises:
            ConfigError: the server does not answer, refuses the key, or serves other models.
        """
        import openai

        if self._client is not None:
            return
        # A local server needs no key, but the client requires one.
        key = os.environ.get(self._config.api_key_env) or "none"
        self._client = openai.AsyncOpenAI(
            base_url=self._config.base_url, api_key=key, timeout=self._config.timeout_seconds, max_retries=0
        )
        try:
            served = [model.id async for model in self._client.models.list()]
        except openai.AuthenticationError as error:
            raise ConfigError(
                f"{self._config.base_url} refuses the key in ${self._config.api_key_env}: set it to a valid key"
            ) from error
        except openai.OpenAIError as error:
            raise ConfigError(f"no OpenAI-compatible server answers at {self._config.base_url}: {error}") from error
        if served and self._model not in served:
            raise ConfigError(
                f"{self._config.base_url} serves {', '.join(served)}, not {self._model}: set engine.served_model"
            )

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; retryable requests are sent again with growing pauses."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(RetryableError),
            wait=wait_random_exponential(multiplier=0.5, max=30),
            stop=stop_after_attempt(_ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                return await self._send(ids, sampling)
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send(self, ids: list[int], sampling: Sampling) -> Completion:
        import openai

        try:
            if self._config.protocol == "chat":
                return await self._chat(ids, sampling)
            return await self._complete(ids, sampling)
        except (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError) as error:
            raise RetryableError(f"{type(error).__name__}: {error}") from error
        except openai.APIStatusError as error:
            kind = RetryableError if error.status_code in (408, 409) else RequestError
            raise kind(f"HTTP {error.status_code}: {error.message}") from error

    async def _complete(self, ids: list[int], sampling: Sampling) -> Completion:
        exact = self._config.protocol == "ids"
        extra: dict[str, Any] = {}
        if exact:
            extra = {
                "stop_token_ids": list(sampling.stop_ids),
                "return_token_ids": True,
                "skip_special_tokens": False,
                "add_special_tokens": False,
            }
        answer = await self._client.completions.create(
            model=self._model,
            prompt=ids if exact else self._tokenizer.decode(ids, special=True),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            logprobs=0 if sampling.logprobs and exact else None,
            stop=None if exact else self._stops(sampling),
            extra_body=extra,
        )
        choice = answer.choices[0]
        out = getattr(choice, "token_ids", None) if exact else self._tokenizer.encode(choice.text)
        if out is None:
            raise RequestError(
                f"{self._config.base_url} returns no token ids: set engine.protocol to text or chat for this server"
            )
        scores = choice.logprobs.token_logprobs if sampling.logprobs and choice.logprobs else None
        return _completion(list(out), choice.finish_reason, answer.usage, prompt_tokens=len(ids), logprobs=scores)

    async def _chat(self, ids: list[int], sampling: Sampling) -> Completion:
        answer = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": self._tokenizer.decode(ids, special=True)}],
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
        )
        choice = answer.choices[0]
        out = self._tokenizer.encode(choice.message.content or "")
        return _completion(out, choice.finish_reason, answer.usage, prompt_tokens=len(ids), logprobs=None)

    def _stops(self, sampling: Sampling) -> list[str] | None:
        return [self._tokenizer.decode([stop], special=True) for stop in sampling.stop_ids] or None


def make_engine(request: EngineRequest) -> OpenAIEngine:
    """Make the engine; it connects when it is started."""
    return OpenAIEngine(request.model, request.config, request.tokenizer())


def listed_weights(config: EngineConfig, served: str) -> str:
    """Return what the server's model listing says about the weights behind a served name.

    vLLM lists the folder or hub name as ``root`` and a LoRA's base as ``parent``. Empty if the server says no more or
    does not answer; `OpenAIEngine.start` reports that.
    """
    import openai

    key = os.environ.get(config.api_key_env) or "none"
    with openai.OpenAI(base_url=config.base_url, api_key=key, timeout=_LISTING_SECONDS, max_retries=0) as client:
        try:
            listing = [entry.model_dump() for entry in client.models.list()]
        except (openai.OpenAIError, ValueError):  # some servers do not answer with a listing
            return ""
    model: Json = next((entry for entry in listing if entry.get("id") == served), {})
    weights = {key: model[key] for key in ("root", "parent") if model.get(key) not in (None, "", served)}
    return json.dumps(weights, sort_keys=True) if weights else ""


def _completion(
    ids: list[int], finish_reason: str | None, usage: Any, prompt_tokens: int, logprobs: list[float] | None
) -> Completion:
    details = getattr(usage, "prompt_tokens_details", None)
    return Completion(
        ids,
        finish_reason or "stop",
        prompt_tokens=usage.prompt_tokens if usage else prompt_tokens,
        cached_tokens=(getattr(details, "cached_tokens", 0) or 0) if details else 0,
        logprobs=logprobs,
    )
