"""Checks deploy/prometheus and deploy/grafana: rules and expressions are valid, alerts fire when they should, every alert
has a runbook, and every metric is one that Weir exports."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
TESTS = ["alerts.test.yaml", "days.test.yaml"]
DASHBOARDS = ["weir-fleet.json", "weir-instance.json"]

# Metrics that Prometheus itself adds.
FOREIGN = {"up"}
ANNOTATIONS = {"summary", "description", "runbook_url"}


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules():
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


def panels(name):
    return [panel for panel in json.loads((GRAFANA / name).read_text())["panels"] if panel["type"] != "row"]


def expressions(name):
    """Expressions of a dashboard, with values in place of variables."""
    board = json.loads((GRAFANA / name).read_text())
    found = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    found += [annotation["expr"] for annotation in board["annotations"]["list"]]
    for one in board["templating"]["list"]:
        query = one["query"]["query"] if one["type"] == "query" else ""
        found += re.findall(r"label_values\((.*), *\w+\)$", query)
    return [one.replace("$__rate_interval", "5m").replace("$job", "weir").replace("$instance", "a").replace("$rule", ".*")
            for one in found]


def exported():
    """Names of all series that Weir exports, from the one module that names metrics."""
    source = (ROOT / "crates/telemetry/src/metrics/families.rs").read_text()
    names = set()
    for kind, name in re.findall(r'\b(counter|gauge|histogram)\(\s*"(\w+)"', source):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    assert len(names) > 80, names
    return names


def names_in(expression):
    """Names of the metrics in an expression: words that are neither labels, functions, operators nor texts."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    words = re.findall(r"[a-zA-Z_:][\w:]*(?!\s*\()(?![\w:])", text)
    keywords = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"}
    return {word for word in words if word not in keywords and not re.fullmatch(r"[a-z]", word)}


def test_names_of_metrics_are_found():
    expression = 'sum by (rule) (rate(weir_a_total{x="weir_b"}[5m])) / on (c) d:e offset 1d and up == bool 0'
    assert names_in(expression) == {"weir_a_total", "d:e", "up"}


def test_rules_are_valid():
    run("promtool", "check", "rules", PROMETHEUS / "alerts.yaml")


@pytest.mark.parametrize("name", TESTS)
def test_alerts_fire_as_their_unit_tests_state(name):
    run("promtool", "test", "rules", name, cwd=PROMETHEUS)


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    fires, is_silent = set(), set()
    for name in TESTS:
        for group in yaml.safe_load((PROMETHEUS / name).read_text())["tests"]:
            for test in group["alert_rule_test"]:
                expected = test.get("exp_alerts", [])
                fires |= {(test["alertname"], alert["exp_labels"]["severity"]) for alert in expected}
                is_silent |= set() if expected else {test["alertname"]}
    assert fires == {(alert["alert"], alert["labels"]["severity"]) for alert in alerts()}
    assert is_silent == {alert["alert"] for alert in alerts()}


def test_every_alert_has_annotations_a_severity_and_a_runbook():
    page = (ROOT / "docs/operations/alerts.md").read_text()
    documented = re.findall(r"^### (Weir\w+)$", page, re.MULTILINE)
    for alert in alerts():
        name = alert["alert"]
        assert set(alert["annotations"]) == ANNOTATIONS, name
        assert "$value" in alert["annotations"]["description"] or name in ("WeirAbsent", "WeirInstanceDown"), name
        assert alert["labels"]["severity"] in ("critical", "warning"), name
        assert alert["annotations"]["runbook_url"].endswith(f"/operations/alerts.html#{name.lower()}"), name
        assert "for" in alert or name == "WeirPanic", f"{name} fires after a single scrape"
    assert documented == sorted(set(documented), key=documented.index), "a runbook occurs twice"
    assert set(documented) == {alert["alert"] for alert in alerts()}


def test_alerts_of_the_webhook_have_a_rule_of_the_same_name():
    source = (ROOT / "crates/telemetry/src/alerts/settings.rs").read_text()
    names = set(re.findall(r'=> "(Weir\w+)"', source))
    assert len(names) == 8
    assert names <= {alert["alert"] for alert in alerts()}


def test_rules_use_only_metrics_that_exist():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = exported() | recorded | FOREIGN
    unknown = {rule.get("alert", rule.get("record")): names_in(rule["expr"]) - known for rule in rules()}
    assert not {name: names for name, names in unknown.items() if names}


def test_dashboards_are_current():
    run(sys.executable, GRAFANA / "make.py", "--check")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_expressions_of_dashboards_are_valid_and_use_only_metrics_that_exist(name, tmp_path):
    found = expressions(name)
    assert len(found) > 30
    recorded = [{"record": f"expression:{number}", "expr": one} for number, one in enumerate(found)]
    file = tmp_path / "expressions.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run("promtool", "check", "rules", file)
    known = exported() | FOREIGN
    assert not {one: names_in(one) - known for one in found if names_in(one) - known}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_descriptions_units_and_a_place_of_their_own(name):
    taken = set()
    identifiers = []
    for panel in panels(name):
        title = panel["title"]
        assert len(panel["description"]) > 10, title
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"], title
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, title
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{title} covers another panel"
        taken |= cells
        identifiers.append(panel["id"])
    assert len(set(identifiers)) == len(identifiers)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_figures_have_thresholds_of_their_own(name):
    # Without thresholds, Grafana shows every figure from 80 on in red.
    figures = [panel for panel in panels(name) if panel["type"] == "stat"]
    assert len(figures) >= 5
    assert all(panel["fieldConfig"]["defaults"]["thresholds"]["steps"] for panel in figures)


def test_fleet_leads_to_the_instance():
    text = (GRAFANA / "weir-fleet.json").read_text()
    assert "/d/weir-instance?var-instance=${__value.raw}" in text
    assert json.loads((GRAFANA / "weir-instance.json").read_text())["uid"] == "weir-instance"
