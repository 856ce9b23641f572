"""Images and the machine of the container tests, once for a session; all tests are skipped where it cannot be had."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import images  # noqa: E402
import lab as labs  # noqa: E402


def directory():
    target = os.environ.get("CARGO_TARGET_DIR") or labs.ROOT / "target"
    return pathlib.Path(target).resolve() / "containers"


@pytest.fixture(scope="session")
def lab():
    """Returns the running lab, with all images."""
    checked = subprocess.run([HERE / "lab", "check"], capture_output=True, text=True, timeout=60)
    if checked.returncode:
        pytest.skip(f"containers cannot run here: {checked.stdout.strip()}")
    if not labs.binary():
        pytest.skip("WEIR_BIN names no binary")
    subprocess.run([HERE / "lab", "install", directory()], check=True, timeout=900)
    # Containers and volumes of an interrupted run; images are kept.
    shutil.rmtree(directory() / "run", ignore_errors=True)
    (directory() / "run").mkdir()
    running = labs.Lab(directory())
    try:
        bridged = subprocess.run(running.command("ip", "link", "add", "name", "tried", "type", "bridge"), capture_output=True, text=True, timeout=60)
        if bridged.returncode:
            pytest.skip(f"containers cannot run here: no bridge for their network: {bridged.stderr.strip()}")
        running.run("sh", "-c", "podman rm --all --force --time 0; podman volume rm --all --force; podman network prune --force")
        images.build(running, labs.binary())
        # Images of former binaries.
        running.run("podman", "image", "prune", "--force")
        yield running
    finally:
        running.close()
