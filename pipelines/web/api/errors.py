"""Errors as OpenAI's API gives them: a status, and an object with message, type, parameter and code."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.responses import JSONResponse

from memagent.errors import EngineDied, MemagentError, RequestError, UsageError

_log = logging.getLogger("memagent.api")


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None, retry_after: int = 0
    ) -> None:
        """Say what is wrong.

        Args:
            status: of HTTP; from 500 on the server is at fault.
            message: for people.
            code: a stable word for programs.
            param: the parameter that is wrong.
            retry_after: seconds after which the client may try again; 0: it is not told.
        """
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> Mapping[str, object]:
        """Return the error object."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the error as a response."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def api_error(error: BaseException) -> ApiError:
    """Classify what a reading has raised; what nobody expected is logged, and not told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        deepest = max(error.errors(), key=lambda one: len(one["loc"]))  # the part of a message, not the message
        place = ".".join(map(str, deepest["loc"]))
        message = deepest["msg"].removeprefix("Value error, ")
        return ApiError(400, f"{place or 'the request'}: {message}", "invalid_value", place or None)
    if isinstance(error, UsageError | RequestError):
        return ApiError(400, str(error), "cannot_be_read")
    if isinstance(error, EngineDied):
        return ApiError(503, str(error), "engine_died")
    if isinstance(error, MemagentError):
        return ApiError(503, str(error), "reading_failed")
    _log.error("a request failed", exc_info=error)
    return ApiError(500, f"the server failed ({type(error).__name__}); its log says where", "internal_error")
