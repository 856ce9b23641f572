"""Images of the tests. None is pulled: one bootstrapped Debian root stands for the base images, under their names.

Weir's image is built from the last stage of the repository's Dockerfile. The stages that compile are replaced by the binary under
test: they take half an hour, need the compiler's image and a registry of crates."""

import pathlib
import shutil

from lab import LAB, SOURCE

HERE = pathlib.Path(__file__).resolve().parent
WEIR, REVISION = "weir:0.1.0", "tested"
# Base images of the Dockerfile and of Compose, and the application of the examples.
BASE, REDIS, APPLICATION = "debian:bookworm-slim", "redis:8-alpine", "hashicorp/http-echo:1.0.0"


def build(lab, binary):
    parts = lab.directory / "run" / "parts"
    compiled_stages(parts, binary)
    if lab.run("sh", "-c", f"podman image exists {BASE} || echo missing"):
        lab.run("podman", "import", LAB / "base.tar", BASE, timeout=300)
    inside = LAB / "run" / "parts"
    contexts = [f"--build-context={stage}={inside / stage}" for stage in ("build", "bill-of-materials")]
    lab.run("buildah", "bud", "--isolation=chroot", "--pull=never", *contexts, f"--build-arg=REVISION={REVISION}", f"--tag={WEIR}",
            f"--file={SOURCE / 'Dockerfile'}", SOURCE, timeout=600)
    standins = SOURCE / "tests" / "containers" / "standins"
    for stage, image in (("application", APPLICATION), ("redis", REDIS)):
        lab.run("buildah", "bud", "--isolation=chroot", "--pull=never", f"--target={stage}", f"--tag={image}", standins, timeout=300)


def compiled_stages(parts, binary):
    """Writes what the last stage copies from those that compile."""
    build = parts / "build"
    (build / "image/usr/local/bin").mkdir(parents=True)
    (build / "image/bin").mkdir()
    shutil.copy(binary, build / "image/usr/local/bin/weir")
    (build / "image/bin/ratelimit").symlink_to("/usr/local/bin/weir")
    (build / "etc/ssl/certs").mkdir(parents=True)
    (build / "etc/ssl/certs/ca-certificates.crt").write_text("")
    (parts / "bill-of-materials/src").mkdir(parents=True)
    (parts / "bill-of-materials/src/weir.cdx.json").write_text("{}\n")
