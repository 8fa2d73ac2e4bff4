"""The command line: `main.app`. Importing it loads nothing heavy."""
