"""``python -m memagent``: the command line.

It lives in `pipelines`, which this package may not import, so it is found by its console script's entry point.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution


def main() -> None:
    """Run the installed command; if it is not installed, say how to install it."""
    try:
        (command,) = distribution("memagent").entry_points.select(group="console_scripts", name="memagent")
    except (PackageNotFoundError, ValueError):
        sys.exit(
            "memagent: it is not installed for this Python; run `make setup`, or `pip install --no-deps --editable .`"
        )
    command.load()()


if __name__ == "__main__":
    main()
