"""Multi-Conv DAPO (MemAgent, arXiv 2507.02259, section 3.2; DAPO, arXiv 2503.14476).

Every conversation of a reading has a context of its own, and the reward of the final answer goes to all
of them. Each piece is one short file: what was read (`trajectories`), how it is paid (`rewards`), how
groups are compared (`advantages`), which groups teach (`groups`), how conversations are laid out
(`packing`), and what is minimised (`loss`).
"""
