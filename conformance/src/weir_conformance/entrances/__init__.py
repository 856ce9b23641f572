"""Entrances: how a target is asked for a decision."""

from __future__ import annotations

from typing import Protocol

from weir_conformance.reply import Probe, Reply
from weir_conformance.target import Target


class Entrance(Protocol):
    """Sends requests to one instance. Not shared between threads."""

    def send(self, probe: Probe) -> Reply:
        """Sends a request, and waits for the reply."""
        ...

    def close(self) -> None: ...


def connect(target: Target, port: int) -> Entrance:
    """Returns a connection to an instance of `target`."""
    if target.entrance == "rls":
        from weir_conformance.entrances.rls import RlsEntrance

        return RlsEntrance(port)
    from weir_conformance.entrances.http import HttpEntrance

    return HttpEntrance(port, target.statuses, is_decision=target.entrance == "decision")
