"""Makes a case smaller for as long as it shows the same finding.

Lists lose halves, quarters and at last single elements; then long byte strings are shortened. Works on any case, since
it looks only at the shape of the data.
"""

import copy

from .case import Case

# Attempts for one case; each plays it once.
MAX_ATTEMPTS = 1500


async def shrink(case, shows):
    """The smallest case found for which `await shows(case)` still holds."""
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
    """The smallest case so far, and how many attempts are left."""

    def __init__(self, case, shows):
        self.case, self.shows, self.left = case, shows, MAX_ATTEMPTS

    def size(self):
        """Something that becomes less with each success."""
        return len(self.case.to_json())

    async def attempt(self, path, value):
        """Puts `value` at `path` if the finding is still there."""
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
        """Leaves out of a list what is not needed."""
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
    """The paths of all lists, outer ones first."""
    if isinstance(value, list):
        yield path
    if isinstance(value, (list, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from lists(item, (*path, key))


def strings(value, path=()):
    """The paths of all long byte strings."""
    if isinstance(value, bytes) and len(value) > 8:
        yield path
    elif isinstance(value, (list, dict, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from strings(item, (*path, key))


def get(value, path, otherwise):
    """What stands at `path`; what is smaller by now may have nothing there."""
    for key in path:
        try:
            value = value[key]
        except (IndexError, KeyError, TypeError):
            return otherwise
    return value


def put(value, path, new):
    """Puts `new` at `path`, through tuples, too."""
    parents = [value]
    for key in path[:-1]:
        parents.append(parents[-1][key])
    for parent, key in zip(reversed(parents), reversed(path)):
        if isinstance(parent, tuple):
            new = (*parent[:key], new, *parent[key + 1 :])
        else:
            parent[key] = new
            return
