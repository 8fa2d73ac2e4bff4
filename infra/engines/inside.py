"""What runs in vLLM's own processes. They import it by name (`worker_extension_cls`), nothing else does."""

from infra.learner.broadcast import Receiving
from infra.lifeline import end_with_owner


class Inside(Receiving):
    """What vLLM's workers can do beside their own."""


end_with_owner()
