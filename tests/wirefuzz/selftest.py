"""Tests of the parsers and models with which Weir is compared: `python3 -m unittest wirefuzz.selftest` in `tests/`."""

import asyncio
import random
import unittest

from . import command, hpack
from .case import Case
from .frames import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from .reader import Broken, Incomplete, read_request, read_response
from .requests import judge
from .sessions_model import Session
from .shrink import shrink

HOST = b"Host: s.test\r\n"


def request(fields=b"", body=b"", start=b"GET / HTTP/1.1"):
    """Parses a request with these fields and this body."""
    return read_request(start + b"\r\n" + HOST + fields + b"\r\n" + body)


def headers(stream, *fields):
    """Encodes HEADERS that end a request."""
    block = b"".join(hpack.literal(name, value) for name, value in fields)
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


class Reader(unittest.TestCase):
    """The HTTP/1.1 parser."""

    def test_a_plain_request_has_no_oddities_and_must_be_forwarded(self):
        message = request(b"Content-Length: 5\r\n", b"hello, this is the next one")
        self.assertEqual((message.body, message.oddities), (b"hello", []))
        self.assertEqual(judge(message)[0], "forward")

    def test_what_is_ambiguous_is_broken(self):
        for fields in (
            b"Content-Length: +5\r\n", b"Content-Length: \r\n", b"Content-Length: 5,6\r\n", b"Content-Length: 9223372036854775808\r\n",
            b"Transfer-Encoding: chunked, gzip\r\n", b"Transfer-Encoding: chunked;q=1\r\n", b"x : y\r\n", b" folded: y\r\n", b"x: a\0b\r\n",
            b"x: a\rb\r\n",
        ):
            with self.subTest(fields), self.assertRaises(Broken):
                request(fields)

    def test_what_may_be_tolerated_is_an_oddity(self):
        for fields, body in (
            (b"Content-Length: 05\r\n", b"hello"), (b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), (b"x: y\n", b""),
            (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), (b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
        ):
            with self.subTest(fields):
                self.assertTrue(request(fields, body).oddities)

    def test_chunks_end_where_the_grammar_says(self):
        message = request(b"Transfer-Encoding: chunked\r\n", b"5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\n\r\nrest")
        self.assertEqual((message.body, message.trailers, message.oddities), (b"hello", [(b"x-sum", b"1")], []))
        for body in (b"5\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\n0\r\n\r\n"):
            with self.subTest(body), self.assertRaises(Broken):
                request(b"Transfer-Encoding: chunked\r\n", body)

    def test_hosts_are_checked_in_both_forms(self):
        for target in (b"http://u@s.test/", b"http://s.test,x/", b"http:///", b"ftp://s.test/", b"http://s.test:8a/"):
            with self.subTest(target):
                self.assertEqual(judge(request(start=b"GET " + target + b" HTTP/1.1"))[0], "reject")

    def test_a_response_without_a_length_ends_with_its_connection(self):
        with self.assertRaises(Incomplete):
            read_response(b"HTTP/1.1 200 OK\r\n\r\nabc", 0, b"GET", False)
        self.assertEqual(read_response(b"HTTP/1.1 200 OK\r\n\r\nabc", 0, b"GET", True).body, b"abc")
        self.assertEqual(read_response(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 0, b"HEAD", False).body, b"")


class Http2(unittest.TestCase):
    """The model of sessions, and header compression."""

    GOOD = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"s.test"))

    def test_strings_are_decoded_as_in_the_examples_of_rfc_7541(self):
        block = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
        self.assertEqual(hpack.Decoder().decode(block)[-1], (b":authority", b"www.example.com"))

    def test_malformed_requests_are_told_from_good_ones(self):
        bad = [
            (*self.GOOD, (b"content-length", b"")), (*self.GOOD, (b"connection", b"close")), (*self.GOOD, (b"X-Upper", b"1")),
            (*self.GOOD, (b"content-length", b"1")), (*self.GOOD, (b":path", b"/other")), self.GOOD[1:], (*self.GOOD, (b"x", b"a\r\nb")),
        ]
        frames = [headers(2 * number + 1, *fields) for number, fields in enumerate([self.GOOD, *bad])]
        session = Session(PREFACE + frame(SETTINGS, 0, 0, b"") + b"".join(frames))
        self.assertEqual(session.error, "")
        self.assertEqual([bool(one.malformed) for one in session.streams.values()], [False] + [True] * len(bad))


class Cases(unittest.TestCase):
    """Generation, serialization and shrinking of cases."""

    def test_a_seed_gives_the_same_cases_and_they_can_be_written_down(self):
        for part in command.PARTS:
            case = command.generate(part, 1, 7)
            self.assertEqual(case, command.generate(part, 1, 7))
            self.assertEqual(case, Case.from_json(case.to_json()))

    def test_shrinking_leaves_what_is_needed(self):
        pieces = [("x", bytes([byte])) for byte in random.Random(1).sample(range(200), 60)]
        wanted = {pieces[3], pieces[41]}

        async def shows(case):
            return wanted <= set(case.data["pieces"])

        smallest = asyncio.run(shrink(Case("requests", {"pieces": pieces}), shows))
        self.assertEqual(set(smallest.data["pieces"]), wanted)


if __name__ == "__main__":
    unittest.main()
