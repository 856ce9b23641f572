"""The image, as far as it can be checked without a builder: context, features of the bill of materials, labels."""

import re
import tomllib

from support import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
# With continued lines joined.
INSTRUCTIONS = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()


def crate():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())


def context():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*" and all(line.startswith("!") for line in lines[1:])
    return {line[1:] for line in lines[1:]}


def test_context_is_exactly_what_the_dockerfile_copies():
    copies = [line.split()[1:-1] for line in INSTRUCTIONS if line.startswith("COPY ") and "--from" not in line]
    assert {source for sources in copies for source in sources} == context()
    assert all((ROOT / path).exists() for path in context())


def test_manifest_of_the_image_names_no_file_outside_the_context():
    # What sed does in the stage `manifest`.
    patterns = re.findall(r"-e '/\^(.+?)\$?/,/\^\$/d'", DOCKERFILE)
    assert patterns == [r"\[\[test\]\]", r"\[\[bench\]\]"]
    text = (ROOT / "Cargo.toml").read_text()
    for pattern in patterns:
        text = re.sub(rf"^{pattern}\n(?:.+\n)*\n", "", text, flags=re.MULTILINE)
    manifest = tomllib.loads(text)
    assert "test" not in manifest and "bench" not in manifest and "build" not in manifest["package"]
    assert manifest == {key: value for key, value in crate().items() if key not in ("test", "bench")}
    assert not (ROOT / "build.rs").exists()


def test_sources_outside_tests_include_only_files_of_the_context():
    for path in [*(ROOT / "src").rglob("*.rs"), *(ROOT / "crates").rglob("*.rs")]:
        if "tests" in path.parts or path.name == "tests.rs":
            continue
        directory = ROOT / "/".join(path.relative_to(ROOT).parts[: 2 if path.is_relative_to(ROOT / "crates") else 1])
        outside_tests = path.read_text().split("#[cfg(test)]\nmod tests {")[0]
        for name in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', outside_tests):
            assert (path.parent / name).resolve().is_relative_to(directory), f"{path}: {name}"


def test_bill_of_materials_has_the_features_and_the_platform_of_the_binary():
    features = set(re.findall(r"cargo build .*?--features (\S+)", DOCKERFILE))
    assert len(features) == 1 and features <= crate()["features"].keys()
    command = next(line for line in INSTRUCTIONS if line.startswith("RUN cargo cyclonedx"))
    assert f"--features {features.pop()} " in command
    assert '--target "$(cat /target)"' in command
    assert "\necho $cpu-unknown-linux-gnu > /target\n" in DOCKERFILE


def test_labels_have_the_version_of_the_crate_the_revision_and_the_source():
    label = next(line for line in INSTRUCTIONS if line.startswith("LABEL "))
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert arguments["VERSION"] == crate()["workspace"]["package"]["version"]
    for name in ("version", "revision", "source"):
        assert f'org.opencontainers.image.{name}="${name.upper()}"' in label
        assert name.upper() in arguments
