"""Numbered requirements, each with its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir_conformance.context import Context

Check = Callable[["Context"], None]


class Severity(Enum):
    """How much depends on a requirement."""

    MUST = "must"
    SHOULD = "should"
    MAY = "may"


@dataclass(frozen=True)
class Requirement:
    """One requirement, and the check that decides it.

    The check returns if the requirement is met. It raises `Failure` if it is not, and `Noise` if the machine was too slow
    to tell.
    """

    identifier: str
    profile: str
    title: str
    source: str
    """Where it comes from: an RFC, a page of documentation, or a paper."""
    severity: Severity
    needs: frozenset[str]
    """Capabilities that a target must claim. Without them, the result is `not claimed`."""
    check: Check
    description: str


_REGISTRY: dict[str, Requirement] = {}


def requirement(
    identifier: str,
    title: str,
    *,
    source: str,
    severity: Severity = Severity.MUST,
    needs: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Registers a check. Its profile is the part of the identifier before the dash, and its docstring the description."""

    def register(check: Check) -> Check:
        if identifier in _REGISTRY:
            raise ValueError(f"requirement {identifier} is defined twice")
        profile = identifier.rsplit("-", 1)[0].lower()
        text = " ".join((check.__doc__ or "").split())
        _REGISTRY[identifier] = Requirement(
            identifier, profile, title, source, severity, frozenset(needs), check, text
        )
        return check

    return register


def all_requirements() -> list[Requirement]:
    """Returns every requirement, in the order of the profiles and of their numbers."""
    from weir_conformance import profiles

    order = {name: place for place, name in enumerate(profiles.PROFILES)}
    return sorted(_REGISTRY.values(), key=lambda one: (order[one.profile], number_of(one.identifier)))


def number_of(identifier: str) -> int:
    """Returns the number at the end of an identifier."""
    return int(identifier.rsplit("-", 1)[1])
