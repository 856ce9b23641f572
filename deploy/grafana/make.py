#!/usr/bin/env python3
"""Writes the Grafana dashboards in this directory: weir-fleet.json and weir-instance.json.

Usage:
    make.py            writes both files
    make.py --check    fails if a file differs from what would be written

Standard library only. A dashboard is a list of rows, and a row a list of panels: change them below and run the script.
Tests parse every expression with promtool, and compare every metric with those that Weir exports.
"""

import json
import sys
from pathlib import Path

from grafana import WIDTH, dashboard

HERE = Path(__file__).parent

# Selectors with the variables of the dashboard.
FLEET = 'job=~"$job"'
INSTANCE = 'job=~"$job", instance=~"$instance"'

# Decisions of rules, and requests that were not forwarded because of a rule or of overload protection.
REJECTED = 'outcome=~"limited|banned|denied"'
NOT_FORWARDED = 'outcome=~"limited|banned|denied|shed|not_stored"'

# Colours of values that mean the same in every installation.
CODE_CLASSES = {"1xx": "purple", "2xx": "green", "3xx": "blue", "4xx": "orange", "5xx": "red"}
OUTCOMES = {
    "allowed": "green", "exempt": "blue", "soft": "light-yellow", "delayed": "dark-yellow", "shadow": "purple",
    "diverted": "semi-dark-blue",
    "limited": "orange", "banned": "red", "denied": "dark-red", "shed": "semi-dark-red", "not_stored": "light-red",
    "malformed": "text", "abandoned": "super-light-blue",
}
STORE_OUTCOMES = {"ok": "green", "timed_out": "yellow", "rejected": "orange", "unreachable": "red", "failed": "dark-red"}
DAY = 86400


def target(expression, legend=""):
    return {"expr": expression, "legendFormat": legend}


def panel(title, description, targets, unit="short", kind="timeseries", **options):
    """A panel. `targets` are pairs of an expression and a legend, or a single expression.

    Options: `stacked`, `maximum`, `width`, `none` (the text if no series is above 0), `colors` (by name of a series), and for
    figures `alarm` (red from this value on) or `steps` (pairs of a colour and the value from which it applies).
    """
    if isinstance(targets, str):
        targets = [(targets, "")]
    return {
        "title": title,
        "description": description,
        "targets": [target(*pair) for pair in targets],
        "unit": unit,
        "kind": kind,
        **options,
    }


