"""Targets: what a limiter is, how it is started, and what it claims. Read from a YAML file."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ENTRANCES = ("http", "rls", "decision")

MODELS = (
    "gcra",
    "fixed_window",
    "fixed_window_first",
    "sliding_window",
    "sliding_window_first",
    "sliding_log",
    "refill_bucket",
)

CAPABILITIES: dict[str, str] = {
    "key.header": "a limit for each value of a request header",
    "key.address": "a limit for each address of a peer",
    "key.forwarded": "a limit for each client in X-Forwarded-For of a trusted peer",
    "path": "a limit for one path only",
    "forwards": "forwards admitted requests to an upstream",
    "free_rejections": "rejected requests cost nothing",
    "retry_after": "`retry-after` in rejections",
    "x_ratelimit": "`x-ratelimit-limit`, `-remaining` and `-reset`, or the same names without `x-`",
    "ratelimit_fields": "the fields `RateLimit` and `RateLimit-Policy` of the IETF draft",
    "reload": "changes its configuration without a restart",
    "store": "shares limits between instances",
    "response_cost": "charges what a response states",
}


HTTP = "http"
"""Capability of all targets but those that only get descriptors: they read requests themselves."""


class TargetError(Exception):
    """A target file that cannot be used. The text names the file and the key."""


@dataclass(frozen=True)
class Template:
    """A file that is rendered into the directory of an instance."""

    source: Path
    destination: str


@dataclass(frozen=True)
class Command:
    """A program with its arguments, which are templates."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A rate limiter."""

    name: str
    file: Path
    homepage: str
    entrance: str
    start: Command
    prepare: tuple[Command, ...]
    """Commands that run once before the first start, such as a build."""
    version: Command
    version_pattern: str
    files: tuple[Template, ...]
    ready: str
    """Path that responds once the target serves; empty if an open port is enough."""
    reload_signal: str
    reload_command: Command | None
    reload_watches: bool
    """Whether the target watches its files."""
    claims: frozenset[str]
    algorithms: dict[str, str]
    """Model of each algorithm."""
    statuses: frozenset[int]
    """Status codes of rejections."""
    periods: tuple[int, ...]
    """Periods in seconds that limits may have; empty for any."""
    store: str
    """Server that instances share: `redis`, or empty."""
    ports: tuple[str, ...]
    """Names of further ports that an instance needs."""
    settle: float
    """Seconds after which a reload is in force."""
    reload_after: float
    """Seconds for which a process has to run before it passes its counters on at a reload."""
    trusted: str
    """Address of a peer whose X-Forwarded-For is believed."""
    notes: str

    @property
    def capabilities(self) -> frozenset[str]:
        """What it claims, and what follows from its entrance."""
        return self.claims if self.entrance == "rls" else self.claims | {HTTP}

    def installed_version(self) -> str:
        """Returns the version of the program.

        Raises `TargetError` if the program is not there.
        """
        program = self.version.arguments[0]
        if shutil.which(program) is None and not (self.file.parent / program).exists():
            raise TargetError(f"{self.file}: version.command: {program} is not installed")
        done = subprocess.run(
            list(self.version.arguments), capture_output=True, text=True, check=False, cwd=self.file.parent, timeout=60
        )
        found = re.search(self.version_pattern, done.stdout + done.stderr)
        return found.group(1) if found else "unknown"


class _Reader:
    """Reads a mapping, and remembers which keys were read."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise TargetError(f"{where}: expected a map, got {type(value).__name__}")
        self.value, self.where = dict(value), where

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        if key not in self.value:
            if default is None:
                raise TargetError(f"{self.where}.{key}: missing")
            return default
        found = self.value.pop(key)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise TargetError(f"{self.where}.{key}: expected {kind.__name__}, got {type(found).__name__}")
        return found

    def words(self, key: str, known: tuple[str, ...] | None = None) -> tuple[str, ...]:
        found = self.value.pop(key, [])
        words = tuple(found) if isinstance(found, list) else (found,)
        for word in words:
            if known is not None and word not in known:
                raise TargetError(f"{self.where}.{key}: unknown value {word!r}, expected one of {', '.join(known)}")
        return words

    def command(self, key: str, default: list[str] | None = None) -> Command:
        found = self.value.pop(key, default)
        if found is None:
            raise TargetError(f"{self.where}.{key}: missing")
        if isinstance(found, list):
            return Command(tuple(str(word) for word in found))
        reader = _Reader(found, f"{self.where}.{key}")
        command = Command(
            tuple(str(word) for word in reader.take("command", list)),
            {str(name): str(value) for name, value in reader.take("environment", dict, {}).items()},
        )
        reader.end()
        return command

    def end(self) -> None:
        for key in self.value:
            raise TargetError(f"{self.where}.{key}: unknown key")


def load(file: Path) -> Target:
    """Reads a target.

    Raises `TargetError` if the file does not describe one.
    """
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise TargetError(f"{file}: {error}") from error
    reader = _Reader(raw, str(file))
    version = _Reader(reader.take("version", dict), f"{file}.version")
    reloading = _Reader(reader.take("reload", dict, {}), f"{file}.reload")
    files = []
    for place, item in enumerate(reader.take("files", list, [])):
        entry = _Reader(item, f"{file}.files[{place}]")
        source = file.parent / entry.take("template", str)
        if not source.is_file():
            raise TargetError(f"{file}.files[{place}].template: there is no {source}")
        files.append(Template(source, entry.take("to", str)))
        entry.end()
    algorithms = {str(name): str(model) for name, model in reader.take("algorithms", dict).items()}
    for name, model in algorithms.items():
        if model not in MODELS:
            raise TargetError(f"{file}.algorithms.{name}: unknown model {model!r}, expected one of {', '.join(MODELS)}")
    if not algorithms:
        raise TargetError(f"{file}.algorithms: empty, expected at least one")
    reload_command = reloading.command("command", []) if "command" in reloading.value else None
    prepare = reader.take("prepare", list, [])
    target = Target(
        name=reader.take("name", str),
        file=file,
        homepage=reader.take("homepage", str),
        entrance=reader.take("entrance", str, "http"),
        start=reader.command("start"),
        prepare=tuple(Command(tuple(str(word) for word in words)) for words in prepare),
        version=version.command("command"),
        version_pattern=version.take("pattern", str),
        files=tuple(files),
        ready=reader.take("ready", str, ""),
        reload_signal=reloading.take("signal", str, ""),
        reload_command=reload_command,
        reload_watches=reloading.take("watches", bool, False),
        claims=frozenset(reader.words("claims", tuple(CAPABILITIES))),
        algorithms=algorithms,
        statuses=frozenset(reader.take("statuses", list, [429])),
        periods=tuple(reader.take("periods", list, [])),
        store=reader.take("store", str, ""),
        ports=reader.words("ports"),
        settle=float(reloading.take("settle", int, 1)),
        reload_after=float(reloading.take("after", int, 0)),
        trusted=reader.take("trusted", str, "127.0.0.1"),
        notes=reader.take("notes", str, ""),
    )
    for part in (reader, version, reloading):
        part.end()
    if target.entrance not in ENTRANCES:
        raise TargetError(f"{file}.entrance: unknown value {target.entrance!r}, expected one of {', '.join(ENTRANCES)}")
    return target
