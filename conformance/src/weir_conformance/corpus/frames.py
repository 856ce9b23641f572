"""HTTP/2 frames from text, a frame on each line: type, flags (hexadecimal), stream, payload.

A payload is hexadecimal bytes, `"text"`, `(name: value)` for a literal field, `get` and `post` for the beginning of a request, and `N*`
before one of them for N of it. `repeat N` to `end` sends lines N times; `@` is then an odd stream, another one each time. The preface
and settings come before, unless the first line is `no preface`. `RAW` is bytes without a frame.
"""

from __future__ import annotations

import re

from weir_conformance.corpus.text import decode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_TYPES = ("DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION")
_ITEM = re.compile(r'(?:(\d+)\*)?(?:"([^"]*)"|\((.[^:]*): ([^)]*)\)|(\S+))\s*')
_HEADS = {"get": b"\x82\x86\x84\x01\x06a.test", "post": b"\x83\x86\x84\x01\x06a.test"}


def encode_frames(text: str) -> bytes:
    """Returns the bytes of a connection: the preface, settings, and the frames of a text."""
    lines = [line for line in text.split("\n") if line]
    result = bytearray()
    if lines[0] == "no preface":
        del lines[0]
    else:
        result += PREFACE + _frame(4, 0, 0, b"")
    while lines:
        line = lines.pop(0)
        if not line.startswith("repeat "):
            result += _encode_line(line, 0)
            continue
        end = lines.index("end")
        for turn in range(int(line.removeprefix("repeat "))):
            for repeated in lines[:end]:
                result += _encode_line(repeated, turn)
        del lines[: end + 1]
    return bytes(result)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _encode_line(line: str, turn: int) -> bytes:
    if line.startswith("RAW "):
        return _encode_payload(line.removeprefix("RAW "))
    name, flags, stream, payload = (*line.split(" ", 3), "")[:4]
    kind = _TYPES.index(name) if name in _TYPES else int(name, 16)
    return _frame(kind, int(flags, 16), 2 * turn + 1 if stream == "@" else int(stream), _encode_payload(payload))


def _encode_payload(text: str) -> bytes:
    result = bytearray()
    for times, quoted, name, value, word in _ITEM.findall(text):
        if word:
            one = _HEADS.get(word) or bytes.fromhex(word)
        elif name:
            one = b"\0" + _string(decode(name)) + _string(decode(value))
        else:
            one = decode(quoted)
        result += one * int(times or 1)
    return bytes(result)


def _string(value: bytes) -> bytes:
    """Encodes a string without Huffman codes (RFC 7541 section 5.2)."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    length, rest = bytearray([127]), len(value) - 127
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes(length) + bytes([rest]) + value
