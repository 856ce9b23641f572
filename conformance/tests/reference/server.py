"""A small reverse proxy with exact limits, and with faults that can be switched on: the mutants of the suite's own tests.

It is written for clarity. `MUTANT` names the fault; without it there is none.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import re
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

MUTANT = os.environ.get("MUTANT", "")
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[!$&'()*+,;=.~%0-9A-Za-z_-]*)(:[0-9]*)?")
MAX_HEAD = 64 * 1024


@dataclass
class Key:
    """State of one key: a bucket of `count` units that comes back evenly (GCRA), or a window of the clock."""

    arrival: float = 0.0
    window: int = -1
    used: float = 0.0
    total: int = 0
    is_lost: bool = False


@dataclass
class Rule:
    count: int
    period: float
    key: str
    algorithm: str
    path: str
    cost: str
    shared: bool
    keys: dict[str, Key] = field(default_factory=dict)

    @property
    def interval(self) -> float:
        return self.period / self.count


class Server:
    def __init__(self, config: str, upstream: int, redis: int) -> None:
        self.config, self.upstream, self.redis = config, upstream, redis
        self.rules: list[Rule] = []
        self.fails_until = 0.0
        self.connection_keys = 0
        self.open_connections = 0
        self.is_blocked = False
        self.store: Store | None = Store(redis) if redis else None
        self.load()

    def load(self) -> None:
        raw = json.load(open(self.config, encoding="utf-8"))
        if MUTANT == "reload_ignored" and self.rules:
            return
        if MUTANT == "reload_fails" and self.rules:
            self.fails_until = time.time() + 0.3
        before = {(rule.key, rule.path): rule.keys for rule in self.rules}
        self.rules = [Rule(**entry) for entry in raw]
        for rule in self.rules:
            if MUTANT == "reload_forgets":
                continue
            rule.keys = before.get((rule.key, rule.path), {})
            if MUTANT == "reload_doubles":
                # What was used counts half under the raised limit.
                for state in rule.keys.values():
                    state.arrival -= (state.arrival - time.time()) / 2 if rule.count > 5 else 0.0

    # Decisions

    def window(self, rule: Rule, now: float) -> int:
        """Returns the number of the window of the clock."""
        late = 0.3 * rule.period if MUTANT == "late_window" else 0.0
        return int((now - late) // rule.period)

    def usage(self, rule: Rule, state: Key, now: float) -> float:
        """Returns the units in use."""
        if rule.algorithm == "fixed_window":
            return state.used if state.window == self.window(rule, now) else 0.0
        return max(0.0, state.arrival - now) / rule.interval

    def room(self, rule: Rule, state: Key, cost: float, now: float) -> bool:
        count = float(rule.count)
        if MUTANT == "one_less":
            count -= 1
        if MUTANT == "one_more":
            count += 1
        if MUTANT == "burst_twice" and rule.count == 4:
            count *= 2
        if MUTANT == "shrinks" and rule.count == 4:
            # Each admitted request takes a little for ever.
            count -= min(3.9, 0.25 * max(0, state.total - 12))
        return not state.is_lost and self.usage(rule, state, now) + cost <= count + 1e-9

    def charge(self, rule: Rule, state: Key, cost: float, now: float) -> None:
        state.total += 1
        if rule.algorithm == "fixed_window":
            window = self.window(rule, now)
            if state.window != window:
                state.window, state.used = window, 0.0
            state.used += cost
            return
        interval = rule.interval
        if MUTANT == "slow_refill" and rule.count == 4:
            interval *= 1.4
        if MUTANT == "fast_refill" and rule.count == 4:
            interval *= 0.6
        state.arrival = max(state.arrival, now) + cost * interval

    def wait(self, rule: Rule, state: Key, now: float) -> float:
        """Returns the time until one unit is free."""
        if rule.algorithm == "fixed_window":
            return (int(now // rule.period) + 1) * rule.period - now
        return max(0.0, state.arrival + rule.interval - rule.period - now)

    def key_of(self, rule: Rule, headers: list[tuple[str, str]], peer: str, connection: int) -> str | None:
        if rule.key == "all" or MUTANT == "one_key":
            return "all"
        if MUTANT == "per_connection":
            return f"{connection}"
        if rule.key == "header":
            name = "x-key"
            values = [value for found, value in headers if (found if MUTANT == "case_sensitive" else found.lower()) == name]
            if MUTANT == "keeps_space":
                return values[0] if values else ""
            values = [value.strip() for value in values]
            if MUTANT == "last_line":
                return values[-1] if values else ""
            if len(set(values)) > 1:
                return None
            return values[0] if values else ""
        if rule.key == "address":
            return "127.0.0.1" if MUTANT == "one_address" else peer
        return self.forwarded(headers, peer)

    def forwarded(self, headers: list[tuple[str, str]], peer: str) -> str:
        lines = [value for name, value in headers if name.lower() == "x-forwarded-for"]
        if not lines or MUTANT == "ignores_forwarded":
            return peer
        if MUTANT == "first_line":
            lines = lines[:1]
        listed = [part.strip() for line in lines for part in line.split(",")]
        text = listed[0] if MUTANT == "believes_client" else listed[-1]
        if MUTANT != "keeps_port" and re.fullmatch(r"[0-9.]+:[0-9]+", text):
            text = text.split(":")[0]
        if MUTANT == "raw_text":
            return text
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None and MUTANT != "keeps_mapped":
                return str(address.ipv4_mapped)
            if MUTANT == "whole_ipv6":
                return str(address)
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)

    # Connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")[0]
        self.connection_keys += 1
        self.open_connections += 1
        connection = self.connection_keys
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while True:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    await self.reply(writer, 431, [], b"", close=True)
                    return
                parsed = parse(head)
                is_preface = head.startswith(b"PRI ")
                if MUTANT == ("crashes_on_frames" if is_preface else "crashes") and parsed is None:
                    os._exit(1)
                if parsed is None:
                    await self.reply(writer, 400, [], b"", close=True)
                    return
                method, target, headers, length, is_chunked = parsed
                if is_chunked:
                    body = await read_chunked(reader)
                    if body is None:
                        await self.reply(writer, 400, [], b"", close=True)
                        return
                else:
                    body = await reader.readexactly(length)
                close = any(n.lower() == "connection" and "close" in v.lower() for n, v in headers)
                is_pipelined = len(reader._buffer) > 0  # type: ignore[attr-defined]
                await self.handle(writer, target, headers, peer, connection, close, is_pipelined)
                if close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()

    async def handle(
        self, writer: asyncio.StreamWriter, target: str, headers: list[tuple[str, str]], peer: str, connection: int,
        close: bool, is_pipelined: bool,
    ) -> None:
        if MUTANT == "slow_one" and self.open_connections > 150:
            await asyncio.sleep(1.2)
        now = time.time()
        if now < self.fails_until:
            await self.reply(writer, 503, [], b"", close)
            return
        due: list[tuple[Rule, Key, str]] = []
        for rule in self.rules:
            path = target.split("?")[0]
            if MUTANT != "raw_paths":
                path = normalise(path)
            if rule.path and path != rule.path and MUTANT != "every_path":
                continue
            key = self.key_of(rule, headers, peer, connection)
            if key is None:
                await self.reply(writer, 400, [], b"", close)
                return
            if MUTANT == "forgets_keys" and len(rule.keys) > 1000:
                rule.keys.clear()
            if MUTANT == "full_table" and len(rule.keys) > 500 and key not in rule.keys:
                await self.reject(writer, rule, Key(arrival=now + rule.period), now, close)
                return
            if MUTANT == "large_keys":
                rule.keys.setdefault(f"{key}-", Key()).__dict__["waste"] = bytes(100_000)
            if MUTANT == "long_keys" and len(key) > 1000:
                continue
            due.append((rule, rule.keys.setdefault(key, Key()), key))
        if MUTANT == "check_then_act":
            admitted = [self.room(rule, state, 1, now) for rule, state, _ in due]
            # Only where many requests come at once, so that one by one is not slower.
            await asyncio.sleep(0.01 if self.rules[0].count == 150 else 0)
        if self.store is not None:
            for rule, state, key in due:
                if rule.shared and not await self.store.take(rule, key):
                    await self.reject(writer, rule, state, now, close)
                    return
        for rule, state, key in due:
            cost = 0.0 if rule.cost else 1.0
            if rule.shared and self.store is not None:
                continue
            probe = max(cost, 1.0) if rule.cost else cost
            if self.is_blocked:
                await self.reject(writer, rule, state, now, close)
                return
            has_room = admitted[0] if MUTANT == "check_then_act" else self.room(rule, state, probe, now)
            if not has_room:
                if MUTANT == "charges_rejected":
                    self.charge(rule, state, 1, now)
                if MUTANT == "forwards_rejected":
                    await self.forward(headers, target)
                await self.reject(writer, rule, state, now, close)
                return
        is_same_packet = MUTANT == "counts_packets" and is_pipelined
        for rule, state, key in due:
            if not rule.cost and not (rule.shared and self.store is not None) and not is_same_packet:
                self.charge(rule, state, 1, now)
        status, received, body = await self.forward(headers, target)
        for rule, state, key in due:
            if rule.cost:
                stated = float(dict(received).get("x-cost", "1"))
                if MUTANT == "ignores_cost":
                    stated = 1.0
                if MUTANT == "at_least_one":
                    stated = max(stated, 1.0)
                self.is_blocked |= MUTANT == "blocks_all" and stated > rule.count
                self.charge(rule, state, stated, time.time())
        await self.reply(writer, status, self.status_headers(due, now), body, close)

    def status_headers(self, due: list[tuple[Rule, Key, str]], now: float) -> list[tuple[str, str]]:
        if not due:
            return []
        rule, state, _ = due[0]
        remaining = max(0, math.floor(rule.count - self.usage(rule, state, now) + 1e-9))
        reset = math.ceil(max(0.0, state.arrival - now))
        if MUTANT == "remaining_off":
            remaining += 1
        if MUTANT == "reset_far":
            reset += 1000
        item = '"default' if MUTANT == "broken_fields" else '"default"'
        return [
            ("x-ratelimit-limit", str(rule.count)),
            ("x-ratelimit-remaining", str(remaining)),
            ("x-ratelimit-reset", str(reset)),
            ("ratelimit-policy", f"{item};q={rule.count};w={math.ceil(rule.period)}"),
            ("ratelimit", f"{item};r={remaining};t={reset}"),
        ]

    async def reject(self, writer: asyncio.StreamWriter, rule: Rule, state: Key, now: float, close: bool) -> None:
        wait = max(1, math.ceil(self.wait(rule, state, now)))
        if MUTANT == "never_recovers":
            state.is_lost = True
        if MUTANT == "retry_early":
            wait = 0
        if MUTANT == "retry_short":
            wait = 1
        if MUTANT == "retry_long":
            wait += 3
        if MUTANT == "retry_grows":
            state.used += 1
            wait += int(state.used)
        headers = self.status_headers([(rule, state, "")], now)
        if MUTANT == "left_in_rejection":
            headers = [(name, "3" if name == "x-ratelimit-remaining" else value) for name, value in headers]
        if MUTANT != "no_retry_after":
            headers.append(("retry-after", str(wait)))
        await self.reply(writer, 403 if MUTANT == "status_403" else 429, headers, b"slow down", close)

    async def forward(self, headers: list[tuple[str, str]], target: str) -> tuple[int, list[tuple[str, str]], bytes]:
        if MUTANT == "forwards_twice":
            await self.forward_once(headers, target)
        return await self.forward_once(headers, target)

    async def forward_once(self, headers: list[tuple[str, str]], target: str) -> tuple[int, list[tuple[str, str]], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers if name.lower() == "x-asked-cost")
        if MUTANT == "two_framings" and target == "/p":
            lines += "content-length: 0\r\ncontent-length: 00\r\n"
        writer.write(f"GET {target} HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n{lines}\r\n".encode("latin-1"))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = [(n.strip().lower(), v.strip()) for n, _, v in (line.partition(":") for line in head[1:] if line)]
        body = await reader.readexactly(int(dict(fields).get("content-length", "0")))
        writer.close()
        return int(head[0].split(" ")[1]), fields, body

    async def reply(
        self, writer: asyncio.StreamWriter, status: int, headers: list[tuple[str, str]], body: bytes, close: bool
    ) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        end = "connection: close\r\n" if close else ""
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n{lines}{end}\r\n".encode("latin-1") + body)
        await writer.drain()


class Store:
    """Counters of a Redis server that instances share."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.local: dict[str, int] = {}

    async def take(self, rule: Rule, key: str) -> bool:
        """Takes a unit. While the store does not respond, each instance has a third of the limit."""
        if MUTANT == "local_counts":
            self.local[key] = self.local.get(key, 0) + 1
            return self.local[key] <= rule.count
        if MUTANT == "third_each":
            self.local[key] = self.local.get(key, 0) + 1
            return self.local[key] <= rule.count // 3
        try:
            wait = 30.0 if MUTANT == "waits_for_store" else 0.1
            used = await asyncio.wait_for(self.increment(f"{os.environ.get('STORE_PREFIX', '')}{key}"), wait)
        except (OSError, asyncio.TimeoutError):
            self.local[key] = self.local.get(key, 0) + 1
            part = rule.count if MUTANT == "whole_limit_without_store" else rule.count // 6
            return self.local[key] <= part
        return used <= rule.count

    async def increment(self, key: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            encoded = key.encode("latin-1")
            writer.write(b"*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n" % (len(encoded), encoded))
            used = int((await reader.readline())[1:])
            if MUTANT == "short_lived" and used == 1:
                writer.write(b"*3\r\n$6\r\nEXPIRE\r\n$%d\r\n%s\r\n$1\r\n3\r\n" % (len(encoded), encoded))
                await reader.readline()
            return used
        finally:
            writer.close()


def normalise(path: str) -> str:
    decoded = re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found.group(1), 16)), path)
    parts: list[str] = []
    for part in decoded.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def parse(head: bytes) -> tuple[str, str, list[tuple[str, str]], int, bool] | None:
    """Returns the parts of a request's head; `None` if RFC 9112 does not allow it."""
    lines = head[:-4].split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not re.fullmatch(rb"/[!-~\x80-\xff]*", words[1]):
        return None
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not TOKEN.fullmatch(name) or any(byte in value for byte in b"\r\n\0"):
            return None
        headers.append((name.decode("latin-1"), value.decode("latin-1")[1:] if value.startswith(b" ") else value.decode("latin-1")))
    named: dict[str, list[str]] = {}
    for field_name, field_value in headers:
        named.setdefault(field_name.lower(), []).append(field_value.strip(" \t"))
    if len(named.get("host", [])) != 1 and MUTANT != "any_host":
        return None
    if not HOST.fullmatch(named.get("host", [""])[0]) and MUTANT != "lenient_hosts":
        return None
    codings, lengths = named.get("transfer-encoding", []), named.get("content-length", [])
    if MUTANT == "lenient":
        lengths = lengths[:1]
    if (codings and lengths) or len(lengths) > 1 or (codings and codings != ["chunked"]):
        return None
    if lengths and not re.fullmatch(r"[0-9]+", lengths[0]):
        return None
    return words[0].decode(), words[1].decode("latin-1"), headers, int(lengths[0]) if lengths else 0, bool(codings)


async def read_chunked(reader: asyncio.StreamReader) -> bytes | None:
    body = b""
    while True:
        line = (await reader.readline()).strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", line):
            if MUTANT != "skips_chunks":
                return None
            await reader.readuntil(b"\r\n\r\n")
            return body
        size = int(line, 16)
        part = await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            return None
        if size == 0:
            return body
        body += part


async def main() -> None:
    port, config, upstream, redis = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    server = Server(config, upstream, redis)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, server.load)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port, limit=MAX_HEAD, backlog=2048)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
