"""Registries: members found by name, built in or from other installed packages (entry points).

A package adds an engine, for example, by an entry point of the group ``memagent.engines``:

    [project.entry-points."memagent.engines"]
    mine = "my_package.engine:make_engine"

Members are imported on first use. Other packages are searched only for names that are not built in, so a built-in
cannot be replaced. Code is never found by a path or module name in data.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Generic, TypeVar, cast

from memagent.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Members by name. Iterating gives built-in names first, in their order, then those of other packages."""

    def __init__(
        self, group: str, noun: str, built_in: Mapping[str, T | str], fits: Callable[[object], bool] = callable
    ) -> None:
        """Register the built-in members, by name: each as it is or as ``module:attribute``.

        Other packages add to it in the entry point group `group`; `fits` says whether what one brings can be a member.
        Messages call a member `noun`.
        """
        self.group = group
        self.built_in = tuple(built_in)
        """Names that are built in."""
        self._noun = noun
        self._fits = fits
        self._built_in = dict(built_in)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Return what a name stands for.

        Raises:
            KeyError: nothing has this name.
            ConfigError: another package brings it, and it cannot be imported or used; or two packages bring it.
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

    def find(self, name: str) -> T:
        """Return what a name stands for.

        Raises:
            ConfigError: nothing has this name (the message lists those that there are), or what another package brings
                cannot be imported or used.
        """
        if name not in self:
            raise ConfigError(self.unknown(name))
        return self[name]

    def unknown(self, name: str) -> str:
        """Return the error message for an unknown name."""
        return (
            f"no {self._noun} {name!r}. There are: {', '.join(self)}; "
            f"installed packages add others by the entry point group {self.group}"
        )

    def origin(self, name: str) -> str:
        """Return which other package brings a name, with its version; empty for a name that is built in or unknown."""
        if name in self._built_in or name not in self._brought:
            return ""
        return " and ".join(sorted(map(_origin, self._brought[name])))

    @cached_property
    def _brought(self) -> dict[str, list[EntryPoint]]:
        brought: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            others = brought.setdefault(point.name, [])
            if point not in others:  # a package that is on the path twice has its entry points twice
                others.append(point)
        return brought

    def _load(self, name: str) -> T:
        if name in self._built_in:
            member = self._built_in[name]
            return cast(T, resolve_name(member)) if isinstance(member, str) else member
        points = self._brought[name]
        if len(points) > 1:
            raise ConfigError(f"{self._noun} {name!r} is brought by {self.origin(name)}: uninstall one of them")
        try:
            member = points[0].load()
        except Exception as error:  # another package's import may raise anything
            raise ConfigError(
                f"{self._noun} {name!r} of {self.origin(name)} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if not self._fits(member):
            raise ConfigError(
                f"{self._noun} {name!r} of {self.origin(name)} cannot be used: it is of type {type(member).__name__}. "
                f"docs/extending.md says what {self.group} takes"
            )
        return cast(T, member)


def _origin(point: EntryPoint) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package without a name"
    return f"{package} ({point.value})"
