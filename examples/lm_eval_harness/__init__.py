"""Samples of `memagent evaluate` as tasks of lm-evaluation-harness (docs/serve.md)."""
