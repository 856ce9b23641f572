"""A limit as requirements need it, independent of any limiter's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

KEY_HEADER = "x-key"
"""Header that identifies a client, for limits with the key `header`."""

COST_HEADER = "x-cost"
"""Response header with the cost of a request, for limits whose cost is known afterwards."""

LIMITED_PATH = "/limited"
"""Path of limits that apply to one path."""


@dataclass(frozen=True)
class Limit:
    """N requests in a period, for each key."""

    count: int
    period: int = 1
    """Seconds."""
    key: str = "header"
    """What is counted apart: `header` (of `KEY_HEADER`), `address` of the peer, `forwarded` (the client in X-Forwarded-For of a
    trusted peer), or `all`."""
    algorithm: str = ""
    """One of the target's algorithms; empty for its default."""
    path: str = ""
    """Only requests for this path; empty for all."""
    cost: str = ""
    """`response`: the response header `COST_HEADER` states the cost; empty: each request costs 1."""
    shared: bool = False
    """Whether all instances of the target share it, through its store."""

    def with_algorithm(self, algorithm: str) -> Limit:
        return replace(self, algorithm=algorithm)

    @property
    def unit(self) -> str:
        """The period as a word, if it is a whole second, minute, hour or day."""
        return {1: "second", 60: "minute", 3600: "hour", 86400: "day"}.get(self.period, "")

    @property
    def interval(self) -> float:
        """Seconds after which one more request is admitted, on average."""
        return self.period / self.count

    def describe(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "period": self.period,
            "key": self.key,
            "algorithm": self.algorithm,
            "path": self.path,
            "cost": self.cost,
            "shared": self.shared,
        }
