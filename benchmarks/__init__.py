"""Measured side by side; each benchmark writes its numbers to docs/results/, of which docs/results.md is made."""
