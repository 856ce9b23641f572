"""Bytes as text."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\\{(\d+):([^}]*)\}|\\(.)|\n", re.DOTALL)
_LETTERS = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


def decode(text: str) -> bytes:
    """Returns the bytes that a text stands for."""
    result, end = bytearray(), 0
    for escape in _ESCAPE.finditer(text):
        result += text[end : escape.start()].encode()
        end = escape.end()
        hexadecimal, count, repeated, letter = escape.groups()
        if hexadecimal is not None:
            result.append(int(hexadecimal, 16))
        elif count is not None:
            result += decode(repeated) * int(count)
        elif letter is not None:
            result += _LETTERS[letter]
    return bytes(result + text[end:].encode())