def fleet_rows(where):
    """Panels that both dashboards have; `where` selects the instances."""
    rule = where + ', rule=~"$rule"'
    return [
        ("Requests", [
            panel(
                "Requests",
                "Completed requests by class of the status code. 429 is in 4xx.",
                [(f"sum by (code_class) (rate(weir_requests_total{{{where}}}[$__rate_interval]))", "{{code_class}}")],
                "reqps", stacked=True, colors=CODE_CLASSES,
            ),
            panel(
                "Request duration",
                "Time from the header section of a request to the end of its response, including rejected requests.",
                [
                    (f"histogram_quantile({quantile}, sum by (le) "
                     f"(rate(weir_request_duration_seconds_bucket{{{where}}}[$__rate_interval])))", name)
                    for quantile, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
                ],
                "s",
            ),
            panel(
                "In flight",
                "Requests in flight, requests that a delay holds back, and open client connections.",
                [
                    (f"sum(weir_requests_in_flight{{{where}}})", "requests"),
                    (f"sum(weir_requests_delayed{{{where}}})", "delayed"),
                    (f"sum(weir_downstream_connections{{{where}}})", "connections"),
                ],
            ),
        ]),
        ("Rate limits", [
            panel(
                "Requests by outcome",
                "Requests by what all rules decided together. Each request counts once.",
                [(f"sum by (outcome) (rate(weir_request_outcomes_total{{{where}}}[$__rate_interval])) > 0",
                  "{{outcome}}")],
                "reqps", stacked=True, colors=OUTCOMES, none="No requests",
            ),
            panel(
                "Decisions of rules",
                "Decisions of the selected rules by outcome. A request counts once for each rule that applies to it.",
                [(f"sum by (outcome) (rate(weir_decisions_total{{{rule}}}[$__rate_interval])) > 0", "{{outcome}}")],
                "reqps", stacked=True, colors=OUTCOMES, none="No decisions",
            ),
            panel(
                "Rejections by rule",
                "Requests that a limit, a ban or a deny rule rejected: the ten rules with the most.",
                [(f"topk(10, sum by (rule) (rate(weir_decisions_total{{{rule}, {REJECTED}}}[$__rate_interval])) > 0)",
                  "{{rule}}")],
                "reqps", none="No rejections",
            ),
            panel(
                "Share rejected by rule",
                "Rejected requests as a share of all requests that the rule applies to.",
                [(f"(sum by (rule) (rate(weir_decisions_total{{{rule}, {REJECTED}}}[$__rate_interval])) > 0) "
                  f"/ sum by (rule) (rate(weir_decisions_total{{{rule}}}[$__rate_interval]))", "{{rule}}")],
                "percentunit", none="No rejections",
            ),
            panel(
                "Shadow, soft and delayed by rule",
                "Requests that a rule would have rejected, has marked or has held back.",
                [(f'sum by (rule, outcome) (rate(weir_decisions_total{{{rule}, outcome=~"shadow|soft|delayed"}}'
                  "[$__rate_interval])) > 0", "{{rule}} {{outcome}}")],
                "reqps", none="None",
            ),
            panel(
                "Rejections by country",
                "Rejected requests by the country of the client: the ten countries with the most. Needs geo.database.",
                [(f'topk(10, sum by (country) (rate(weir_geo_decisions_total{{{where}, outcome="rejected"}}'
                  "[$__rate_interval])) > 0)", "{{country}}")],
                "reqps", none="No rejections",
            ),
            panel(
                "Delay",
                "How long delays held requests back; only requests that were delayed.",
                [
                    (f"histogram_quantile({quantile}, sum by (le) "
                     f"(rate(weir_request_delay_seconds_bucket{{{where}}}[$__rate_interval])))", name)
                    for quantile, name in ((0.5, "p50"), (0.99, "p99"))
                ],
                "s",
            ),
        ]),
        ("Counters", [
            panel(
                "Counters by rule",
                "Counters in use. A rule with an unexpected number of keys may be limiting by a value that clients vary.",
                [(f"sum by (rule) (weir_limiter_keys{{{rule}}})", "{{rule}}")],
            ),
            panel(
                "Fill level of the table",
                "Occupied slots of the counter table. When it is full, new keys share overflow counters.",
                [(f"weir_limiter_entries{{{where}}} / weir_limiter_capacity{{{where}}}", "{{instance}}")],
                "percentunit", maximum=1,
            ),
            panel(
                "Overflow",
                "Charges to overflow counters because the table was full. More than 0 means that clients may be rejected "
                "because of others.",
                [(f"sum by (instance) (rate(weir_limiter_overflow_total{{{where}}}[$__rate_interval])) > 0", "{{instance}}")],
                "ops", none="No overflow",
            ),
            panel(
                "Elastic factor",
                "The current limit of elastic rules as a multiple of the written one.",
                [(f"avg by (rule) (weir_elastic_factor{{{rule}}})", "{{rule}}")],
            ),
        ]),
        ("Upstreams", [
            panel(
                "Upstream requests by outcome",
                "Requests sent upstream. `answered` is any valid response.",
                [(f"sum by (upstream, outcome) (rate(weir_upstream_requests_total{{{where}}}[$__rate_interval])) > 0",
                  "{{upstream}} {{outcome}}")],
                "reqps", stacked=True, none="No requests",
            ),
            panel(
                "Upstream response time",
                "Time from the request to the header section of the response, 99th percentile.",
                [("histogram_quantile(0.99, sum by (le, upstream) "
                  f"(rate(weir_upstream_request_duration_seconds_bucket{{{where}}}[$__rate_interval])))",
                  "{{upstream}}")],
                "s",
            ),
            panel(
                "Healthy endpoints",
                "Endpoints that pass their health checks and are not ejected, as a share of all.",
                [(f"sum by (upstream) (weir_upstream_endpoints_healthy{{{where}}}) "
                  f"/ sum by (upstream) (weir_upstream_endpoints{{{where}}})", "{{upstream}}")],
                "percentunit", maximum=1,
            ),
            panel(
                "Retries, ejections and circuit breakers",
                "Further attempts of requests, endpoints ejected by outlier detection, and circuit breakers reached.",
                [
                    (f"sum by (upstream) (rate(weir_upstream_retries_total{{{where}}}[$__rate_interval]))",
                     "{{upstream}} retries"),
                    (f"sum by (upstream) (rate(weir_upstream_ejections_total{{{where}}}[$__rate_interval]))",
                     "{{upstream}} ejections"),
                    (f"sum by (upstream, limit) (rate(weir_upstream_overflows_total{{{where}}}[$__rate_interval])) > 0",
                     "{{upstream}} {{limit}}"),
                ],
                "ops",
            ),
        ]),
        ("Shared limits", [
            panel(
                "Store reachable",
                "Share of the instances that reach the store of shared limits. The others use `on_store_loss`.",
                [(f"avg(weir_store_up{{{where}}})", "reachable")],
                "percentunit", maximum=1,
            ),
            panel(
                "Calls of the store",
                "Calls by outcome; one call is for many counters.",
                [(f"sum by (outcome) (rate(weir_store_calls_total{{{where}}}[$__rate_interval]))", "{{outcome}}")],
                "ops", stacked=True, colors=STORE_OUTCOMES,
            ),
            panel(
                "Duration of a call",
                "Duration of the last call of each instance.",
                [(f"max(weir_store_call_seconds{{{where}}})", "maximum"),
                 (f"avg(weir_store_call_seconds{{{where}}})", "average")],
                "s",
            ),
            panel(
                "Error bound",
                "Units that all instances together may admit beyond a shared limit, in any window of its period.",
                [(f"max by (rule) (weir_shared_error_bound{{{rule}}})", "{{rule}}")],
            ),
        ]),
    ]


