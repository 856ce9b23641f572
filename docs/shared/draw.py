#!/usr/bin/env python3
"""Draws fleet.svg and prints the tables of shared-limits.md, from fleet.csv of `cargo bench --features jemalloc --bench fleet -- --csv FILE`.

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


def main():
    all_rows = rows()
    found = {(row["way"], row["limit"]): row for row in all_rows if (row["demand"], row["pattern"]) == ("0.90", "shifting")}
    for row in all_rows:
        found.setdefault((row["way"], row["limit"]), row)
    (HERE / "fleet.svg").write_text(picture(found))
    table(all_rows)
    print()
    others(all_rows)


main()
