"""The memory agent reads: conversations, prompts, segments and evidence, without a store or a cluster."""
