"""Prefect's server for the user of this machine: `prefect server start`, and besides it answers to its own names only.

A web page that has its own name resolve to this machine would count as the server's own origin in a browser (DNS
rebinding); it does not know the token, and is not answered at all.

    python -m pipelines.flows.serve PORT

Token, origins and the page's address come from ``PREFECT_`` variables: see `variables`.
"""

import sys

from memagent.errors import ConfigError

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")


def variables(port: int, auth: str) -> dict[str, str]:
    """Return the environment of a server at a port, whose clients know the ``user:token`` of `auth`."""
    return {
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        # Where the page in the browser finds the API: it would be the default port, or what another server's user set.
        "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in _NAMES),
    }


def wait_until_ready() -> None:
    """Wait for the configured server; where none is, start the temporary one that a flow would start."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.hello()


def main(port: int) -> None:
    """Serve until terminated."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    settings = get_current_settings().server.api
    if settings.auth_string is None:
        raise ConfigError("this server is not started without PREFECT_SERVER_API_AUTH_STRING: use `memagent up`")
    # Around the app, not in it: the server's own services call the app under a name of their own.
    app = TrustedHostMiddleware(create_app(final=True), allowed_hosts=_NAMES, www_redirect=False)
    uvicorn.run(
        app,
        host=HOST,
        port=port,
        timeout_keep_alive=settings.keepalive_timeout,
        ws_ping_interval=settings.websocket_ping_interval,
        ws_ping_timeout=settings.websocket_ping_timeout,
        log_level="warning",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
