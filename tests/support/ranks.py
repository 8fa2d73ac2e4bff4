"""Processes of tests that learn or send weights: Torch and DeepSpeed, which take longest, are imported once for all."""

import multiprocessing

RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["deepspeed", "infra.learner.rank"])
