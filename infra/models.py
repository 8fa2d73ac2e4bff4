"""Model folders: version ids, validation, and transfer into and out of the store."""

import hashlib
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from infra.store.location import Store
from memagent.errors import ConfigError
from memagent.records import Json, stable_hash
from memagent.settings import Environment

FILES = ("config.json", "reading.json", "tokenizer.json")
"""Files that a published folder must have besides the weights."""
_OPTIONAL = ("generation_config.json", "tokenizer_config.json")
POLICY_FILE = "policy.json"
"""Holds the lineage and version of a folder."""

_AGAIN = "copy it back, or publish it again"
_HASHED = (".safetensors", "config.json", "tokenizer.json", "generation_config.json")
_KEPT = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md", ".py")


def folder_hash(folder: Path) -> str:
    """Return the version: a 12-digit hash of weights, configuration and tokenizer."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name.endswith(_HASHED):
            total.update(path.name.encode())
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:12]


def check_folder(folder: Path) -> None:
    """Refuse a folder that no engine could load.

    Raises ConfigError: naming the files that are missing, cut off or no JSON.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: give the one that the training has exported")
    missing = [name for name in FILES if not (folder / name).is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        missing.append("model.safetensors")
    for index in folder.glob("*.safetensors.index.json"):
        named = _json(index).get("weight_map", {})
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise ConfigError(f"{index}: its weight_map names no files")
        shards = set(named.values())
        missing += sorted(shards - {path.name for path in weights})
    if missing:
        raise ConfigError(f"{folder} lacks {', '.join(missing)}: export it again, with tokenizer and reading.json")
    for name in (*FILES, *(name for name in _OPTIONAL if (folder / name).is_file())):
        _json(folder / name)
    for path in weights:
        _check_weights(path)


def policy_file(folder: Path) -> Json | None:
    """Return the folder's ``policy.json``; None if it has none. Raises ConfigError: it cannot be used."""
    path = folder / POLICY_FILE
    if not path.is_file():
        return None
    record = _json(path)
    if not isinstance(record.get("name"), str) or not record["name"]:
        raise ConfigError(f"{path} has no name: it must say which line the model is a version of")
    return record


def tokenizer_print(spec: bytes, where: str) -> str:
    """Return the fingerprint of a ``tokenizer.json``, however it is laid out. Raises ConfigError: it is no JSON."""
    return stable_hash(_parsed(spec, where))


def upload(store: Store, folder: Path, path: str, policy: Json) -> None:
    """Copy a model folder into the store, each file whole or not at all, its ``policy.json`` with their hashes last.

    Raises ConfigError: a file is a link out of the folder (and not into the blobs of the Hugging Face cache).
    """
    hashes = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in _KEPT and file.name != POLICY_FILE and not file.name.startswith("."):
            _check_link(file)
            store.put_file(file, path, file.name)
            if file.suffix != ".safetensors":  # these are what the version is a hash of
                hashes[file.name] = _file_hash(file)
    store.write_bytes(json.dumps({**policy, "files": hashes}, indent=2).encode(), path, POLICY_FILE)


def changed_files(folder: Path) -> list[str]:
    """Return the files, other than weights, that are gone or differ from what was published."""
    if not (folder / POLICY_FILE).is_file():
        return []
    hashes = _json(folder / POLICY_FILE).get("files")
    if hashes is None:  # every policy is published with them
        return [POLICY_FILE]
    return [
        name
        for name, published in hashes.items()
        if not ((folder / name).is_file() and _file_hash(folder / name) == published)
    ]


def fetch_folder(store: Store, path: str, policy_id: str) -> Path:
    """Return a published folder as a local path.

    In a local store it is used in place, and its weights, which take long to read, are left to ``memagent check``. From
    S3 it is downloaded once, whole or not at all, into the cache folder, and its bytes are checked against the hash in
    `policy_id`.

    Raises ConfigError: it is gone, or its bytes are not those that were published.
    """
    gone = f"the files of {policy_id} are gone from {store.url}/{path}: memagent policies rollback, or publish it again"
    if not store.is_s3:
        folder = Path(store.path(path))
        if not (folder / "config.json").is_file() or not (folder / "tokenizer.json").is_file():
            raise ConfigError(gone)
        if changed := changed_files(folder):
            raise ConfigError(f"{', '.join(changed)} in {folder} changed since {policy_id} was published: {_AGAIN}")
        return folder
    target = cache_folder() / "policies" / stable_hash(store.url)[:8] / policy_id.replace("/", "--")
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    try:
        try:
            for name in store.list(path, suffix="") or [store.path(path, POLICY_FILE)]:
                store.fs.get_file(name, str(aside / name.rsplit("/", 1)[-1]))
        except FileNotFoundError as error:  # some servers list empty folders
            raise ConfigError(gone) from error
        if folder_hash(aside) != policy_id.rpartition("@")[2] or changed_files(aside):
            raise ConfigError(f"{store.url}/{path} holds other bytes than {policy_id} was published with: {_AGAIN}")
        try:
            aside.rename(target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def local_folder(model: str) -> Path:
    """Return a model's folder on this machine; a model of the Hugging Face hub is downloaded, once a node."""
    if os.path.isdir(model):
        return Path(model)
    if Path(model).is_absolute():
        raise ConfigError(
            f"{model} is not on this machine ({socket.gethostname()}): on a cluster, give a folder that all nodes "
            "share, a version that is in the store (memagent policies), or a Hugging Face name"
        )
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "tokenizer*", "merges.txt", "vocab*", "*.jinja"]
    return Path(snapshot_download(model, allow_patterns=patterns))


def cache_folder() -> Path:
    """Return the cache folder: ``$MEMAGENT_CACHE``, or the platform's own."""
    return (Environment().cache or user_cache_path("memagent", appauthor=False)).expanduser()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_link(file: Path) -> None:
    target, folder = file.resolve(), file.parent.resolve()
    inside = target.is_relative_to(folder) or target.is_relative_to(folder.parent.parent / "blobs")
    if file.is_symlink() and not inside:
        raise ConfigError(f"{file} is a link to {target}: a published folder holds its own files; copy it there")


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            empty = not list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be loaded ({error}): it may be cut off; export the model again") from error
    if empty:
        raise ConfigError(f"{path} holds no weights: export the model again")


def _json(path: Path) -> Json:
    return _parsed(path.read_bytes(), str(path))


def _parsed(data: bytes, where: str) -> Json:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{where} is no JSON object")
    return record
