"""Weir on a host: the systemd unit and the Debian package."""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import io

import pytest
import yaml
from support import DEPLOY, ROOT, WEIR_BIN, check_file, seconds

UNIT = DEPLOY / "systemd" / "weir.service"
# Stands in for the binary where there is none: the package needs only its version, completions and man pages.
STAND_IN = """#!/bin/sh
case $1 in
    --version) echo "weir 0.1.0" ;;
    completions) echo "# $2" ;;
    man) echo .TH >"$2/weir.1" && echo .TH >"$2/weir-run.1" ;;
esac
"""


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    if WEIR_BIN:
        return pathlib.Path(WEIR_BIN).resolve()
    path = tmp_path_factory.mktemp("bin") / "weir"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


# systemd


def settings():
    """Returns the settings of the unit; a repeated one is a list."""
    found = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


@pytest.fixture
def unit(binary, tmp_path):
    """Returns the unit with the path of a binary that exists."""
    path = tmp_path / "weir.service"
    path.write_text(UNIT.read_text().replace("/usr/bin/weir", str(binary)))
    return path


@needs_systemd
def test_systemd_accepts_the_unit(unit):
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""


@needs_systemd
def test_systemd_accepts_the_unit_with_the_drop_in(unit):
    directory = unit.with_name("weir.service.d")
    directory.mkdir()
    shutil.copy(DEPLOY / "systemd" / "privileged-ports.conf", directory)
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""


@needs_systemd
def test_exposure_of_the_unit_is_low(unit):
    # In tenths; 20 is the border to "OK" of systemd's scale, whose worst is 100.
    run("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", unit)


def test_unit_has_no_capabilities_and_the_drop_in_only_that_of_low_ports():
    assert settings()["AmbientCapabilities"] == settings()["CapabilityBoundingSet"] == [""]
    drop_in = (DEPLOY / "systemd" / "privileged-ports.conf").read_text()
    assert set(re.findall(r"CAP_\w+", drop_in)) == {"CAP_NET_BIND_SERVICE"}


def test_reload_checks_the_configuration_before_the_signal():
    check, signal = settings()["ExecReload"]
    assert check == settings()["ExecStartPre"][0] == "/usr/bin/weir check /etc/weir/weir.yaml"
    assert signal == "/bin/kill -HUP $MAINPID"


def test_exit_code_that_is_not_repeated_is_that_of_run_with_an_invalid_configuration():
    assert settings()["RestartPreventExitStatus"] == ["2"]
    text = (DEPLOY.parent / "docs" / "operations" / "host.md").read_text()
    # systemd's defaults, which the page states.
    assert "StartLimitBurst" not in settings() and "StartLimitIntervalSec" not in settings()
    assert "gives up after five starts within 10 s" in text and f"after {settings()['RestartSec'][0]} s" in text


