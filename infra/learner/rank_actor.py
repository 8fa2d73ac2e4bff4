"""The Ray actor of a rank of the learner: what it takes from a store, and what it puts there."""

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.learner.checkpoint import INDEX, read_index
from infra.learner.rank import Learner, Rank
from infra.learner.weights import Rendezvous, memory_folder
from infra.models import local_folder
from infra.readers import ReaderSpec
from infra.store.location import Store
from infra.system.processes import usable_cores
from memagent.errors import TrainingError
from memagent.rl.config import Recipe


class RankActor(Learner):
    """A rank whose model and checkpoints are in a store, given by its URL and a path in it."""

    def __init__(self) -> None:
        """Set up; `begin` loads the model, once the address of the first rank is known."""
        self._uploads = ThreadPoolExecutor(1)
        self._upload: Future[None] | None = None

    def address(self) -> tuple[str, int]:
        """Return an address of this machine with a free port, as rendezvous."""
        import ray

        with socket.socket() as sock:
            sock.bind(("", 0))
            return ray.util.get_node_ip_address(), sock.getsockname()[1]

    def begin(self, reader: ReaderSpec, recipe: Recipe, index: int, address: str, port: int) -> None:
        """Load the model, which is fetched to this node if need be, and join the other ranks."""
        world = recipe.learner.world_size
        torch.set_num_threads(recipe.learner.threads or max(1, usable_cores() // world))
        super().__init__(str(local_folder(reader.folder)), recipe, Rank(index, world, address, port))

    def weights(self) -> dict[str, Any]:
        """Return the model's files, or those of its adapter, as references; empty on all ranks but the first."""
        import ray

        folder = memory_folder()
        try:
            if self._recipe.learner.weight_sync == "adapters":
                self.export_adapter(folder)
            else:
                self.export(folder, as_trained=True)
            # Arrays: Ray maps them into the engines' processes, and copies bytes onto the heap of each.
            return {file.name: ray.put(np.fromfile(file, np.uint8)) for file in sorted(folder.iterdir())}
        finally:
            shutil.rmtree(folder)

    def meeting(self, engines: int) -> Rendezvous:
        """Return the rendezvous at which so many engine processes receive the current weights from the first rank."""
        return Rendezvous(*self.address(), 1 + engines, self.layout())

    def export_to(self, url: str, *parts: str, adapter: bool = False) -> None:
        """Write the model folder, or that of LoRA's factors.

        Raises:
            TrainingError: it cannot be written.
        """

        def files(folder: Path) -> list[Path]:
            (self.export_adapter if adapter else self.export)(folder)
            return sorted(folder.iterdir())

        _put(files, url, parts)

    def save(self, url: str, *parts: str) -> None:
        """Begin to write this rank's share of a checkpoint, while training goes on; `saved` waits for it.

        Raises:
            TrainingError: the one before it cannot be written.
        """
        self.saved()
        self._upload = self._uploads.submit(_put, self.snapshot().write, url, parts)

    def saved(self) -> None:
        """Wait until what `save` began is in the store.

        Raises:
            TrainingError: it cannot be written.
        """
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.result()

    def load_from(self, url: str, *parts: str) -> None:
        """Go on from a checkpoint, of which this rank fetches a share.

        Raises:
            TrainingError: it is incomplete, or of another model.
        """
        store = Store(url)
        with tempfile.TemporaryDirectory() as made:
            try:
                store.get_file(Path(made) / INDEX, *parts, INDEX)
                for name in read_index((Path(made) / INDEX).read_bytes()).files_of(self._rank.index, self._rank.world):
                    store.get_file(Path(made) / name, *parts, name)
            except (FileNotFoundError, ValueError) as error:
                raise TrainingError(f"checkpoint {'/'.join(parts)} is not whole: {error}") from error
            self.load(Path(made))


def _put(files: Callable[[Path], Iterable[Path]], url: str, parts: Sequence[str]) -> None:
    """Write the files that `files` makes in a folder into a store, in its order."""
    try:
        with tempfile.TemporaryDirectory() as made:
            for file in files(Path(made)):
                Store(url).put_file(file, *parts, file.name)
                file.unlink()
    except OSError as error:
        raise TrainingError(f"{'/'.join(parts)} cannot be written to {url}: {error}") from error
