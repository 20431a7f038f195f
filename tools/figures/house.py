"""The table ``[tool.house]`` of pyproject.toml: the ring and the feature of each module."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RINGS: Final = ("ground", "core", "features", "face", "outer")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module belongs."""

    ring: str
    feature: str = ""
    """The name of its feature; empty outside the ring of features."""


@dataclass(frozen=True, slots=True)
class House:
    """The table."""

    places: Mapping[str, Place]
    """The place of each entry, which is a module or a package without ``pg_scheduler.``."""
    requires: Mapping[str, frozenset[str]]
    """The features that a feature may import, with those that these require."""
    state: Mapping[str, frozenset[str]]
    """The tables, columns and keys of each feature."""
    trouble: frozenset[str]
    """The modules whose names say why a statement was refused."""

    def place(self, module: str) -> Place | None:
        """Return the place of a module by its longest entry; None if it has none."""
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            if place := self.places.get(".".join(parts[:length])):
                return place
        return None

    def ring(self, module: str) -> str:
        """Return the ring of a module; empty if it has none."""
        place = self.place(module)
        return place.ring if place else ""

    def feature(self, module: str) -> str:
        """Return the feature of a module; empty if it is part of none."""
        place = self.place(module)
        return place.feature if place else ""

    def unassigned(self, modules: Iterable[str]) -> list[str]:
        """Return the modules that have no place."""
        return sorted(module for module in modules if self.place(module) is None)

    def stale(self, modules: Iterable[str]) -> list[str]:
        """Return the entries that no module lies in."""
        names = [f"{module}." for module in modules]
        return sorted(
            entry for entry in self.places if not any(name.startswith(f"{entry}.") for name in names)
        )


def read_house(root: Path) -> House:
    """Return the table of a checkout.

    Raises:
        ValueError: Two rings or features have one entry, or a feature requires itself or an unknown one.
    """
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    places: dict[str, Place] = {}
    rings = [(Place(ring), entries) for ring, entries in table["rings"].items()]
    features = [(Place("features", name), feature["modules"]) for name, feature in table["features"].items()]
    for place, entries in [*rings, *features]:
        for entry in entries:
            if entry in places:
                raise ValueError(f"[tool.house] has {entry} twice; keep one of the two")
            places[entry] = place
    return House(
        places=places,
        requires=_closed({name: feature["requires"] for name, feature in table["features"].items()}),
        state={name: frozenset(feature["state"]) for name, feature in table["features"].items()},
        trouble=frozenset(table["trouble"]),
    )


def _closed(requires: Mapping[str, list[str]]) -> dict[str, frozenset[str]]:
    """Return each feature with all that it requires, also through others."""

    def collect(name: str, way: tuple[str, ...]) -> frozenset[str]:
        if name in way:
            raise ValueError(f"features require one another in a circle: {' -> '.join([*way, name])}")
        if name not in requires:
            raise ValueError(f"{way[-1]} requires {name}, which [tool.house.features] does not have")
        return frozenset(requires[name]).union(*(collect(other, (*way, name)) for other in requires[name]))

    return {name: collect(name, ()) for name in requires}
