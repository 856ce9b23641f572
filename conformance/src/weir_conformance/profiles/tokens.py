"""Costs that are known only when the upstream has responded."""

from __future__ import annotations

from weir_conformance.context import Context, expect
from weir_conformance.limit import Limit
from weir_conformance.origin import ASKED_COST
from weir_conformance.reply import Probe, Reply
from weir_conformance.requirement import Severity, requirement

SOURCE = "Envoy AI Gateway, usage-based rate limiting"
NEEDS = ("key.header", "response_cost", "forwards")


def of_cost(context: Context) -> Limit:
    return Limit(20, 3600 if not context.target.periods or 3600 in context.target.periods else 60, cost="response")


def ask(context: Context, limit: Limit, key: str, cost: int) -> Reply:
    """Sends a request whose response states this cost."""
    return context.client(context.instance(limit)).send(Probe(key, headers=((ASKED_COST, str(cost)),)))


@requirement("TOKENS-1", "Charges what the response states", source=SOURCE, needs=NEEDS)
def charged(context: Context) -> None:
    """After responses that cost 20 of 20 together, a request is rejected."""
    limit, key = of_cost(context), context.new_key()
    replies = [ask(context, limit, key, 5) for _ in range(5)]
    passed = [reply.admitted for reply in replies]
    expect(passed == [True] * 4 + [False], f"of five requests that cost 5 of 20 each, {sum(passed)} were admitted")


@requirement("TOKENS-2", "A response that costs nothing charges nothing", source=SOURCE, severity=Severity.SHOULD, needs=NEEDS)
def free(context: Context) -> None:
    """Thirty responses with a cost of 0 leave the limit of 20 whole."""
    limit, key = of_cost(context), context.new_key()
    passed = sum(ask(context, limit, key, 0).admitted for _ in range(30))
    expect(passed == 30, f"admitted {passed} of 30 requests that cost nothing")
    expect(ask(context, limit, key, 1).admitted, "rejected, although nothing was charged")


@requirement("TOKENS-3", "One expensive response blocks its key only", source=SOURCE, needs=NEEDS)
def expensive(context: Context) -> None:
    """A response that costs more than the whole limit blocks its key, and no other."""
    limit, key = of_cost(context), context.new_key()
    ask(context, limit, key, 100)
    expect(not ask(context, limit, key, 1).admitted, "admitted after a response that cost five times the limit")
    expect(ask(context, limit, context.new_key(), 1).admitted, "another key is rejected")
