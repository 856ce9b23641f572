#!/usr/bin/env python3
"""Draws the pictures of concepts.md: the requests that each algorithm admits, for the same arrivals.

    python3 docs/concepts/draw.py

It needs only the standard library. Its output is always the same. The algorithms are those of crates/limiter/src/algorithm,
reimplemented in milliseconds. The limit is 10 requests in 10 seconds throughout.
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent

COUNT = 10
PERIOD = 10_000
INTERVAL = PERIOD // COUNT
END = 40_000

# Two bursts, one before and one after the window boundary at 10 s, then twice the rate of the limit.
ARRIVALS = [*range(7_500, 9_900, 200), *range(10_400, 12_800, 200), *range(20_000, 32_000, 500)]


class Gcra:
    """A token bucket whose state is one time: the theoretical arrival time, at which the bucket is full again."""

    def __init__(self, burst=COUNT, delay=0):
        self.burst, self.delay, self.arrival = burst, delay, 0

    def offer(self, now):
        """Returns the delay of a request in milliseconds, or None if it is rejected."""
        following = max(self.arrival, now) + INTERVAL
        wait = max(following - now - self.burst * INTERVAL, 0)
        if wait > self.delay:
            return None
        self.arrival = following
        return wait

    def used(self, now):
        return max(self.arrival - now, 0) / INTERVAL

    def level(self, now):
        return self.burst - self.used(now)


class LeakyBucket(Gcra):
    """The same arithmetic as a queue: requests beyond the burst are delayed."""

    def level(self, now):
        return self.used(now)


class Refill:
    """A bucket that gets several tokens at once. Its clock starts when the first token is taken."""

    def __init__(self, refill, every):
        self.refill, self.every, self.missing, self.since = refill, every, 0, 0

    def advance(self, now):
        refills = (now - self.since) // self.every
        self.missing = max(self.missing - refills * self.refill, 0)
        self.since += refills * self.every
        if self.missing == 0:
            self.since = now

    def offer(self, now):
        self.advance(now)
        if self.missing == COUNT:
            return None
        self.missing += 1
        return 0

    def level(self, now):
        return COUNT - max(self.missing - (now - self.since) // self.every * self.refill, 0)


class FixedWindow:
    """A count that is reset at each window boundary."""

    def __init__(self):
        self.window, self.count = 0, 0

    def offer(self, now):
        if now // PERIOD != self.window:
            self.window, self.count = now // PERIOD, 0
        if self.count == COUNT:
            return None
        self.count += 1
        return 0

    def level(self, now):
        return self.count if now // PERIOD == self.window else 0


class SlidingWindow:
    """The counts of two windows. The previous one is weighted by its overlap, rounded up."""

    def __init__(self):
        self.window, self.current, self.previous = 0, 0, 0

    def at(self, now):
        window = now // PERIOD
        if window == self.window:
            return self.current, self.previous
        return 0, self.current if window == self.window + 1 else 0

    def level(self, now):
        current, previous = self.at(now)
        return current - (-previous * (PERIOD - now % PERIOD) // PERIOD)

    def offer(self, now):
        if self.level(now) + 1 > COUNT:
            return None
        current, previous = self.at(now)
        self.window, self.current, self.previous = now // PERIOD, current + 1, previous
        return 0


class SlidingLog:
    """The times of all requests admitted within the last period."""

    def __init__(self):
        self.log = []

    def level(self, now):
        return sum(now < at + PERIOD for at in self.log)

    def offer(self, now):
        if self.level(now) == COUNT:
            return None
        self.log.append(now)
        return 0


DELAY = 4_000

# File, name, configuration, constructor, caption of the graph, and the graph's horizontal line with its text.
ALGORITHMS = [
    ("token-bucket", "gcra, token_bucket", "limit: 10/10s", Gcra, "tokens left", (0, "empty: rejected")),
    ("refill", "refills", "token_bucket: { refill: 5, every: 5s }, burst: 10", lambda: Refill(5, 5_000),
     "tokens left", (0, "empty: rejected")),
    ("leaky-bucket", "leaky_bucket, delay", "limit: 10/10s, throttle: delay 4s",
     lambda: LeakyBucket(1, DELAY), "queue, in units", (1 + DELAY / INTERVAL, "queue full: rejected")),
    ("fixed-window", "fixed_window", "limit: 10/10s", FixedWindow, "count of the window", (COUNT, "limit")),
    ("sliding-window", "sliding_window", "limit: 10/10s", SlidingWindow, "estimated count", (COUNT, "limit")),
    ("sliding-log", "sliding_log", "limit: 10/10s", SlidingLog, "count of the last 10 s", (COUNT, "limit")),
]


def play(limiter):
    """Returns the time and the delay or None of each arrival, and samples of the level just before and after it."""
    outcomes, samples, arrivals = [], [], iter([*ARRIVALS, None])
    following = next(arrivals)
    for now in range(0, END + 1, 50):
        samples.append((now, limiter.level(now)))
        if now == following:
            outcomes.append((now, limiter.offer(now)))
            samples.append((now, limiter.level(now)))
            following = next(arrivals)
    return outcomes, corners(samples)


def corners(samples):
    """Returns the samples without those on a straight line between their neighbours."""
    kept = samples[:1]
    for sample, following in zip(samples[1:], samples[2:]):
        (ax, ay), (bx, by), (cx, cy) = kept[-1], sample, following
        if abs((by - ay) * (cx - ax) - (cy - ay) * (bx - ax)) > 1e-6:
            kept.append(sample)
    return kept + samples[-1:]


def most_in_a_period(outcomes):
    """Returns the maximum number of requests sent to the upstream in any span as long as the period."""
    sent = [at + wait for at, wait in outcomes if wait is not None]
    return max(sum(at <= other < at + PERIOD for other in sent) for at in sent)


# Drawing. A white background and mid-tones are legible on light and dark pages.

WIDTH, LEFT, RIGHT = 860, 176, 838
BLUE, RED, GREY, LIGHT, BLACK = "#1f6feb", "#cf222e", "#57606a", "#d0d7de", "#1f2328"


def number(value):
    return f"{value:.1f}".removesuffix(".0")


def across(now):
    return LEFT + (RIGHT - LEFT) * now / END


def text(x, y, words, fill=BLACK, anchor="start", more=""):
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{number(x)}" y="{number(y)}" fill="{fill}"{anchor}{more}>{words}</text>'


def path(steps, colour, width, more=""):
    return f'<path d="{"".join(steps)}" fill="none" stroke="{colour}" stroke-width="{width}"{more}/>'


def ticks(times, bottom, height, colour):
    steps = [f"M{number(across(at))} {number(bottom)}v{number(-height)}" for at in times]
    return path(steps, colour, 2) if steps else ""


def marks(top, bottom):
    """Draws the window boundaries and their labels in seconds."""
    lines = [f"M{number(across(at))} {top}V{bottom}" for at in range(0, END + 1, PERIOD)]
    words = [text(across(at), bottom + 15, f"{at // 1000} s", GREY, "middle") for at in range(0, END + 1, PERIOD)]
    return [path(lines, LIGHT, 1), *words]


def requests(outcomes, bottom, height):
    """Draws a tick for each request sent to the upstream, and a shorter red one for each rejected request."""
    sent = [at + wait for at, wait in outcomes if wait is not None]
    rejected = [at for at, wait in outcomes if wait is None]
    return [ticks(sent, bottom, height, BLUE), ticks(rejected, bottom, height * 0.55, RED)]


def document(height, title, parts):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="12">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
    )
    return head + "\n".join(part for part in parts if part) + "\n</svg>\n"


def legend(y):
    return [
        path([f"M{LEFT} {y}v-12"], BLUE, 2), text(LEFT + 8, y - 2, "request sent to the upstream", GREY),
        path([f"M{LEFT + 210} {y}v-7"], RED, 2), text(LEFT + 218, y - 2, "request rejected", GREY),
    ]


def overview():
    row, top = 46, 40
    bottom = top + row * (len(ALGORITHMS) + 1)
    parts = [*legend(22), *marks(top, bottom), text(14, top + 26, "arrivals", more=' font-weight="bold"')]
    parts += [text(14, top + 40, f"{len(ARRIVALS)} requests", GREY), ticks(ARRIVALS, top + 38, 22, GREY)]
    for place, (_, name, _, make, _, _) in enumerate(ALGORITHMS, 1):
        outcomes, _ = play(make())
        base = top + row * place
        admitted = sum(wait is not None for _, wait in outcomes)
        parts.append(text(14, base + 26, name, more=' font-weight="bold"'))
        parts.append(text(14, base + 40, f"{admitted} sent, {most_in_a_period(outcomes)} in 10 s", GREY))
        parts += requests(outcomes, base + 38, 22)
        parts.append(path([f"M{LEFT} {base + 38}H{RIGHT}"], LIGHT, 1))
    return document(bottom + 24, "What each algorithm sends to the upstream, of the same requests", parts)


def picture(name, configuration, make, graph, line):
    outcomes, samples = play(make())
    top, bottom, base = 66, 100, 226
    (level, words), most = line, max(line[0], COUNT if line[0] in (0, COUNT) else 0)
    up = lambda value: base - (base - bottom - 26) * value / most
    area = [f"{number(across(at))} {number(up(value))}" for at, value in samples]
    admitted = sum(wait is not None for _, wait in outcomes)
    parts = [
        text(14, 24, name, more=' font-size="13" font-weight="bold"'),
        text(LEFT, 24, configuration, GREY, more=' font-family="monospace"'),
        text(RIGHT, 24, f"{admitted} of {len(ARRIVALS)} sent, at most {most_in_a_period(outcomes)} in any 10 s", GREY, "end"),
        *legend(48), *marks(top - 8, base),
        text(14, bottom - 6, "requests"), *requests(outcomes, bottom, 28), path([f"M{LEFT} {bottom}H{RIGHT}"], LIGHT, 1),
        text(14, (base + bottom) / 2 + 16, graph),
        f'<path d="M{across(0):.0f} {base}L{"L".join(area)}V{base}Z" fill="#ddf4ff"/>',
        path([f"M{'L'.join(area)}"], BLUE, 1.5),
        path([f"M{LEFT} {number(up(level))}H{RIGHT}"], RED, 1.5, ' stroke-dasharray="5 4"'),
        text(RIGHT - 4, up(level) - 5, words, RED, "end"),
        text(LEFT - 6, up(most) + 4, number(most), GREY, "end"), text(LEFT - 6, base + 4, "0", GREY, "end"),
    ]
    return document(252, f"{name}: {configuration}", parts)


def decision():
    """Draws the stages of a decision as boxes from left to right."""
    steps = [
        ("identify", ["client address,", "path, host, …"]), ("match", ["which rules", "apply"]),
        ("check", ["all limits", "at one moment"]), ("forward", ["to the upstream,", "now or later"]),
        ("settle", ["charge, refund,", "return permits"]),
    ]
    width, gap, top = 136, 36, 40
    parts, x = [], 14
    for place, (name, lines) in enumerate(steps):
        parts.append(f'<rect x="{x}" y="{top}" width="{width}" height="66" rx="6" fill="#f6f8fa" stroke="{GREY}"/>')
        parts.append(text(x + width / 2, top + 22, name, anchor="middle", more=' font-weight="bold"'))
        parts += [text(x + width / 2, top + 41 + 15 * row, words, GREY, "middle") for row, words in enumerate(lines)]
        if place + 1 < len(steps):
            parts += arrow(x + width, top + 33, x + width + gap, top + 33, BLUE)
        x += width + gap
    middle = [14 + place * (width + gap) + width / 2 for place in range(len(steps))]
    parts += arrow(middle[1], top + 66, middle[1], top + 114, RED) + arrow(middle[2], top + 66, middle[2], top + 114, RED)
    parts += [
        text(middle[1], top + 132, "403, 400", RED, "middle", ' font-weight="bold"'),
        text(middle[1], top + 148, "denied, no usable key", GREY, "middle"),
        text(middle[2], top + 132, "429", RED, "middle", ' font-weight="bold"'),
        text(middle[2], top + 148, "no limit is charged", GREY, "middle"),
        text(middle[3], top + 132, "every limit has room,", BLUE, "middle"),
        text(middle[3], top + 148, "and all are charged", GREY, "middle"),
        *[path([f"M{number(middle[3])} {top + 114}V{top + 72}"], BLUE, 1.5, ' stroke-dasharray="4 3"')],
        text(14, 24, "request", GREY), text(14 + 5 * width + 4 * gap, 24, "response", GREY, "end"),
    ]
    return document(206, "The life of a decision", parts)


def arrow(x, y, to_x, to_y, colour):
    tip = f"M{number(to_x)} {number(to_y)}" + ("l-7 -4v8z" if y == to_y else "l-4 -7h8z")
    return [path([f"M{number(x)} {number(y)}L{number(to_x)} {number(to_y)}"], colour, 1.5), f'<path d="{tip}" fill="{colour}"/>']


def main():
    (HERE / "algorithms.svg").write_text(overview(), encoding="utf-8")
    (HERE / "decision.svg").write_text(decision(), encoding="utf-8")
    for file, name, configuration, make, graph, line in ALGORITHMS:
        (HERE / f"{file}.svg").write_text(picture(name, configuration, make, graph, line), encoding="utf-8")


if __name__ == "__main__":
    main()
