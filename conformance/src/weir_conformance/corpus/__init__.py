"""Hostile input: what one client sends, by group. Most of it is not HTTP, or two readers may understand it differently.

A file holds the inputs of a group. Each begins with `== NAME`, comments, and what must become of it, if it
must be rejected:

- `must reject: FRAMING`: the head does not say where the body ends. `HOSTS`: there is no host, or there are several. `HOST` or `NAME`: that
  part is not valid. No response is successful.
- `must reject: CHUNKS`: the body has a chunk without a valid size. What follows is no request.

What is sent follows, as `--- client` with bytes, or as `--- frames` with HTTP/2 frames (see `frames.py`). Line breaks of the file are
none of the input. `\\r`, `\\n`, `\\t`, `\\0`, `\\\\` and `\\xHH` are one byte each, and `\\{N:TEXT}` is TEXT N times.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources

from weir_conformance.corpus.frames import encode_frames
from weir_conformance.corpus.text import decode

GROUPS = ("chunks", "fields", "host", "http2", "paths", "request-line", "smuggling", "trailers")
HTTP_2 = "http2"


@dataclass(frozen=True)
class Input:
    """What one client sends."""

    name: str
    """The group, and the name within it."""
    sent: bytes
    fault: str | None
    """Why it must be rejected, if it must."""

    @property
    def is_http_2(self) -> bool:
        return self.name.startswith(f"{HTTP_2}/")


@functools.cache
def corpus() -> tuple[Input, ...]:
    """Returns all inputs."""
    folder = resources.files(__package__)
    return tuple(one for group in GROUPS for one in read_group(group, (folder / f"{group}.txt").read_text("utf-8")))


def read_group(group: str, text: str) -> list[Input]:
    """Returns the inputs of a file."""
    return [_read_input(group, part) for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]]


def _read_input(group: str, text: str) -> Input:
    head, kind, sent = re.split(r"^--- (client|frames)\n", text, maxsplit=1, flags=re.MULTILINE)
    name, _, properties = head.partition("\n")
    fault = re.search(r"^must reject: (\w+)$", properties, flags=re.MULTILINE)
    encode = encode_frames if kind == "frames" else decode
    return Input(f"{group}/{name}", encode(sent), fault.group(1) if fault else None)
