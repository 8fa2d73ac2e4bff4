"""Commands in this process: for those that start nothing, as what only shows what is stored, or refuses wrong use."""

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest.mock import patch

import pytest

from pipelines.cli.main import main
from tests.support.pages import ROOT


def run_here(*argv: str, status: int = 0, **variables: str) -> tuple[str, str]:
    """Run a command as the shell would in the checkout; return what it prints and what it says of errors.

    Args:
        argv: of the command.
        status: that it must end with.
        variables: of its environment, beside those of this process.
    """
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with (
        patch.dict(os.environ, variables),
        patch.object(sys, "argv", ["memagent", *argv]),
        chdir(ROOT),
        redirect_stdout(out),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        main()
    out.flush()
    said = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert (end.value.code or 0) == status, f"status {end.value.code}\n{errors.getvalue()}\n{said[-1000:]}"
    return said, errors.getvalue()
