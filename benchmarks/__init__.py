"""Measured side by side; each benchmark writes a record to docs/results/; docs/results.md shows a selection."""
