"""Measured side by side; the numbers stand in docs/results.md with the commands that gave them."""
