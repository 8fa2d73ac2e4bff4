"""Extension of vLLM's worker processes, which import it by name (`worker_extension_cls`)."""

from typing import Any

from infra.learner.weights import Rendezvous, receive
from infra.system.processes import end_with_owner


class WeightSyncWorker:
    """Adds the loading of other weights of the same model to vLLM's workers."""

    rank: int
    device: Any
    model_runner: Any

    def take_weights(self, folder: str) -> None:
        """Load the weights of a model folder."""
        self._load(weights_path=folder)

    def receive_weights(self, meeting: dict[str, Any], first: int) -> None:
        """Load weights that are broadcast; this engine's processes are receivers number `first` and following.

        `meeting` holds a `Rendezvous`'s fields: vLLM brings plain data from process to process.
        """
        self._load(weights_iterator=receive(Rendezvous(**meeting), first + self.rank, self.device))

    def _load(self, **weights: Any) -> None:
        self.model_runner.reload_weights(**weights)
        for layer in self.model_runner.get_model().modules():
            # On CPU vLLM uses packed copies of the weights, renewed when a layer's weights are loaded. A head tied to
            # the embedding is never loaded, and would keep its initial copy.
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)


end_with_owner()
