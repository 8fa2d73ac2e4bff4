"""``python -m memagent``: the command line.

It is in a package above this one, which nothing here may import: it is found as the console script is.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution


def main() -> None:
    """Run the installed command; without an installation say how to make one."""
    try:
        (command,) = distribution("memagent").entry_points.select(group="console_scripts", name="memagent")
    except (PackageNotFoundError, ValueError):
        sys.exit(
            "memagent: it is not installed for this Python; run `make setup`, or `pip install --no-deps --editable .`"
        )
    command.load()()


if __name__ == "__main__":
    main()
