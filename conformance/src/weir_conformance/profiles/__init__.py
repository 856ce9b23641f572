"""Profiles: groups of requirements. Importing this package registers all of them."""

from __future__ import annotations

PROFILES: dict[str, str] = {
    "core": "What every rate limiter promises",
    "algorithms": "Each algorithm against its model",
    "headers": "What responses tell clients",
    "race": "Requests at the same time",
    "keys": "Spellings that must be one client",
    "reload": "Changes of the configuration",
    "memory": "Many keys",
    "fleet": "Several instances with one limit",
    "tokens": "Costs that are known afterwards",
    "hostile": "Input that is not HTTP, or barely",
}

from weir_conformance.profiles import (  # noqa: E402, F401
    algorithms,
    core,
    fleet,
    headers,
    hostile,
    keys,
    memory,
    race,
    reload,
    tokens,
)
