"""``python -m pipelines.cli``: the command line."""

from pipelines.cli.main import main

main()
