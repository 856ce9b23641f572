"""The files of a release: what deploy/release makes of a tag, twice, from checkouts in different directories."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest
from support import ROOT, WEIR_BIN

TOOLS = ["git", "dpkg-deb", "buildah", "cargo-cyclonedx", "strip", "ldd"]
missing = [tool for tool in TOOLS if not shutil.which(tool)]
pytestmark = [
    pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary"),
    pytest.mark.skipif(bool(missing), reason=f"missing tools: {', '.join(missing)}"),
]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
TAG = f"v{VERSION}"
AUTHOR = {"GIT_AUTHOR_NAME": "weir", "GIT_AUTHOR_EMAIL": "weir@localhost"}
COMMITTER = {"GIT_COMMITTER_NAME": "weir", "GIT_COMMITTER_EMAIL": "weir@localhost"}
DATES = {"GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z"}
NOT_IN_THE_REPOSITORY = shutil.ignore_patterns(".git", "target", "node_modules", "__pycache__", ".pytest_cache")


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tagged_checkout(directory):
    """Returns a repository with the sources of this one, under the tag of the version."""
    shutil.copytree(ROOT, directory, ignore=NOT_IN_THE_REPOSITORY, symlinks=True)
    environment = os.environ | AUTHOR | COMMITTER | DATES
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "release"], ["tag", TAG]):
        run("git", "-C", directory, *command, env=environment)
    return directory


def release(checkout, output, binary, **options):
    command = [sys.executable, checkout / "deploy/release", TAG, "--binary", binary, "--output", output]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    """Returns the program without its debug information, with which compression would take most of the time."""
    path = tmp_path_factory.mktemp("binary") / "weir"
    run("strip", "-o", path, WEIR_BIN)
    return path


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return tagged_checkout(tmp_path_factory.mktemp("first") / "weir")


@pytest.fixture(scope="module")
def files(checkout, binary, tmp_path_factory):
    """Returns the files of a release by name, without the version and the platform."""
    output = tmp_path_factory.mktemp("release")
    result = release(checkout, output, binary, env=os.environ | {"DEB_COMPRESSION": "none"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.stdout.split()) == sorted(str(path) for path in output.iterdir())
    platform = run("rustc", "--print", "host-tuple").strip()
    return {path.name.replace(VERSION, "V").replace(platform, "P"): path for path in output.iterdir()}


def checksums(directory):
    return (directory / "SHA256SUMS").read_text()


def test_release_has_sources_program_package_image_bill_of_materials_and_checksums(files):
    package = next(name for name in files if name.endswith(".deb"))
    expected = {"weir-V.tar.gz", "weir-V-P.tar.gz", "weir-V-P.oci.tar", "weir-V-P.cdx.json", "SHA256SUMS", package}
    assert files.keys() == expected


def test_release_of_one_tag_has_the_same_bytes_in_another_directory_at_another_time(files, binary, tmp_path):
    checkout = tagged_checkout(tmp_path / "elsewhere" / "weir")
    # Other times and modes of files, and another time zone and umask of the user.
    for path in checkout.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1, 1))
    environment = os.environ | {"DEB_COMPRESSION": "none", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    result = release(checkout, tmp_path / "output", binary, env=environment, umask=0o077)
    assert result.returncode == 0, result.stdout + result.stderr
    assert checksums(tmp_path / "output") == checksums(files["SHA256SUMS"].parent)


def test_checksums_are_those_of_all_other_files(files):
    lines = dict(reversed(line.split("  ")) for line in checksums(files["SHA256SUMS"].parent).splitlines())
    others = [path for name, path in files.items() if name != "SHA256SUMS"]
    assert lines == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in others}


def test_program_archive_has_man_pages_completions_examples_and_the_unit(files):
    with tarfile.open(files["weir-V-P.tar.gz"]) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert names >= {"weir", "kubectl-weir", "man/man1/weir.1", "man/man1/weir-run.1", "completions/weir.bash", "completions/_weir"}
    assert names >= {"completions/weir.fish", "LICENSE", "config/sidecar.yaml", "systemd/weir.service"}


def test_program_archive_runs_where_it_is_extracted(files, tmp_path):
    with tarfile.open(files["weir-V-P.tar.gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (directory,) = tmp_path.iterdir()
    assert run(directory / "weir", "--version") == f"weir {VERSION}\n"
    run(directory / "weir", "check", directory / "config/quickstart.yaml")


def test_sources_are_those_of_the_tag_and_not_of_the_working_tree(files, checkout):
    with tarfile.open(files["weir-V.tar.gz"]) as archive:
        names = set(archive.getnames())
        assert {member.mtime for member in archive.getmembers()} == {1767323045}
    tracked = run("git", "-C", checkout, "ls-tree", "-r", "--name-only", TAG).splitlines()
    assert {f"weir-{VERSION}/{name}" for name in tracked} <= names


def test_bill_of_materials_lists_every_locked_dependency_of_the_program_and_no_path(files):
    text = files["weir-V-P.cdx.json"].read_text()
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX" and "serialNumber" not in bill
    found = {(component["name"], component["version"]) for component in bill["components"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    assert found <= {(package["name"], package["version"]) for package in lock}
    assert {name for name, _ in found} >= {"tokio", "rustls", "tikv-jemallocator"}
    assert "file:///" not in text


@pytest.fixture(scope="module")
def image(files, tmp_path_factory):
    """Returns the configuration of the image, and the directory of its one layer."""
    layout, root = tmp_path_factory.mktemp("layout"), tmp_path_factory.mktemp("image")
    with tarfile.open(files["weir-V-P.oci.tar"]) as archive:
        archive.extractall(layout, filter="data")

    def blob(digest):
        return layout / "blobs" / pathlib.Path(*digest.split(":"))

    manifest = json.loads(blob(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]).read_text())
    assert len(manifest["layers"]) == 1
    with tarfile.open(blob(manifest["layers"][0]["digest"])) as layer:
        layer.extractall(root, filter="tar")
    # mktemp makes it private, and the program runs as another user.
    root.chmod(0o755)
    return json.loads(blob(manifest["config"]["digest"]).read_text())["config"], root


def test_image_has_the_settings_of_the_dockerfile(image, checkout):
    settings, _ = image
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert settings["User"] == re.search(r"^USER (.+)$", dockerfile, re.MULTILINE)[1]
    assert settings["Entrypoint"] == json.loads(re.search(r"^ENTRYPOINT (.+)$", dockerfile, re.MULTILINE)[1])
    assert settings["Cmd"] == json.loads(re.search(r"^CMD (.+)$", dockerfile, re.MULTILINE)[1])
    ports = re.search(r"^EXPOSE (.+)$", dockerfile, re.MULTILINE)[1].split()
    assert settings["ExposedPorts"].keys() == {f"{port}/tcp" for port in ports}
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in settings["Labels"].items()}
    assert labels["version"] == VERSION and labels["revision"] == run("git", "-C", checkout, "rev-parse", TAG).strip()
    assert {"title", "description", "licenses"} <= labels.keys()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the root directory")
def test_program_runs_with_the_files_of_the_image_alone(image):
    _, root = image
    assert run("chroot", "--userspec=65532:65532", root, "/usr/local/bin/weir", "--version") == f"weir {VERSION}\n"
    run("chroot", "--userspec=65532:65532", root, "/usr/local/bin/weir", "check", "/etc/weir/weir.yaml")
    assert os.readlink(root / "bin/ratelimit") == "/usr/local/bin/weir"
    assert (root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 0


def test_tag_that_is_not_the_version_builds_nothing(checkout, binary, tmp_path):
    run("git", "-C", checkout, "tag", "v99.0.0")
    command = [checkout / "deploy/release", "v99.0.0", "--binary", binary, "--output", tmp_path / "output"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert f"tag v99.0.0 is not the version of Cargo.toml, which is {VERSION}" in result.stderr
    assert not (tmp_path / "output").exists()


def test_missing_tool_is_named_and_builds_nothing(checkout, binary, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("git", "cargo"):
        (tools / tool).symlink_to(shutil.which(tool))
    result = release(checkout, tmp_path / "output", binary, env=os.environ | {"PATH": str(tools)})
    assert result.returncode == 1
    assert "missing tools: dpkg-deb, buildah, cargo-cyclonedx; nothing was built" in result.stderr
    assert not (tmp_path / "output").exists()


def test_crate_has_the_program_and_its_examples_without_tests_and_packages():
    listed = run("cargo", "package", "--list", "--allow-dirty", "--offline", cwd=ROOT).splitlines()
    tops = {name.split("/")[0] for name in listed}
    generated = {"Cargo.toml.orig", ".cargo_vcs_info.json"}
    assert tops - generated == {"src", "config", "Cargo.toml", "Cargo.lock", "CHANGELOG.md", "LICENSE", "README.md"}
    assert {"src/main.rs", "config/quickstart.yaml"} <= set(listed)
