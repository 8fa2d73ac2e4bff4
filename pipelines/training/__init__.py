"""A training stage: rollouts, learning, validation, and what a run leaves behind."""
