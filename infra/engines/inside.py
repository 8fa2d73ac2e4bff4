"""What runs in vLLM's own processes. They import it by name (`worker_extension_cls`), nothing else does."""

from infra.engines.lifeline import end_with_owner
from infra.learner.broadcast import Receiving


class Inside(Receiving):
    """What vLLM's workers can do beside their own."""


end_with_owner()
