"""Shrinks a case as long as it still has the same finding.

Lists lose halves, quarters and finally single elements; then long byte strings are shortened. This works for any case,
since it depends only on the structure of the data.
"""

import copy

from .case import Case

# Maximum number of attempts per case; each plays it once.
MAX_ATTEMPTS = 1500


async def shrink(case, shows):
    """Returns the smallest case found for which `await shows(case)` is still true."""
    search = Search(case, shows)
    size = None
    while size != (size := search.size()) and search.left > 0:
        inner = None
        while inner != (inner := search.size()) and search.left > 0:
            for path in sorted(lists(search.case.data), key=len):
                await search.thin_out(path)
        for path in strings(search.case.data):
            await search.shorten(path)
    return search.case


class Search:
    """Smallest case so far, and the number of attempts left."""

    def __init__(self, case, shows):
        self.case, self.shows, self.left = case, shows, MAX_ATTEMPTS

    def size(self):
        """Returns a number that decreases with each success."""
        return len(self.case.to_json())

    async def attempt(self, path, value):
        """Puts `value` at `path` if the finding remains. Returns whether it does."""
        if self.left <= 0:
            return False
        self.left -= 1
        data = copy.deepcopy(self.case.data)
        put(data, path, value)
        smaller = Case(self.case.part, data)
        if not await self.shows(smaller):
            return False
        self.case = smaller
        return True

    async def thin_out(self, path):
        """Removes unneeded elements from a list."""
        step = max(1, len(get(self.case.data, path, [])) // 2)
        while step:
            at = 0
            while at < len(items := get(self.case.data, path, [])):
                if not await self.attempt(path, items[:at] + items[at + step :]):
                    at += step
            step //= 2

    async def shorten(self, path):
        """Cuts bytes off both ends of a string."""
        step = len(get(self.case.data, path, b"")) // 2
        while step:
            text = get(self.case.data, path, b"")
            if len(text) <= step or not (
                await self.attempt(path, text[step:]) or await self.attempt(path, text[:-step])
            ):
                step //= 2


def lists(value, path=()):
    """Yields the paths of all lists, outer ones first."""
    if isinstance(value, list):
        yield path
    if isinstance(value, (list, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from lists(item, (*path, key))


def strings(value, path=()):
    """Yields the paths of all byte strings longer than 8 bytes."""
    if isinstance(value, bytes) and len(value) > 8:
        yield path
    elif isinstance(value, (list, dict, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from strings(item, (*path, key))


def get(value, path, otherwise):
    """Returns the value at `path`, or `otherwise` if it no longer exists after shrinking."""
    for key in path:
        try:
            value = value[key]
        except (IndexError, KeyError, TypeError):
            return otherwise
    return value


def put(value, path, new):
    """Puts `new` at `path`, also inside tuples."""
    parents = [value]
    for key in path[:-1]:
        parents.append(parents[-1][key])
    for parent, key in zip(reversed(parents), reversed(path)):
        if isinstance(parent, tuple):
            new = (*parent[:key], new, *parent[key + 1 :])
        else:
            parent[key] = new
            return
