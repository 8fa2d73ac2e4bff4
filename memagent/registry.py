"""Registries: what is found by name, built in or brought by another installed package (entry points).

A package adds an engine, for example, by an entry point of the group ``memagent.engines``:

    [project.entry-points."memagent.engines"]
    mine = "my_package.engine:make_engine"

Nothing is imported before it is asked for, and other packages are looked through only for a name that is not built in.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from memagent.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names, and what they stand for.

    Iterating gives the names that are built in first, in their order, then those of other packages.
    """

    def __init__(self, group: str, noun: str, built_in: Mapping[str, T | str]) -> None:
        """Take what is built in.

        Args:
            group: entry point group in which other packages add to it.
            noun: what its members are called in messages.
            built_in: by name, a member or where it is (``module:attribute``).
        """
        self.group = group
        self._noun = noun
        self._built_in = dict(built_in)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Return what a name stands for.

        Raises:
            KeyError: nothing has this name.
            ConfigError: another package brings it, and it cannot be imported; or two packages bring it.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._brought

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from sorted(self._brought.keys() - self._built_in.keys())

    def __len__(self) -> int:
        return len(self._built_in.keys() | self._brought.keys())

    def unknown(self, name: str) -> str:
        """Return the message for a name that nothing has."""
        return (
            f"no {self._noun} {name!r}. There are: {', '.join(self)}; "
            f"installed packages add others by the entry point group {self.group}"
        )

    @cached_property
    def _brought(self) -> dict[str, list[EntryPoint]]:
        brought: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            others = brought.setdefault(point.name, [])
            if point not in others:  # a package that stands twice on the path brings its points twice
                others.append(point)
        return brought

    def _load(self, name: str) -> T:
        if name in self._built_in:
            member = self._built_in[name]
            return cast(T, _imported(member)) if isinstance(member, str) else member
        points = self._brought[name]
        if len(points) > 1:
            origins = " and by ".join(sorted(map(_origin, points)))
            raise ConfigError(f"{self._noun} {name!r} is brought by {origins}: uninstall one of them")
        try:
            return cast(T, points[0].load())
        except Exception as error:  # whatever another package's import raises
            raise ConfigError(
                f"{self._noun} {name!r} of {_origin(points[0])} cannot be imported: {type(error).__name__}: {error}"
            ) from error


def _imported(place: str) -> object:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _origin(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package without a name"
    return f"{package} ({point.value})"
