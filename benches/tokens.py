#!/usr/bin/env python3
"""CPU time of Weir for a chat completion with and without a rule that counts its tokens.

    WEIR_BIN=target/release/weir python3 benches/tokens.py [--requests 400] [--rounds 5]

A request has 8 KiB, its stream 300 events. Both configurations run side by side and take turns, so that the machine is the same for both. The
time is that of Weir's process alone; the provider and the client are written in Python.
"""

import argparse
import asyncio
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/clients"))

from language_model import LanguageModel  # noqa: E402
from weir_process import Weir  # noqa: E402

EVENTS = 300
BODY_SIZE = 8 * 1024
CONNECTIONS = 8

PLAIN = "{ name: requests, match: { path: /v1/* }, key: { header: authorization }, on_missing: deny, limit: 1000000/s, burst: 1000000 }"
TOKENS = (
    "{ name: tokens, match: { path: /v1/* }, key: { header: authorization }, on_missing: deny, limit: 1000000000/s, burst: 1000000000, "
    "cost: { tokens: openai, estimate: { default: 1000, prompt: 4 }, max: 32000, inject_usage: true } }"
)


def configuration(port, rule):
    return f"""
listeners: [{{ name: proxy, address: 127.0.0.1:0 }}]
upstream: {{ address: 127.0.0.1:{port}, timeout: 1m }}
workers: 1
rules: [{rule}]
"""


def request():
    body = {"model": "small", "messages": [{"role": "user", "content": ""}], "stream": True, "max_tokens": 300}
    body["messages"][0]["content"] = "x" * (BODY_SIZE - len(json.dumps(body)))
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer me\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def client(address, number):
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    message = request()
    for _ in range(number):
        writer.write(message)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        while (size := int(await reader.readline(), 16)) > 0:
            await reader.readexactly(size + 2)
        await reader.readline()
    writer.close()


async def cost(weir, requests):
    """CPU time of a request, in microseconds."""
    before = weir.cpu_seconds()
    await asyncio.gather(*(client(weir.address, requests // CONNECTIONS) for _ in range(CONNECTIONS)))
    return (weir.cpu_seconds() - before) * 1e6 / (requests // CONNECTIONS * CONNECTIONS)


async def main(arguments):
    model = LanguageModel(events=EVENTS)
    server, port = await model.start()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        weirs = [
            Weir(directory / f"{name}.yaml", configuration(port, rule))
            for name, rule in (("plain", PLAIN), ("tokens", TOKENS))
        ]
        try:
            ratios = []
            for number in range(arguments.rounds):
                plain, tokens = [await cost(weir, arguments.requests) for weir in weirs]
                ratios.append(tokens / plain)
                print(f"round {number + 1}: {plain:.0f} µs without, {tokens:.0f} µs with: {ratios[-1]:.2f}")
            charged = weirs[1].metric("weir_response_cost_units_total")
            print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}), {charged:.0f} tokens charged")
        finally:
            for weir in weirs:
                weir.stop()
            server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(main(parser.parse_args()))
