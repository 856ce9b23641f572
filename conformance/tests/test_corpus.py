"""The corpus of hostile input."""

from __future__ import annotations

import pytest

from tests.convert_corpus import CORPUS, SOURCE, convert
from weir_conformance.corpus import GROUPS, corpus, read_group
from weir_conformance.origin import ambiguities


@pytest.mark.parametrize("group", GROUPS)
def test_corpus_has_the_inputs_of_the_repository(group: str) -> None:
    if not SOURCE.exists():
        pytest.skip("only in the repository")
    assert convert(group) == (CORPUS / f"{group}.txt").read_text("utf-8"), "run tests/convert_corpus.py"


def test_every_input_is_read() -> None:
    inputs = {one.name: one for one in corpus()}
    assert len(inputs) > 350
    assert inputs["smuggling/two-lengths"].sent.count(b"content-length: ") == 2
    assert inputs["smuggling/two-lengths"].fault == "FRAMING"
    assert inputs["fields/ten-thousand"].sent.count(b"\r\n") > 10_000


def test_frames_are_encoded() -> None:
    text = "== one\n# About.\n--- frames\nHEADERS 05 1 get (x: a\\x00) 2*ff\nrepeat 2\nRST_STREAM 0 @ 00000008\nend\n"
    (one,) = read_group("http2", text)
    head = bytes.fromhex("828684 0106") + b"a.test" + b"\0\1x\2a\0" + b"\xff\xff"
    frames = bytes([0, 0, len(head), 1, 5, 0, 0, 0, 1]) + head
    resets = b"".join(bytes([0, 0, 4, 3, 0, 0, 0, 0, stream, 0, 0, 0, 8]) for stream in (1, 3))
    assert one.sent == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + frames + resets
    assert one.is_http_2


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ([b"GET / HTTP/1.1\r\n", b"host: a\r\n", b"content-length: 5\r\n"], 0),
        ([b"GET / HTTP/1.1\r\n", b"transfer-encoding: Chunked\r\n"], 0),
        ([b"GET / HTTP/1.1\r\n", b"transfer-encoding: gzip,, chunked\r\n"], 0),
        ([b"GET / HTTP/1.1\r\n", b"transfer-encoding: chunked, gzip\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"transfer-encoding: chunked\r\n", b"content-length: 5\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"content-length: 5\r\n", b"content-length: 5\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"content-length: +5\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"transfer-encoding: x\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"x : 5\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"x: 5\rb\r\n"], 1),
        ([b"GET / HTTP/1.1\r\n", b"x: 5\n"], 1),
        ([b"GET / a HTTP/1.1\r\n"], 1),
    ],
)
def test_lines_that_readers_understand_differently_are_found(lines: list[bytes], count: int) -> None:
    assert len(ambiguities(lines)) == count
