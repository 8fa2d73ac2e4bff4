"""The Ray actor around a rank of the learner: what it takes from a store, and what it puts there."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.learner.weights import memory_folder
from infra.models import local_folder
from infra.readers import ReaderSpec
from infra.store.location import Store
from infra.system.processes import usable_cores
from memagent.errors import TrainingError
from memagent.rl.config import Recipe
from memagent.rl.packing import Packed

if TYPE_CHECKING:
    from infra.learner.checkpoint import Snapshot
    from infra.learner.weights import Rendezvous


class RankActor:
    """One rank in a process of its own."""

    def __init__(self) -> None:
        self._upload: Upload | None = None

    def address(self) -> tuple[str, int]:
        """Return an address of this machine with a free port, as rendezvous."""
        import ray

        with socket.socket() as sock:
            sock.bind(("", 0))
            return ray.util.get_node_ip_address(), sock.getsockname()[1]

    def begin(self, reader: ReaderSpec, recipe: Recipe, index: int, address: str, port: int) -> None:
        """Load the model, which is fetched to this node if need be, and join the other ranks."""
        import torch

        from infra.learner.rank import Learner, Rank

        world = recipe.learner.world_size
        torch.set_num_threads(recipe.learner.threads or max(1, usable_cores() // world))
        self._learner = Learner(str(local_folder(reader.folder)), recipe, Rank(index, world, address, port))
        self._rank, self._world = index, world

    def score(self, rows: Sequence[Packed]) -> list[list[float]]:
        """See `Learner.score`."""
        return self._learner.score(rows)

    def learn(self, rows: Sequence[Packed], tokens: int, old: Sequence[list[float]] | None) -> dict[str, float]:
        """See `Learner.learn`."""
        return self._learner.learn(rows, tokens, old)

    def weights(self) -> dict[str, Any]:
        """Return the model's files as references; empty on all ranks but the first."""
        import ray

        folder = memory_folder()
        try:
            self._learner.export(folder, as_trained=True)
            return {file.name: ray.put(file.read_bytes()) for file in sorted(folder.iterdir())}
        finally:
            shutil.rmtree(folder)

    def meeting(self, engines: int) -> "Rendezvous":
        """Return the rendezvous at which so many engine processes receive the current weights."""
        from infra.learner.weights import Rendezvous

        return Rendezvous(*self.address(), 1 + engines, self._learner.layout())

    def send(self, meeting: "Rendezvous") -> None:
        """See `Learner.send`."""
        self._learner.send(meeting)

    def offload(self) -> None:
        """See `Learner.offload`."""
        self._learner.offload()

    def reload(self) -> None:
        """See `Learner.reload`."""
        self._learner.reload()

    def export(self, url: str, *parts: str) -> None:
        """Write the model folder into a store."""
        self._write(self._learner.export, Store(url), parts)

    def export_adapter(self, url: str, *parts: str) -> None:
        """Write the adapter folder into a store."""
        self._write(self._learner.export_adapter, Store(url), parts)

    @staticmethod
    def _write(export: Callable[[Path], None], store: Store, parts: tuple[str, ...]) -> None:
        with tempfile.TemporaryDirectory() as made:
            export(Path(made))
            for file in sorted(Path(made).iterdir()):
                store.put_file(file, *parts, file.name)

    def save(self, url: str, *parts: str) -> None:
        """Begin to write this rank's share of a checkpoint into a store; `saved` waits for it."""
        self.saved()
        self._upload = Upload(self._learner.snapshot(), Store(url), parts)

    def saved(self) -> None:
        """Wait until what `save` began is in the store. Raises what writing raised."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.wait()

    def load(self, url: str, *parts: str) -> None:
        """Go on from a checkpoint in a store, of which this rank fetches a share."""
        from infra.learner.checkpoint import INDEX, read_index

        store = Store(url)
        with tempfile.TemporaryDirectory() as made:
            try:
                store.get_file(Path(made) / INDEX, *parts, INDEX)
                for name in read_index((Path(made) / INDEX).read_bytes()).files_of(self._rank, self._world):
                    store.get_file(Path(made) / name, *parts, name)
            except (FileNotFoundError, ValueError) as error:
                raise TrainingError(f"checkpoint {'/'.join(parts)} is not whole: {error}") from error
            self._learner.load(Path(made))

    def stop(self) -> None:
        """Leave the process group."""
        self._learner.stop()


class Upload:
    """Writes a snapshot into a store on a thread of its own."""

    def __init__(self, snapshot: "Snapshot", store: Store, parts: Sequence[str]) -> None:
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(snapshot, store, tuple(parts)), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end; raise what writing raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, snapshot: "Snapshot", store: Store, parts: tuple[str, ...]) -> None:
        try:
            with tempfile.TemporaryDirectory() as made:
                for file in snapshot.write(Path(made)):
                    store.put_file(file, *parts, file.name)
                    file.unlink()
        except Exception as error:
            self._error = error
