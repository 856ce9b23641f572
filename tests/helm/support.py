"""What the tests of the chart share: rendering by the Helm engine, objects by kind and name, and `weir check`."""

import functools
import os
import pathlib
import re
import subprocess

import helm_python as helm
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "weir"
DEPLOY = ROOT / "deploy"
VALUES = pathlib.Path(__file__).resolve().parent / "values"
KUBERNETES = "1.34"
# The first with stable MutatingAdmissionPolicies.
KUBERNETES_OF_POLICIES = "1.36"
RELEASE = "hello"
WEIR_BIN = os.environ.get("WEIR_BIN")


@functools.cache
def chart(directory=None):
    return helm.Chart.load(directory or CHART)


def render(values="{}", loaded=None, **release):
    """Returns the objects of a release, by kind and name."""
    parsed = helm.values_from_yaml(values)
    if loaded is None:
        loaded, parsed = chart(), with_image(parsed)
    release = {"name": RELEASE, "namespace": "default"} | release
    files = loaded.render(parsed, **release)
    return by_name(text for path, text in sorted(files.items()) if path.endswith(".yaml"))


def with_image(values):
    """Returns the values with an image, for which the chart has no default."""
    return values | {"image": {"repository": "weir"} | values.get("image", {})}


def notes(values="{}"):
    files = chart().render(with_image(helm.values_from_yaml(values)), name=RELEASE, namespace="default")
    return files["weir/templates/NOTES.txt"]


def by_name(texts):
    found = {}
    for text in texts:
        for o in yaml.safe_load_all(text):
            if o:
                key = (o["kind"], o["metadata"]["name"])
                assert key not in found, f"{key} twice"
                found[key] = o
    return found


def values_files():
    return sorted(path.stem for path in VALUES.glob("*.yaml"))


@functools.cache
def rendered(name):
    return render((VALUES / f"{name}.yaml").read_text())


def of_kind(objects, kind):
    return [o for (found, _), o in objects.items() if found == kind]


def only(objects, kind):
    """Returns the one object of a kind that is not a hook."""
    found = [o for o in of_kind(objects, kind) if "helm.sh/hook" not in o["metadata"].get("annotations", {})]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def pod(objects):
    return only(objects, "Deployment")["spec"]["template"]["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec.get("containers", [])


def weir_of(spec):
    return next(c for c in containers(spec) if c["name"] == "weir")


def weir(objects):
    return weir_of(pod(objects))


def main_service(objects):
    return objects["Service", only(objects, "Deployment")["metadata"]["name"]]


def configurations(objects):
    """Returns the texts of all Weir configurations in ConfigMaps, by the name of the ConfigMap."""
    maps = of_kind(objects, "ConfigMap")
    return {o["metadata"]["name"]: o["data"]["weir.yaml"] for o in maps if "weir.yaml" in o.get("data", {})}


def config_of(objects):
    """Returns the parsed configuration that the pods mount."""
    mounted = next(v for v in pod(objects)["volumes"] if v["name"] == "weir-config")
    return yaml.safe_load(configurations(objects)[mounted["configMap"]["name"]])


def seconds(duration):
    count, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", duration).groups()
    return int(count) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def check(text, directory, name="weir.yaml", **environment):
    """Runs `weir check` on a text and fails with its output if it is invalid."""
    file = pathlib.Path(directory) / name
    file.write_text(text)
    return check_file(file, **environment)


def check_file(file, **environment):
    # Variables that the examples take from the pod, a secret or an environment file.
    variables = {"REDIS_PASSWORD": "secret", "POD_NAME": "hello-0", "APP_PORT": "3000", "TOKEN": "secret"}
    result = subprocess.run(
        [WEIR_BIN, "check", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | variables | environment,
    )
    assert result.returncode == 0, f"{file}\n{file.read_text()}\n{result.stdout}{result.stderr}"
    return result.stdout
