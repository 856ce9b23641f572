"""Processes of targets and of the servers that they need."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from weir_conformance.limit import COST_HEADER, KEY_HEADER, LIMITED_PATH, Limit
from weir_conformance.target import Command, Target

START_SECONDS = 30.0
STOP_SECONDS = 10.0


class StartError(Exception):
    """A target that does not start. The text has the end of its output."""


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None = None, seconds: float = START_SECONDS) -> bool:
    """Waits until something listens on a port. Returns whether it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            return False
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False


class TargetProcess:
    """One running instance of a target, in a directory of its own."""

    def __init__(self, target: Target, limits: list[Limit], values: Mapping[str, Any]) -> None:
        self.target = target
        self.directory = Path(tempfile.mkdtemp(prefix="conformance-"))
        self.port = free_port()
        self.values: dict[str, Any] = {
            "port": self.port,
            "directory": str(self.directory),
            "here": str(target.file.parent.resolve()),
            "key_header": KEY_HEADER,
            "cost_header": COST_HEADER,
            "limited_path": LIMITED_PATH,
            "trusted": target.trusted,
            **{name: free_port() for name in target.ports},
            **values,
        }
        self._log = (self.directory / "output.log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._write_files(limits)
        self._start()

    def _write_files(self, limits: list[Limit]) -> None:
        for template in self.target.files:
            text = _render(template.source.read_text(encoding="utf-8"), {**self.values, "limits": limits})
            path = self.directory / template.destination
            path.parent.mkdir(parents=True, exist_ok=True)
            # Renamed, so that a target which watches the file never reads half of it.
            draft = path.with_name(path.name + ".new")
            draft.write_text(text, encoding="utf-8")
            draft.rename(path)

    def _run(self, command: Command) -> subprocess.Popen[bytes]:
        arguments = [_render(word, self.values) for word in command.arguments]
        environment = {**os.environ, **{name: _render(value, self.values) for name, value in command.environment.items()}}
        try:
            return subprocess.Popen(
                arguments, stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                cwd=self.directory, start_new_session=True,
            )
        except OSError as error:
            raise StartError(f"{arguments[0]}: {error.strerror}") from error

    def _start(self) -> None:
        self._started = time.monotonic()
        self._process = self._run(self.target.start)
        if not wait_for_port(self.port, self._process):
            output = self.output()
            self.stop()
            raise StartError(f"{self.target.name} does not listen: {output}")

    def output(self) -> str:
        """Returns the end of what the target has printed."""
        self._log.flush()
        return (self.directory / "output.log").read_text(errors="replace")[-2000:].strip()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process and its children."""
        if self._process is None:
            return 0
        pages = 0
        for pid in _with_children(self._process.pid):
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
        return pages * os.sysconf("SC_PAGE_SIZE")

    def reload(self, limits: list[Limit]) -> None:
        """Makes the target use other limits without a restart."""
        time.sleep(max(0.0, self._started + self.target.reload_after - time.monotonic()))
        self._write_files(limits)
        if self.target.reload_command is not None:
            self._run(self.target.reload_command).wait(STOP_SECONDS)
        elif self.target.reload_signal and self._process is not None:
            os.kill(self._process.pid, getattr(signal, f"SIG{self.target.reload_signal}"))
        time.sleep(self.target.settle)

    def kill(self) -> None:
        """Ends the target without warning."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        except ProcessLookupError:
            process.wait()


class Redis:
    """A Redis server for targets that share limits, or any program that speaks its protocol."""

    def __init__(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise StartError("redis-server is not installed")
        self.port = free_port()
        self._process = subprocess.Popen(
            [program, "--port", str(self.port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        if not wait_for_port(self.port, self._process):
            raise StartError("redis-server does not listen")

    def pause(self) -> None:
        """Makes the server respond to nothing, as behind a cut link."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.resume()
        self._process.kill()
        self._process.wait()


def _with_children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid] + [found for child in children for found in _with_children(int(child))]


def _render(text: str, values: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(text).render(values)
