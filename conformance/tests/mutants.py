"""Faults of the reference limiter, each with the requirement that catches it.

`also` are requirements that the fault violates as well, because they promise the same in another situation. Every other
requirement must still be met.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    caught_by: str
    also: tuple[str, ...] = ()


MUTANTS: tuple[Mutant, ...] = (
    Mutant("one_less", "CORE-1", ("CORE-4", "CORE-5", "CORE-9", "CORE-10")),
    Mutant("one_more", "CORE-2", ("CORE-8", "CORE-9", "CORE-10")),
    Mutant("never_recovers", "CORE-3", ("CORE-5",)),
    Mutant("one_key", "CORE-4", ("CORE-1", "CORE-3", "CORE-9", "CORE-10")),
    Mutant("charges_rejected", "CORE-5", ()),
    Mutant("status_403", "CORE-6", ()),
    Mutant("forwards_rejected", "CORE-7", ()),
    Mutant("forwards_twice", "CORE-7", ()),
    Mutant("per_connection", "CORE-8", ("CORE-4", "CORE-1", "CORE-9")),
    Mutant("one_address", "CORE-9", ()),
    Mutant("every_path", "CORE-10", ()),
    Mutant("burst_twice", "ALGORITHMS-1", ("ALGORITHMS-2", "ALGORITHMS-3", "ALGORITHMS-4", "ALGORITHMS-5")),
    Mutant("slow_refill", "ALGORITHMS-2", ("ALGORITHMS-1", "ALGORITHMS-3", "ALGORITHMS-4", "ALGORITHMS-5")),
    Mutant("late_window", "ALGORITHMS-3", ("ALGORITHMS-1", "ALGORITHMS-2", "ALGORITHMS-4")),
    Mutant("fast_refill", "ALGORITHMS-4", ("ALGORITHMS-1", "ALGORITHMS-2", "ALGORITHMS-3", "ALGORITHMS-5")),
    Mutant("shrinks", "ALGORITHMS-5", ("ALGORITHMS-1", "ALGORITHMS-2", "ALGORITHMS-3", "ALGORITHMS-4")),
    Mutant("no_retry_after", "HEADERS-1", ("HEADERS-2", "HEADERS-3", "HEADERS-8")),
    Mutant("retry_early", "HEADERS-1", ("HEADERS-2",)),
    Mutant("retry_short", "HEADERS-2", ("HEADERS-8",)),
    Mutant("retry_long", "HEADERS-3", ()),
    Mutant("remaining_off", "HEADERS-4", ("HEADERS-6", "HEADERS-7")),
    Mutant("reset_far", "HEADERS-5", ()),
    Mutant("broken_fields", "HEADERS-6", ()),
    Mutant("left_in_rejection", "HEADERS-7", ()),
    Mutant("retry_grows", "HEADERS-8", ()),
    Mutant("check_then_act", "RACE-1", ()),
    Mutant("one_key", "RACE-2", ("CORE-1", "CORE-3", "CORE-4", "CORE-9", "CORE-10", "RACE-1")),
    Mutant("case_sensitive", "KEYS-1", ()),
    Mutant("keeps_space", "KEYS-2", ("KEYS-3",)),
    Mutant("last_line", "KEYS-3", ()),
    Mutant("ignores_forwarded", "KEYS-4", ("KEYS-5", "KEYS-6", "KEYS-7", "KEYS-8", "KEYS-9", "KEYS-10")),
    Mutant("believes_client", "KEYS-5", ("KEYS-6",)),
    Mutant("first_line", "KEYS-6", ()),
    Mutant("raw_text", "KEYS-7", ("KEYS-8", "KEYS-9")),
    Mutant("whole_ipv6", "KEYS-8", ()),
    Mutant("keeps_mapped", "KEYS-9", ()),
    Mutant("keeps_port", "KEYS-10", ()),
    Mutant("raw_paths", "KEYS-11", ()),
    Mutant("reload_forgets", "RELOAD-1", ("RELOAD-3",)),
    Mutant("reload_ignored", "RELOAD-2", ()),
    Mutant("reload_doubles", "RELOAD-3", ()),
    Mutant("reload_fails", "RELOAD-4", ()),
    Mutant("forgets_keys", "MEMORY-1", ("MEMORY-2",)),
    Mutant("full_table", "MEMORY-2", ()),
    Mutant("large_keys", "MEMORY-3", ()),
    Mutant("local_counts", "FLEET-1", ("FLEET-3", "FLEET-5")),
    Mutant("third_each", "FLEET-2", ()),
    Mutant("short_lived", "FLEET-3", ("FLEET-1",)),
    Mutant("waits_for_store", "FLEET-4", ()),
    Mutant("whole_limit_without_store", "FLEET-5", ()),
    Mutant("ignores_cost", "TOKENS-1", ("TOKENS-2", "TOKENS-3")),
    Mutant("at_least_one", "TOKENS-2", ()),
    Mutant("blocks_all", "TOKENS-3", ()),
    Mutant("crashes", "HOSTILE-1", ("HOSTILE-2", "HOSTILE-3", "HOSTILE-4", "HOSTILE-5")),
    Mutant("any_host", "HOSTILE-2", ()),
    Mutant("counts_packets", "HOSTILE-3", ()),
    Mutant("slow_one", "HOSTILE-4", ()),
    Mutant("long_keys", "HOSTILE-5", ()),
    Mutant("crashes_on_frames", "HOSTILE-6", ("HOSTILE-1", "HOSTILE-8")),
    Mutant("lenient", "HOSTILE-7", ()),
    Mutant("two_framings", "HOSTILE-8", ()),
    Mutant("skips_chunks", "HOSTILE-9", ()),
    Mutant("lenient_hosts", "HOSTILE-10", ()),
)
