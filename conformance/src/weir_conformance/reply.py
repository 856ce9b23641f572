"""A request to a target, and the target's reply."""

from __future__ import annotations

from dataclasses import dataclass, field

from weir_conformance.limit import KEY_HEADER


@dataclass(frozen=True)
class Probe:
    """A request, as every entrance can express it."""

    key: str = ""
    """Value of `KEY_HEADER`; none if empty."""
    path: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    """Further header lines, in their order."""
    source: str = "127.0.0.1"
    """Address from which the client connects."""

    def header_lines(self) -> list[tuple[str, str]]:
        own = [(KEY_HEADER, self.key)] if self.key else []
        return own + list(self.headers)


@dataclass(frozen=True)
class Reply:
    """The target's reply."""

    status: int
    """HTTP status code; 200 or 429 for an entrance without one."""
    admitted: bool
    sent: float
    """Monotonic time before the request was sent."""
    received: float
    """Monotonic time after the reply was received. The decision was made in between."""
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; lines of one name are joined with commas."""
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())
