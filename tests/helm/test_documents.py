"""The documents and generated files of the chart are current, and their examples work."""

import json
import re
import subprocess
import sys
import tarfile

import helm_python as helm
import pytest
import yaml
from schemas import validate_strictly
from support import CHART, ROOT, WEIR_BIN, check, configurations, render

README = (CHART / "README.md").read_text()
EXAMPLES = [text for text in re.findall(r"```yaml\n(.+?)```", README, re.DOTALL) if text.startswith("# my-values.yaml")]


def prints_schema():
    return bool(WEIR_BIN) and subprocess.run([WEIR_BIN, "schema"], capture_output=True, timeout=60).returncode == 0


def test_readme_has_an_example_of_each_use():
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_example_renders_valid_objects(example, tmp_path):
    objects = render(EXAMPLES[example])
    for o in objects.values():
        validate_strictly(o)
    if WEIR_BIN:
        for text in configurations(objects).values():
            check(with_rules(text, objects, tmp_path), tmp_path)


def with_rules(text, objects, directory):
    """Returns the configuration with the directory of the rules in place of the mounted one."""
    rules = directory / "rules"
    rules.mkdir(exist_ok=True)
    for (_, name), o in objects.items():
        if name.endswith("-descriptors"):
            for file, content in o["data"].items():
                (rules / file).write_text(content)
    return text.replace("/etc/ratelimit", str(rules))


def test_values_of_the_library_example_are_valid():
    example = next(text for text in re.findall(r"```yaml\n(.+?)```", README, re.DOTALL) if "mode: library" in text)
    values = "\n".join(line.removeprefix("  ") for line in example.splitlines() if line.startswith("  "))
    assert ("ConfigMap", "hello-weir") in render(values)


def test_table_of_values_and_copies_are_current():
    result = subprocess.run([sys.executable, CHART / "update-files", "--check"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_every_value_has_a_description():
    undocumented = []
    documented = set(re.findall(r"^\| `([\w.]+)` \|", README.split("<!-- values -->")[1], re.MULTILINE))
    for name, value in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        if name not in documented and not any(key.startswith(f"{name}.") for key in documented):
            undocumented.append(name)
        if isinstance(value, dict) and name not in documented:
            undocumented += [f"{name}.{key}" for key in value if not any(d == f"{name}.{key}" or d.startswith(f"{name}.{key}.") for d in documented)]
    assert undocumented == []


@pytest.mark.skipif(not prints_schema(), reason="the binary does not print a schema")
def test_schema_of_the_values_is_current():
    result = subprocess.run([sys.executable, CHART / "update-schema", "--check", WEIR_BIN], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_package_contains_templates_and_files_but_no_scripts(tmp_path):
    with helm.Chart.load(CHART) as loaded, tarfile.open(loaded.save(tmp_path)) as package:
        names = {name.removeprefix("weir/") for name in package.getnames()}
    assert names >= {"Chart.yaml", "README.md", "values.yaml", "values.schema.json", "files/config/sidecar.yaml", "templates/NOTES.txt"}
    assert not [name for name in names if name.startswith(("schema/", "update-"))]


def test_configuration_keys_of_the_schema_are_those_of_the_reference():
    schema = json.loads((CHART / "values.schema.json").read_text())
    rule = schema["definitions"]["weir.Rule"]["properties"]
    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    named = set(re.findall(r"^\| `rules\[\]\.(\w+)` \|", page, re.MULTILINE))
    assert named and named <= rule.keys()
