"""The commands ``serve``, ``review``, ``metrics`` and ``mcp``. Importing them loads nothing heavy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.options import HOST, Common, HostOption, UrlOption, takes

if TYPE_CHECKING:
    from pipelines.web.server import ServerPart

_SPLITS = ("last-paragraph", "last-line")
_PARTS = ("api", "metrics", "review")
ReviewerOption = Annotated[
    list[str] | None, typer.Option("--reviewer", help="Let another person review; may be repeated.")
]


@takes("model", "engine")
def serve(
    given: Common,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Listen on this port.")] = 4400,
    part: Annotated[
        list[str] | None, typer.Option(help="Serve only this part: api, metrics or review; may be repeated.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="How to split the last message into document and question: last-paragraph, last-line."),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Read this many requests at once; refuse more.")] = 32,
    max_bytes: Annotated[int, typer.Option(min=1, help="Refuse requests larger than this many bytes.")] = 64 * 2**20,
    reviewer: ReviewerOption = None,
    host: HostOption = HOST,
    url: UrlOption = None,
) -> None:
    """Serve OpenAI endpoint, MCP tools, review pages and metrics."""
    if split is not None and split not in _SPLITS:
        raise UsageError(f"--split {split}: one of {', '.join(_SPLITS)}")
    chosen = part or _PARTS
    if unknown := [name for name in chosen if name not in _PARTS]:
        raise UsageError(f"--part {unknown[0]}: one of {', '.join(_PARTS)}")
    from pipelines.web.address import Address
    from pipelines.web.server import serve as run

    settings = given.settings

    def parts(address: Address) -> "list[ServerPart]":
        made: list[ServerPart] = []
        if "api" in chosen:
            from pipelines.web.api.app import api_part
            from pipelines.web.api.reader import HeldReader

            reader = HeldReader(settings, split)  # type: ignore[arg-type]
            made.append(api_part(reader, address, at_once=at_once, most_bytes=max_bytes))
        if "metrics" in chosen:
            from pipelines.web.metrics import metrics_part

            made.append(metrics_part(settings, address, None))
        if "review" in chosen:  # last: it has all paths that the others leave
            from pipelines.web.review.app import review_part

            made.append(review_part(settings, reviewer or (), address))
        return made

    address = Address(port, host, url)
    address.check()
    run(parts, address)


@takes("model", "engine")
def review(
    given: Common,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Listen on this port.")] = 4300,
    reviewer: ReviewerOption = None,
    link: Annotated[str | None, typer.Option(help="Print a new login link for this person; start nothing.")] = None,
    host: HostOption = HOST,
    url: UrlOption = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the pages in the browser.")] = False,
) -> None:
    """Serve local pages for checking answers against documents."""
    from pipelines.web.access import login_link
    from pipelines.web.address import Address

    address = Address(port, host, url)
    address.check()
    if link is not None:
        typer.echo(login_link(address, link))
        return
    from pipelines.web.review.app import review_part
    from pipelines.web.server import serve as run

    settings = given.settings
    run(lambda at: [review_part(settings, reviewer or (), at, show=open_)], address)


@takes()
def metrics(
    given: Common,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Listen on this port; 0: any free one.")] = 9464,
    host: Annotated[str, typer.Option(help="Listen on this address; 0.0.0.0 in a container.")] = HOST,
    token_file: Annotated[
        Path | None, typer.Option(help="Read Prometheus's token from this file; default: your own.")
    ] = None,
    days: Annotated[float, typer.Option(min=0, help="Count runs of the last days.")] = 30,
) -> None:
    """Serve the store's metrics to Prometheus."""
    from pipelines.web.address import Address
    from pipelines.web.metrics import metrics_part
    from pipelines.web.server import serve as run

    settings = given.settings
    # Prometheus calls a pod by its address: the token alone decides who reads metrics on another address.
    names = None if host == HOST else ["*"]
    run(lambda at: [metrics_part(settings, at, token_file, days)], Address(port, host), names)


@takes("model", "engine")
def mcp(given: Common) -> None:
    """Serve the store as MCP tools on standard input and output."""
    from pipelines.web.api.mcp_server import serve_stdio

    serve_stdio(given.settings)
