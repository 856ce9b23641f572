"""The JSON Schema of the configuration, as editors and validators apply it.

`weir check` knows more: the schema accepts every valid configuration, and rejects what its form alone shows to be wrong.
"""

import json
import os
import pathlib
import re
import subprocess

import jsonschema
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIR = os.environ.get("WEIR_BIN", str(ROOT / "target" / "debug" / "weir"))


class Yaml12(yaml.SafeLoader):
    """YAML 1.2's core schema, as editors and Weir read it: `off` and `01:00` are text."""


Yaml12.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("bool", r"^(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?(0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
Yaml12.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])


def load(text):
    return yaml.load(text, Yaml12)


@pytest.fixture(scope="session")
def schema():
    return json.loads(subprocess.run([WEIR, "schema"], capture_output=True, check=True, text=True).stdout)


@pytest.fixture(scope="session")
def validator(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def documented():
    """Returns the configurations of the documentation: whole ones, and recipes with what they leave out."""
    for page in sorted(ROOT.glob("docs/**/*.md")):
        for kind, text in re.findall(r"^```yaml( recipe)?\n(.*?)^```", page.read_text(), re.M | re.S):
            needed = "listeners: 127.0.0.1:0\nupstream: echo\n" if kind else ""
            yield pytest.param(needed + text, id=f"{page.relative_to(ROOT)}-{hash(text) % 1000}")


def files(pattern):
    return [pytest.param(path.read_text(), id=path.name) for path in sorted(ROOT.glob(pattern))]


# Valid configurations, among them those with notes.
VALID = [*documented(), *files("config/*.yaml"), *files("deploy/**/weir.yaml"), *files("tests/config/note_*.yaml")]


@pytest.mark.parametrize("text", VALID)
def test_every_valid_configuration_is_accepted(validator, text):
    errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(load(text))]
    assert errors == []


@pytest.mark.parametrize("path", sorted({*ROOT.glob("config/*.yaml"), *ROOT.glob("deploy/**/weir.yaml")}), ids=str)
def test_first_line_of_a_configuration_names_the_schema_for_editors(path):
    name = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())[1]
    assert (path.parent / name).resolve() == ROOT / "config" / "weir.schema.json"


# Mistakes that the form alone shows: unknown keys, wrong types, words that are not in a list, numbers out of range,
# values without their unit, and keys that exclude one another.
FORM = [
    *files("tests/config/unknown_key_*.yaml"),
    *files("tests/config/*_typo.yaml"),
    *files("tests/config/throttle_map_unknown.yaml"),
    *files("tests/config/throttle_unknown.yaml"),
    *files("tests/config/match_path_without_slash.yaml"),
    *files("tests/config/allow_with_*.yaml"),
    *files("tests/config/algorithm_unknown.yaml"),
    *files("tests/config/action_unknown.yaml"),
    *files("tests/config/burst_[fnhtz]*.yaml"),
    *files("tests/config/count_nothing.yaml"),
    *files("tests/config/duration_*.yaml"),
    *files("tests/config/rate_other_notation.yaml"),
    *files("tests/config/cost_size.yaml"),
    *files("tests/config/workers_*.yaml"),
]
# These are wrong for another reason than their form, or may be a variable or a file name.
NOT_BY_FORM = {"access_log_typo.yaml", "burst_for_no_entry.yaml", "duration_too_long.yaml"}


@pytest.mark.parametrize("text", [param for param in FORM if param.id not in NOT_BY_FORM])
def test_mistakes_of_form_are_rejected(validator, text):
    assert list(validator.iter_errors(load(text))) != []


def test_variables_may_stand_for_any_value(validator):
    text = """
listeners: ["${LISTEN}"]
upstream: { address: "${UPSTREAM:-echo}", timeout: "${TIMEOUT:-5s}", http2: "${HTTP2}" }
workers: ${WORKERS:-2}
rules: [{ name: a, limit: "${N}/s", burst: "${BURST}", algorithm: "${ALGORITHM}", on_limit: { status: "${STATUS}" } }]
"""
    assert list(validator.iter_errors(load(text))) == []


def test_schema_is_self_contained_and_described(schema):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] and schema["title"] and schema["description"]

    def properties(node):
        if isinstance(node, dict):
            for name, value in node.get("properties", {}).items():
                if isinstance(value, dict):
                    yield name, value
            for value in node.values():
                yield from properties(value)
        elif isinstance(node, list):
            for value in node:
                yield from properties(value)

    described = {name for name, value in properties(schema) if "description" in value}
    assert {name for name, _ in properties(schema)} - described == set()
    references = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema)))
    assert references and all(reference.startswith("#/$defs/") for reference in references)
