"""What became of a requirement."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    """The result of one requirement."""

    PASS = "pass"
    FAIL = "fail"
    NOT_CLAIMED = "not claimed"
    INCONCLUSIVE = "inconclusive"


class Failure(Exception):
    """The target does not meet the requirement. The text says what was expected and what was seen."""


class Noise(Exception):
    """The machine was too slow for a verdict. The runner repeats the requirement."""


@dataclass(frozen=True)
class Result:
    """The result of one requirement for one target."""

    requirement: str
    verdict: Verdict
    detail: str = ""
    """What was seen; empty if there is nothing to say."""
    measures: dict[str, float] = field(default_factory=dict)
    """Numbers that belong to the result, such as the units admitted in excess, in percent."""
    seconds: float = 0.0
    attempts: int = 1
