#!/usr/bin/env python3
"""Draws fleet.svg and faults.svg, and prints the tables of shared-limits.md.

The data are fleet.csv of `cargo bench --features jemalloc --bench fleet -- --csv FILE`, and faults.csv, the output of
`cargo bench --features jemalloc --bench fleet -- faults`.

    python3 docs/shared/draw.py

It needs only the standard library. Its output is always the same.
"""

import csv
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
WAYS = {
    "lease": ("lease", "#1f77b4"),
    "exact": ("exact", "#2ca02c"),
    "split": ("split", "#d62728"),
    "incr": ("one INCR per request", "#9467bd"),
    "pipeline": ("INCRBY and EXPIRE", "#8c564b"),
}
LIMITS = ["10", "100", "10000", "300000", "2000000"]
NAMES = ["10", "100", "10 000", "300 000", "2 000 000"]
PANEL, HEIGHT, LEFT, TOP = 380, 220, 60, 50


def rows():
    with open(HERE / "fleet.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row["keys"] == "1"]


def bars(found, value, scale, panel, title, marks):
    """Draws one panel: groups of bars by limit. `scale` maps a value to a fraction of the height."""
    left = LEFT + panel * (PANEL + 70)
    parts = [f'<text x="{left}" y="{TOP - 16}" font-weight="bold">{title}</text>']
    for mark, text in marks:
        y = TOP + HEIGHT * (1 - scale(mark))
        parts.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    group = PANEL / len(LIMITS)
    for index, (limit, name) in enumerate(zip(LIMITS, NAMES)):
        x = left + index * group
        parts.append(f'<text x="{x + group / 2:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{name}</text>')
        for place, way in enumerate(WAYS):
            row = found.get((way, limit))
            if row is None:
                continue
            height = max(HEIGHT * min(scale(value(row)), 1), 1)
            width = (group - 12) / len(WAYS)
            parts.append(
                f'<rect x="{x + 6 + place * width:.1f}" y="{TOP + HEIGHT - height:.1f}" width="{width - 1:.1f}" '
                f'height="{height:.1f}" fill="{WAYS[way][1]}"/>'
            )
    return parts


def picture(found):
    width = LEFT + 2 * PANEL + 100
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 70}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    used = [(part / 4, f"{part * 25} %") for part in range(5)]
    parts += bars(found, lambda row: float(row["used"]), lambda used: used, 0, "Usage of the limit", used)
    calls = lambda row: float(row["calls_per_admitted"])
    scale = lambda calls: (math.log10(max(calls, 1e-4)) + 4) / 5
    marks = [(10.0**power, f"{10.0**power:g}") for power in range(-4, 2)]
    parts += bars(found, calls, scale, 1, "Store calls per admitted request", marks)
    x = LEFT
    for text, colour in WAYS.values():
        parts.append(f'<rect x="{x}" y="{TOP + HEIGHT + 38}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{TOP + HEIGHT + 48}">{text}</text>')
        x += 60 + 7 * len(text)
    return "\n".join([*parts, "</svg>", ""])


