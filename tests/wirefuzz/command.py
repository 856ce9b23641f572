"""Command line: generates cases from a seed, plays several concurrently, and shrinks those that fail."""

import argparse
import asyncio
import logging
import os
import random
import sys
import time
from pathlib import Path

from . import requests, responses, sessions
from .arena import Arena
from .case import Case, Finding
from .shrink import shrink

PARTS = {"requests": requests, "responses": responses, "sessions": sessions}
# Number of cases played concurrently.
LANES = 12
# Number of cases between two checks of the whole process.
INSPECTION = 2000


def main():
    """Runs the command. The exit code is 1 if there were findings."""
    options = arguments()
    # Errors of closed connections are expected here.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        return asyncio.run(run(options))
    except KeyboardInterrupt:
        return 130


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="tests/wire-fuzz", description="Plays generated cases against the real binary and judges them by the RFCs."
    )
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--binary", default=os.environ.get("WEIR_BIN", f"{target}/debug/weir"), help="default: %(default)s")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, help="what the cases are generated from; default: the time")
    parser.add_argument("--seconds", type=float, default=60, help="for all parts together; default: %(default)s")
    parser.add_argument("--cases", type=int, help="so many of each part, instead of --seconds")
    parser.add_argument("--case", type=int, help="only the case of this number, of one --part")
    parser.add_argument("--replay", type=Path, help="only the case in this file")
    parser.add_argument("--keep", type=Path, help="a directory for what is found, as files for --replay")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int(time.time())
    if options.case is not None and len(options.part or []) != 1:
        parser.error("--case needs one --part")
    return options


async def run(options):
    """Runs all parts, or a single case."""
    if options.replay:
        case = Case.from_json(options.replay.read_text())
        return await replay(options, case)
    if options.case is not None:
        return await replay(options, generate(options.part[0], options.seed, options.case))
    parts, failed = options.part or list(PARTS), False
    for part in parts:
        hunt = Hunt(options, part)
        failed |= await hunt.run(options.seconds / len(parts))
    return int(failed)


def generate(part, seed, number):
    """Generates the case with this number."""
    return PARTS[part].generate(random.Random(f"{seed}/{part}/{number}"))


def arena_for(options, part):
    """Returns the environment for the cases of a part."""
    module = PARTS[part]
    return Arena(options.binary, **getattr(module, "ARENA", {}))


async def replay(options, case):
    """Plays one case and prints its findings."""
    arena = arena_for(options, case.part)
    await arena.start()
    findings = await PARTS[case.part].play(arena, case)
    findings += arena.stray + [Finding(text) for text in await arena.stop()]
    for finding in findings:
        print(f"{finding.kind}\n{finding.detail}")
    print("failed" if findings else "passed")
    return int(bool(findings))


class Hunt:
    """Search for findings in one part."""

    def __init__(self, options, part):
        self.options, self.part, self.module = options, part, PARTS[part]
        self.arena, self.next, self.played, self.found = None, 0, 0, {}
        self.deadline = None

    async def run(self, seconds):
        """Plays cases until the time or the number of cases is reached. Returns whether there were findings."""
        self.arena = arena_for(self.options, self.part)
        await self.arena.start()
        begun = time.monotonic()
        self.deadline = None if self.options.cases else begun + seconds
        while not self.is_over():
            limit = self.next + INSPECTION
            await asyncio.gather(*(self.lane(limit) for _ in range(LANES)))
            if await self.inspect():
                break
        if self.played >= 200 and self.arena.forwarded < self.played / 5:
            self.note(None, Finding("too few cases reach the upstream", f"{self.arena.forwarded} of {self.played}"))
        await self.examine()
        for text in await self.arena.stop():
            self.note(None, Finding(text))
        took = time.monotonic() - begun
        print(
            f"{self.part}: seed {self.options.seed}, {self.played} cases ({self.arena.forwarded} forwarded) in {took:.0f} s, {len(self.found)} kinds of findings",
            flush=True,
        )
        return bool(self.found)

    def is_over(self):
        """Whether no further case is to be started."""
        if self.deadline is None:
            return self.next >= self.options.cases
        return time.monotonic() >= self.deadline

    async def lane(self, limit):
        """Plays cases one after the other."""
        while self.next < limit and not self.is_over():
            number, self.next = self.next, self.next + 1
            case = generate(self.part, self.options.seed, number)
            for finding in await self.module.play(self.arena, case):
                self.note(number, finding)
            self.played += 1
            if self.arena.proxy.process.poll() is not None:
                return

    def note(self, number, finding):
        """Records a finding: keeps the first one of each kind, and counts the others."""
        first = self.found.setdefault(finding.kind, [number, finding, 0])
        first[2] += 1
        if first[2] == 1:
            print(f"{self.part}: case {number}: {finding.kind}", flush=True)

    async def inspect(self):
        """Checks the process, and collects findings that belong to no case. Returns whether to stop."""
        for finding in self.arena.stray:
            self.note(None, finding)
        self.arena.stray.clear()
        complaints = await asyncio.to_thread(self.arena.proxy.complaints)
        for text in complaints:
            self.note(None, Finding(text, "\n".join(self.arena.proxy.log[-20:])))
        return bool(complaints)

    async def examine(self):
        """Shrinks the findings, and prints how to reproduce them."""
        for kind, (number, finding, count) in sorted(self.found.items()):
            print(f"\n== {self.part}: {kind} ({count} cases)")
            smallest = None
            if number is not None and self.arena.proxy.process.poll() is None:
                smallest = await self.smallest(number, kind)
            if smallest is None:
                print(finding.detail)
                if number is not None:
                    print("not seen again when played alone")
            else:
                case, finding = smallest
                print(finding.detail)
                self.keep(case, kind)
            if number is not None:
                print(f"replay: tests/wire-fuzz --part {self.part} --seed {self.options.seed} --case {number}")

    async def smallest(self, number, kind):
        """Returns the smallest case with the same kind of finding, and that finding."""
        last = None

        async def shows(case):
            nonlocal last
            same = [finding for finding in await self.module.play(self.arena, case) if finding.kind == kind]
            same += [finding for finding in self.arena.stray if finding.kind == kind]
            self.arena.stray.clear()
            last = same[0] if same else last
            return bool(same)

        case = generate(self.part, self.options.seed, number)
        if not await shows(case):
            return None
        return await shrink(case, shows), last

    def keep(self, case, kind):
        """Writes a case to a file."""
        if self.options.keep is None:
            return
        self.options.keep.mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{self.part}-{kind}")[:80]
        file = self.options.keep / f"{name}.json"
        file.write_text(case.to_json())
        print(f"kept: {file}", file=sys.stderr)