def fleet():
    overview = [
        panel("Instances", "Instances that are scraped.", f"count(weir_build_info{{{FLEET}}})", kind="stat", width=4),
        panel(
            "Requests", "Completed requests a second.",
            f"sum(rate(weir_requests_total{{{FLEET}}}[$__rate_interval]))", "reqps", kind="stat", width=5,
        ),
        panel(
            "Rejected", "Requests rejected by a rule or by overload protection, a second.",
            f"sum(rate(weir_request_outcomes_total{{{FLEET}, {NOT_FORWARDED}}}[$__rate_interval]))", "reqps", kind="stat",
            width=5,
        ),
        panel(
            "Invalid configuration", "Instances that have rejected their last configuration.",
            f"sum(weir_config_last_reload_successful{{{FLEET}}} == bool 0)", kind="stat", width=5, alarm=1,
        ),
        panel(
            "Next certificate", "Time until the first certificate expires.",
            f"min(weir_tls_certificate_expiry_timestamp_seconds{{{FLEET}}}) - time()", "s", kind="stat", width=5,
            steps=[("red", None), ("orange", 3 * DAY), ("green", 14 * DAY)], none="No certificate",
        ),
    ]
    instances = [
        panel(
            "Instances", "One row for each instance. The link leads to its dashboard.",
            [
                (f"sum by (instance, version) (weir_build_info{{{FLEET}}})", "version"),
                (f"sum by (instance) (rate(weir_requests_total{{{FLEET}}}[$__rate_interval]))", "requests"),
                (f"sum by (instance) (rate(weir_request_outcomes_total{{{FLEET}, {NOT_FORWARDED}}}[$__rate_interval]))",
                 "rejected"),
                (f"max by (instance) (weir_config_generation{{{FLEET}}})", "generation"),
                (f"max by (instance) (process_resident_memory_bytes{{{FLEET}}} and on (job, instance) weir_build_info)",
                 "memory"),
                (f"max by (instance) (time() - process_start_time_seconds{{{FLEET}}} "
                 "and on (job, instance) weir_build_info)", "uptime"),
            ],
            kind="table", width=WIDTH,
        ),
        panel(
            "Workers",
            "CPU time as a share of the workers' CPUs.",
            [(f"rate(process_cpu_seconds_total{{{FLEET}}}[$__rate_interval]) / weir_workers{{{FLEET}}}", "{{instance}}")],
            "percentunit", width=8,
        ),
        panel(
            "Overload protection",
            "Connections and requests turned away, by limit, and accepts that failed.",
            [(f"sum by (limit) (rate(weir_overload_turned_away_total{{{FLEET}}}[$__rate_interval])) > 0", "{{limit}}"),
             (f"sum(rate(weir_accept_failures_total{{{FLEET}}}[$__rate_interval])) > 0", "failed accepts")],
            "ops", none="None", width=8,
        ),
        panel(
            "Configuration generations",
            "Configurations applied since the start. Steps that only some instances take show a rollout in progress.",
            [(f"weir_config_generation{{{FLEET}}}", "{{instance}}")], width=8,
        ),
    ]
    rows = [("Overview", overview), *fleet_rows(FLEET), ("Instances", instances)]
    return dashboard("weir-fleet", "Weir: fleet", "All instances of Weir", rows, ["datasource", "job", "rule"])