def table(all_rows):
    print("| limit/s | demand | pattern | used | excess | calls per admitted | p99 of a decision | waited | Redis |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in all_rows:
        if row["way"] != "lease":
            continue
        small = int(row["limit"]) <= 100
        p99 = "waits" if small else f"{int(row['p99_ns']) / 1000:.2f} µs"
        name = NAMES[LIMITS.index(row["limit"])]
        print(
            f"| {name} | {row['demand']} | {row['pattern']} | {float(row['used']):.2%} | {row['violations_1s']} | "
            f"{float(row['calls_per_admitted']):.5f} | {p99} | {min(float(row['waited']), 1):.1%} | {float(row['redis_cpu']):.1%} |"
        )


def others(all_rows):
    print("| limit/s | pattern | way | used | calls per admitted | rejected for lack of room | Redis |")
    print("|---|---|---|---|---|---|---|")
    for row in all_rows:
        if row["demand"] != "0.90" or row["pattern"] not in ("even", "shifting"):
            continue
        part = int(row["crowded"]) / max(float(row["offered_per_second"]) * 3, 1) if row["way"] in ("incr", "pipeline") else 0
        print(
            f"| {NAMES[LIMITS.index(row['limit'])]} | {row['pattern']} | {WAYS[row['way']][0]} | {float(row['used']):.1%} | "
            f"{float(row['calls_per_admitted']):.4f} | {part:.0%} | {float(row['redis_cpu']):.1%} |"
        )


LIMIT = 10_000
FAULTS = {
    "none": "nothing fails",
    "killed": "the store is gone, seconds 8 to 38",
    "frozen": "the store is frozen, seconds 8 to 18",
    "late": "the store responds after the timeout, seconds 8 to 18",
    "flushed": "the store loses its data in second 8",
    "old_snapshot": "the store is restored from a snapshot of second 5",
    "failed_over": "the master is killed, Sentinel names its replica",
    "third_killed": "a third of the instances is killed",
    "doubled": "as many instances again start",
    "third_cut": "a third loses the store, seconds 8 to 18",
    "half_cut": "half loses the store, seconds 8 to 18",
    "two_thirds_cut": "two thirds lose the store, seconds 8 to 18",
    "region_cut": "one loses the global store, seconds 8 to 18",
}
FLEETS = {"": "split", "parts": "strict_split", "regions": "three regions"}
COLOURS = {"": "#1f77b4", "parts": "#2ca02c", "regions": "#d62728"}


def fault_rows():
    with open(HERE / "faults.csv", newline="") as file:
        return list(csv.DictReader(file))


def fault_panel(row, place):
    """Draws the admissions in each second of one experiment, as a share of twice the limit."""
    way, _, fault = row["fault"].rpartition(":")
    left, top = LEFT + place % 3 * (PANEL + 20), TOP + place // 3 * 150
    counts = [int(count) for count in row["seconds"].split()[3:-1]]
    x = lambda second: left + second / 50 * PANEL
    y = lambda count: top + 100 * (1 - min(count / (2 * LIMIT), 1))
    points = " ".join(f"{x(second):.1f},{y(count):.1f}" for second, count in enumerate(counts, 3))
    colour = COLOURS[way]
    title = f"{FLEETS[way]}: {FAULTS[fault]}"
    return [
        f'<text x="{left}" y="{top - 6}">{title}</text>',
        f'<line x1="{left}" x2="{left + PANEL}" y1="{y(LIMIT)}" y2="{y(LIMIT)}" stroke="#bbbbbb"/>',
        f'<line x1="{left}" x2="{left + PANEL}" y1="{y(0)}" y2="{y(0)}" stroke="#bbbbbb"/>',
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
    ]


def fault_picture(all_rows):
    width, height = LEFT + 3 * (PANEL + 20), TOP + (len(all_rows) + 2) // 3 * 150
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18">Admitted by 96 instances in each of 50 seconds; the line is the limit, {LIMIT} a second</text>',
    ]
    for place, row in enumerate(all_rows):
        parts += fault_panel(row, place)
    return "\n".join([*parts, "</svg>", ""])


def fault_table(all_rows):
    print("| fault | way | used meanwhile | used afterwards | most above r·w + B, in any window |")
    print("|---|---|---|---|---|")
    for row in all_rows:
        way, _, fault = row["fault"].rpartition(":")
        excess = f"{float(row['excess']):,.0f} units".replace(",", " ") if float(row["excess"]) > 0 else "none"
        print(
            f"| {FAULTS[fault]} | {FLEETS[way] if way == 'regions' else f'`{FLEETS[way]}`'} | {float(row['used_meanwhile']):.1%} | "
            f"{float(row['used_after']):.1%} | {excess} |"
        )


def main():
    all_rows = rows()
    found = {(row["way"], row["limit"]): row for row in all_rows if (row["demand"], row["pattern"]) == ("0.90", "shifting")}
    for row in all_rows:
        found.setdefault((row["way"], row["limit"]), row)
    (HERE / "fleet.svg").write_text(picture(found))
    table(all_rows)
    print()
    others(all_rows)
    print()
    faults = fault_rows()
    (HERE / "faults.svg").write_text(fault_picture(faults))
    fault_table(faults)


main()
