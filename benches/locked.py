#!/usr/bin/env python3
"""Counts the locked instructions per request of Weir: additions and exchanges that are atomic for all processors.

Each takes about 20 cycles, even if no other processor uses the memory, and other instructions do not overlap with it. So
they cost more than their number suggests. callgrind counts how often each instruction of the program is executed, and objdump
names those that are locked. Those of libraries are not included. The scenarios are those of instructions.py.
"""
import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import instructions
import protocols

LOCKED = re.compile(r"lock |xchg .*\(")
# Name of a function, address and text of an instruction, as objdump prints them.
FUNCTION, INSTRUCTION = re.compile(r"[0-9a-f]+ <(.*)>:"), re.compile(r" *([0-9a-f]+):\t(.*)")
# Address, line and count of a cost line of callgrind.
COST = re.compile(r"(0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)$")


def locked_instructions(program):
    """Returns the function and the text of each locked instruction by address."""
    listing = subprocess.run(["objdump", "-dC", "--no-show-raw-insn", program], capture_output=True, text=True, check=True)
    found, function = {}, ""
    for line in listing.stdout.splitlines():
        if name := FUNCTION.match(line):
            function = name[1]
        elif (instruction := INSTRUCTION.match(line)) and LOCKED.match(instruction[2]):
            found[int(instruction[1], 16)] = f"{function}: {' '.join(instruction[2].split())}"
    return found


def executions(profile, program):
    """Yields the address of each instruction of the program with the number of its executions."""
    address, is_call, object_file, names = 0, False, "", {}
    for line in profile.splitlines():
        if line.startswith(("ob=", "cob=")):
            number, _, name = line.split("=", 1)[1].partition(" ")
            names[number] = name or names[number]
            object_file = names[number] if line.startswith("ob=") else object_file
        elif line.startswith("calls="):
            is_call = True
        elif cost := COST.match(line):
            step = cost[1]
            address = int(step, 16) if step.startswith("0x") else address + (0 if step == "*" else int(step))
            # The line after a call has the cost of the callee.
            if not is_call and object_file == program:
                yield address, int(cost[2])
            is_call = False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary, with symbols (default: %(default)s)")
    parser.add_argument("--scenarios", default="forwarded,rejected", help="what to count (%(default)s)")
    parser.add_argument("--requests", type=int, default=4000, help="requests counted (default: %(default)s)")
    parser.add_argument("--places", type=int, default=0, help="also print this number of the most frequent ones")
    options = parser.parse_args()
    options.envoy, options.profile, options.callgrind = None, None, ["--dump-instr=yes"]
    options.weir = str(Path(options.weir).resolve())
    for tool in ("nginx", "h2load", "objdump", "valgrind"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    locked = locked_instructions(options.weir)
    print("| scenario | instructions/request | locked |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="locked-bench-") as directory, protocols.upstream(directory) as upstreams:
        for scenario in options.scenarios.split(","):
            counted, profile = instructions.count(scenario, "weir", options, directory, upstreams)
            executed = collections.Counter()
            for address, number in executions(profile, options.weir):
                if address in locked:
                    executed[locked[address]] += number
            print(f"| {scenario} | {counted:.0f} | {executed.total() / options.requests:.1f} |", flush=True)
            for place, number in executed.most_common(options.places):
                print(f"| | {place} | {number / options.requests:.2f} |")


if __name__ == "__main__":
    main()