def instance():
    overview = [
        panel(
            "Version", "Version of the program.",
            [(f"sum by (version) (weir_build_info{{{INSTANCE}}})", "{{version}}")], kind="stat", width=3, name=True,
        ),
        panel(
            "Uptime", "Time since the process started.",
            f"max(time() - process_start_time_seconds{{{INSTANCE}}})", "s", kind="stat", width=4,
        ),
        panel(
            "Requests", "Completed requests a second.",
            f"sum(rate(weir_requests_total{{{INSTANCE}}}[$__rate_interval]))", "reqps", kind="stat", width=4,
        ),
        panel(
            "Rejected", "Requests rejected by a rule or by overload protection, a second.",
            f"sum(rate(weir_request_outcomes_total{{{INSTANCE}, {NOT_FORWARDED}}}[$__rate_interval]))", "reqps", kind="stat",
            width=4,
        ),
        panel(
            "Generation", "Configurations applied since the start.",
            f"max(weir_config_generation{{{INSTANCE}}})", kind="stat", width=3,
        ),
        panel(
            "Configuration valid", "Whether the last configuration read was valid (1) or not (0).",
            f"min(weir_config_last_reload_successful{{{INSTANCE}}})", kind="stat", width=3,
            steps=[("red", None), ("green", 1)],
        ),
        panel(
            "Panics", "Panics of threads and tasks; each one is a bug.",
            f"sum(weir_panics_total{{{INSTANCE}}})", kind="stat", width=3, alarm=1,
        ),
    ]
    connections = [
        panel(
            "Client connections",
            "Accepted connections a second, by listener.",
            [(f"sum by (listener) (rate(weir_downstream_connections_total{{{INSTANCE}}}[$__rate_interval]))",
              "{{listener}}")],
            "cps",
        ),
        panel(
            "TLS handshakes",
            "Handshakes with clients, by outcome.",
            [(f"sum by (outcome) (rate(weir_tls_handshakes_total{{{INSTANCE}}}[$__rate_interval])) > 0", "{{outcome}}")],
            "ops", none="No handshakes",
        ),
        panel(
            "Malformed and reset",
            "Malformed requests, and requests whose client disconnected before the response was complete.",
            [(f"sum(rate(weir_requests_malformed_total{{{INSTANCE}}}[$__rate_interval]))", "malformed"),
             (f"sum(rate(weir_requests_reset_total{{{INSTANCE}}}[$__rate_interval]))", "reset")],
            "reqps",
        ),
        panel(
            "Removed headers",
            "Request headers removed because their names differ only in - and _ from headers that are trusted or that rules "
            "read. More than 0 means that a client tries to pass for another, or that a proxy in front renames headers.",
            [(f"sum(rate(weir_request_headers_removed_total{{{INSTANCE}}}[$__rate_interval])) > 0", "headers")],
            "ops", none="None",
        ),
        panel(
            "Overload protection",
            "Connections and requests turned away, by limit, and accepts that failed.",
            [(f"sum by (limit) (rate(weir_overload_turned_away_total{{{INSTANCE}}}[$__rate_interval])) > 0", "{{limit}}"),
             (f"sum(rate(weir_accept_failures_total{{{INSTANCE}}}[$__rate_interval])) > 0", "failed accepts")],
            "ops", none="None",
        ),
    ]
    process = [
        panel(
            "CPU",
            "CPU time, and the number of worker threads as the maximum that they can use.",
            [(f"sum(rate(process_cpu_seconds_total{{{INSTANCE}}}[$__rate_interval]))", "CPUs"),
             (f"sum(weir_workers{{{INSTANCE}}})", "workers")],
        ),
        panel("Memory", "Resident memory.", [(f"sum(process_resident_memory_bytes{{{INSTANCE}}})", "resident")], "bytes"),
        panel(
            "File descriptors",
            "Open file descriptors, and their maximum.",
            [(f"sum(process_open_fds{{{INSTANCE}}})", "open"), (f"sum(process_max_fds{{{INSTANCE}}})", "maximum")],
        ),
        panel(
            "Reloads",
            "Configuration reads after the first, by outcome.",
            # increase() extrapolates to the interval, so a single reload is not a whole number.
            [(f"round(sum by (outcome) (increase(weir_config_reloads_total{{{INSTANCE}}}[$__rate_interval])))",
              "{{outcome}}")],
        ),
        panel(
            "Signals of elastic limits",
            "Each signal as a share of the value from which it leaves no headroom. What is above 200 % is shown as 200 %.",
            [(f"clamp_max(weir_elastic_signal{{{INSTANCE}}} / weir_elastic_signal_threshold{{{INSTANCE}}}, 2)",
              "{{signal}}"),
             (f"weir_elastic_headroom{{{INSTANCE}}}", "headroom")],
            "percentunit",
        ),
        panel(
            "Lost telemetry",
            "Access log lines and spans that could not be written in time.",
            [(f"sum(rate(weir_access_log_dropped_total{{{INSTANCE}}}[$__rate_interval]))", "access log lines"),
             (f"sum(rate(weir_spans_dropped_total{{{INSTANCE}}}[$__rate_interval]))", "spans")],
            "ops",
        ),
    ]
    rows = [("Overview", overview), *fleet_rows(INSTANCE), ("Connections", connections), ("Process", process)]
    variables = ["datasource", "job", "instance", "rule"]
    return dashboard("weir-instance", "Weir: instance", "One instance of Weir", rows, variables)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    outdated = []
    for board in (fleet(), instance()):
        path = HERE / f"{board['uid']}.json"
        text = json.dumps(board, indent=1, ensure_ascii=False) + "\n"
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            outdated.append(path.name)
    if outdated:
        sys.exit(f"not current, run make.py: {', '.join(outdated)}")


if __name__ == "__main__":
    main()
