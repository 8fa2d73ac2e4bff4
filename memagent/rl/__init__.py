"""Multi-Conv DAPO (MemAgent, arXiv 2507.02259, section 3.2; DAPO, arXiv 2503.14476).

Every conversation of a reading has a context of its own, and the reward of the final answer goes to all
of them. One short file each: `trajectory` with its advantage, `reward`, `rollout` (groups and batches), `packing`
(micro-batches) and `loss`.
"""