@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
def test_run_exits_with_2_and_the_problems_of_an_invalid_configuration(tmp_path):
    (tmp_path / "weir.yaml").write_text("listeners: 3\n")
    result = subprocess.run([WEIR_BIN, "run", "-c", tmp_path / "weir.yaml"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "weir.yaml:1:" in result.stderr


def logrotate_commands():
    text = (DEPLOY / "systemd" / "weir.logrotate").read_text()
    return [line.strip() for line in text.splitlines() if not line.strip().startswith("#")]


def test_log_rotation_renames_files_of_the_log_directory_and_sends_the_signal_to_the_main_process():
    pattern = logrotate_commands()[0].split()[0]
    assert pathlib.Path(pattern).parent == pathlib.Path("/var/log") / settings()["LogsDirectory"][0]
    assert "nocreate" in logrotate_commands() and "copytruncate" not in logrotate_commands()
    kill = next(line for line in logrotate_commands() if line.startswith("systemctl kill"))
    assert "--kill-who=main" in kill and "--signal=USR1" in kill and kill.endswith("weir.service >/dev/null 2>&1 || true")
    text = (ROOT / "docs" / "operations" / "host.md").read_text()
    path = re.search(r"access_log: \{ path: (\S+),", text)[1]
    assert pathlib.Path(path).match(pattern)


@pytest.mark.skipif(not shutil.which("logrotate"), reason="logrotate is not installed")
def test_logrotate_accepts_the_file():
    result = subprocess.run(["logrotate", "--debug", DEPLOY / "systemd" / "weir.logrotate"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "error" not in result.stderr, result.stderr


def test_stop_timeout_covers_the_drain_and_the_last_writes():
    drain = yaml.safe_load((DEPLOY / "systemd" / "weir.yaml").read_text())["drain"]
    assert int(settings()["TimeoutStopSec"][0]) >= seconds(drain["timeout"]) + 5


def test_state_file_is_in_a_directory_that_the_unit_may_write():
    config = yaml.safe_load((DEPLOY / "systemd" / "weir.yaml").read_text())
    assert pathlib.Path(config["state"]["file"]).parent == pathlib.Path("/var/lib") / settings()["StateDirectory"][0]


# Debian


needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not installed")


@pytest.fixture(scope="module")
def package(binary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("package")
    environment = os.environ | {"DEB_COMPRESSION": "none", "SOURCE_DATE_EPOCH": "1700000000"}
    build = [DEPLOY / "debian" / "build", "--binary", binary, "--output", directory]
    printed = run(*build, env=environment).strip()
    assert pathlib.Path(printed).parent == directory
    return pathlib.Path(printed)


def members(package):
    """Returns the files of the package by path."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True, timeout=60).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name.removeprefix("."): member for member in archive.getmembers()}


@pytest.fixture(scope="module")
def control(package, tmp_path_factory):
    directory = tmp_path_factory.mktemp("control")
    run("dpkg-deb", "--control", package, directory)
    return directory


@pytest.fixture(scope="module")
def extracted(package, tmp_path_factory):
    directory = tmp_path_factory.mktemp("root")
    run("dpkg-deb", "--extract", package, directory)
    return directory


@needs_dpkg
def test_package_has_the_version_of_the_crate(package, control):
    crate = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    fields = dict(re.findall(r"^(\S+): (.+)$", (control / "control").read_text(), re.MULTILINE))
    assert fields["Package"] == "weir" and fields["Version"] == crate
    assert package.name == f"weir_{crate}_{fields['Architecture']}.deb"
    assert {"Maintainer", "Section", "Priority", "Depends", "Installed-Size", "Description"} <= fields.keys()
    assert all(len(line) <= 80 for line in (control / "control").read_text().splitlines())


@needs_dpkg
def test_package_has_everything_that_an_installation_needs(package):
    assert members(package).keys() >= {
        "/usr/bin/weir",
        "/usr/bin/kubectl-weir",
        "/usr/bin/kubectl_complete-weir",
        "/usr/lib/systemd/system/weir.service",
        "/etc/weir/weir.yaml",
        "/etc/default/weir",
        "/etc/logrotate.d/weir",
        "/usr/share/bash-completion/completions/weir",
        "/usr/share/zsh/vendor-completions/_weir",
        "/usr/share/fish/vendor_completions.d/weir.fish",
        "/usr/share/man/man1/weir.1.gz",
        "/usr/share/man/man1/weir-run.1.gz",
        "/usr/share/doc/weir/copyright",
        "/usr/share/doc/weir/changelog.gz",
        "/usr/share/doc/weir/examples/privileged-ports.conf",
        "/usr/share/doc/weir/examples/quickstart.yaml",
        "/usr/share/doc/weir/examples/cloudflare-networks.txt",
        "/usr/share/doc/weir/examples/weir.schema.json",
    }


@needs_dpkg
def test_files_belong_to_root_and_only_programs_are_executable(package):
    for path, member in members(package).items():
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "root", "root"), path
        # The modes of links have no meaning.
        if member.issym():
            assert path in ("/usr/bin/kubectl-weir", "/usr/bin/kubectl_complete-weir")
            assert member.linkname == "weir"
            continue
        expected = 0o755 if member.isdir() or path == "/usr/bin/weir" else 0o644
        # Made for passwords.
        expected = 0o600 if path == "/etc/default/weir" else expected
        assert member.mode == expected, f"{path}: {member.mode:o}"
        assert not path.startswith(("/usr/local", "/var", "/home"))


@needs_dpkg
def test_configuration_survives_an_upgrade(package, control):
    conffiles = (control / "conffiles").read_text().split()
    assert set(conffiles) == {path for path, member in members(package).items() if path.startswith("/etc/") and member.isfile()}


@needs_dpkg
def test_maintainer_scripts_are_valid_and_do_nothing_without_systemd(control):
    for script in ("postinst", "prerm", "postrm"):
        path = control / script
        assert path.stat().st_mode & 0o777 == 0o755
        run("sh", "-n", path)
        assert "set -e" in path.read_text()
    if not os.path.isdir("/run/systemd/system"):
        run(control / "postinst", "configure", "")
        run(control / "prerm", "remove")


def upgrade(tmp_path, old_version="0.1.0", failing=()):
    """Runs postinst with a recording systemctl whose commands in `failing` exit with 1. Returns its calls and the messages."""
    calls, systemctl, script = tmp_path / "calls", tmp_path / "systemctl", tmp_path / "postinst"
    pattern = "|".join(f"*'{verb}'*" for verb in failing) or "none"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{calls}\ncase "$*" in {pattern}) exit 1 ;; esac\n')
    systemctl.chmod(0o755)
    script.write_text((DEPLOY / "debian" / "postinst").read_text().replace("/run/systemd/system", str(tmp_path)))
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", script, "configure", *([old_version] if old_version else [])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr
    return calls.read_text().splitlines(), result.stderr


def test_upgrade_restarts_after_the_new_binary_accepted_the_configuration(tmp_path):
    calls, messages = upgrade(tmp_path)
    assert calls == ["daemon-reload", "--quiet is-active weir.service", "reload weir.service", "try-restart weir.service"]
    assert messages == ""


def test_upgrade_keeps_the_old_process_if_the_new_binary_rejects_the_configuration(tmp_path):
    calls, messages = upgrade(tmp_path, failing=["reload weir"])
    assert calls[-1] == "reload weir.service"
    assert "journalctl -u weir" in messages and "systemctl restart weir" in messages


def test_upgrade_of_a_stopped_service_and_a_first_installation_start_nothing(tmp_path):
    calls, _ = upgrade(tmp_path, failing=["is-active"])
    assert calls == ["daemon-reload", "--quiet is-active weir.service"]
    (tmp_path / "calls").unlink()
    calls, _ = upgrade(tmp_path, old_version=None)
    assert calls == ["daemon-reload"]


@needs_dpkg
def test_checksums_cover_every_file_below_usr(package, control, extracted):
    listed = {line.split("  ", 1)[1] for line in (control / "md5sums").read_text().splitlines()}
    assert listed == {path[1:] for path, member in members(package).items() if path.startswith("/usr/") and member.isfile()}
    run("md5sum", "--check", "--quiet", control / "md5sums", cwd=extracted)


@needs_dpkg
def test_changelog_and_copyright_are_those_of_the_project(extracted):
    documents = extracted / "usr/share/doc/weir"
    assert gzip.decompress((documents / "changelog.gz").read_bytes()).decode() == (ROOT / "CHANGELOG.md").read_text()
    text = (documents / "copyright").read_text()
    assert text.startswith("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/")
    assert "License: Apache-2.0" in text and "\n .\n" in text


@needs_dpkg
def test_package_is_reproducible(package, binary, tmp_path):
    environment = os.environ | {"DEB_COMPRESSION": "none", "SOURCE_DATE_EPOCH": "1700000000"}
    again = run(DEPLOY / "debian" / "build", "--binary", binary, "--output", tmp_path, env=environment).strip()
    assert pathlib.Path(again).read_bytes() == package.read_bytes()


@needs_dpkg
@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
def test_installed_binary_accepts_the_installed_configurations(extracted):
    installed = extracted / "usr/bin/weir"
    assert run(installed, "--version").startswith("weir ")
    check_file(extracted / "etc/weir/weir.yaml")
    examples = sorted((extracted / "usr/share/doc/weir/examples").glob("*.yaml"))
    assert len(examples) > 10
    for example in examples:
        check_file(example)


@needs_dpkg
def test_modelines_of_installed_configurations_name_the_installed_schema(extracted):
    configurations = [extracted / "etc/weir/weir.yaml", *(extracted / "usr/share/doc/weir/examples").glob("*.yaml")]
    for path in configurations:
        name = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())[1]
        schema = extracted / name[1:] if name.startswith("/") else path.parent / name
        assert schema.read_text() == (ROOT / "config" / "weir.schema.json").read_text(), path


@needs_dpkg
@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
def test_every_subcommand_has_a_man_page(extracted):
    pages = {path.name.removesuffix(".1.gz") for path in (extracted / "usr/share/man/man1").iterdir()}
    commands = re.search(r"Commands:\n(.*?)\n\n", run(extracted / "usr/bin/weir", "--help"), re.DOTALL)[1]
    assert pages >= {"weir"} | {f"weir-{line.split()[0]}" for line in commands.splitlines()}


@needs_dpkg
def test_missing_binary_is_reported_with_the_command_that_builds_it(tmp_path):
    build = [DEPLOY / "debian" / "build", "--binary", tmp_path / "none"]
    result = subprocess.run(build, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    command = "cargo build --profile dist --features jemalloc --locked --bin weir"
    assert result.stderr.strip() == f"{tmp_path}/none: no such binary, build it with {command}"
    assert f"\n{command}\n" in (ROOT / "docs" / "operations" / "host.md").read_text()
