"""Manifests played as pods. Podman knows neither native sidecars nor, without cgroups, probes. A sidecar becomes a container that starts
first, and what Podman does not know is taken out; tests send the requests of probes themselves."""

import copy
import json

import yaml
from lab import LAB

# Kinds that Podman plays. It ignores a Service, so that requests go to a port of the pod.
PLAYED = {"ConfigMap", "Deployment", "Pod"}
NOT_PLAYED = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "resources")


class Pod:
    """A running pod of a manifest: one Deployment with its ConfigMaps."""

    def __init__(self, lab, objects):
        self.lab = lab
        self.objects = objects
        workload = next(o for o in objects if o["kind"] == "Deployment")
        self.name = f"{workload['metadata']['name']}-pod"
        self.spec = workload["spec"]["template"]["spec"]
        self.file = LAB / "run" / f"{self.name}.yaml"
        (lab.directory / "run" / f"{self.name}.yaml").write_text(yaml.safe_dump_all(playable(objects)))
        lab.run("podman", "kube", "play", self.file)
        infra = json.loads(lab.run("podman", "pod", "inspect", self.name))
        self.address = lab.address((infra[0] if isinstance(infra, list) else infra)["InfraContainerID"])
        self.url = f"http://{self.address}:{self.port()}/"

    def container(self, name):
        return f"{self.name}-{name}"

    def weir(self):
        """Returns Weir's container as it is in the manifest."""
        return next(c for c in self.spec.get("initContainers", []) + self.spec["containers"] if c["name"] == "weir")

    def port(self):
        """Returns the port to which clients send: that of the application, if it is redirected, or that of Weir's listener."""
        for container in self.spec.get("initContainers", []):
            if "redirect" in container.get("args", []):
                return container["args"][container["args"].index("--port") + 1]
        return self.weir()["ports"][0]["containerPort"]

    def probe(self, name):
        """Sends the request of a probe of Weir's container, as the kubelet does, and returns the status code."""
        request = self.weir()[name]["httpGet"]
        return self.lab.status(f"http://{self.address}:{request['port']}{request['path']}")

    def metric(self, begin):
        """Returns the sum of Weir's metrics that begin so, a name or a name with labels."""
        lines = self.lab.curl(f"http://{self.address}:{self.weir()['startupProbe']['httpGet']['port']}/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(begin))

    def config_map(self):
        """Returns the name of the mounted ConfigMap, and the configuration in it."""
        mounted = next(volume for volume in self.spec["volumes"] if volume["name"] == "weir-config")["configMap"]["name"]
        found = next(o for o in self.objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == mounted)
        return mounted, yaml.safe_load(found["data"]["weir.yaml"])

    def log(self):
        return self.lab.run("sh", "-c", f"podman logs {self.container('weir')} 2>&1")

    def update(self, config_map, files):
        """Changes a mounted ConfigMap as the kubelet does: a new directory, and one rename of the link to it."""
        volume = self.lab.run("podman", "volume", "inspect", "--format={{.Mountpoint}}", config_map).strip()
        inside = self.lab.directory / "storage" / volume.removeprefix("/lab/storage/")
        version = f"..{len(list(inside.iterdir()))}"
        (inside / version).mkdir()
        for name, text in files.items():
            (inside / version / name).write_text(text)
        (inside / "..data_tmp").symlink_to(version)
        (inside / "..data_tmp").rename(inside / "..data")
        for name in files:
            if not (inside / name).is_symlink():
                (inside / "..link").symlink_to(f"..data/{name}")
                (inside / "..link").rename(inside / name)

    def remove(self):
        self.lab.run("podman", "kube", "down", "--force", self.file)


def playable(objects):
    """Returns the objects as Podman plays them."""
    found = [copy.deepcopy(o) for o in objects if o["kind"] in PLAYED]
    for o in found:
        spec = o.get("spec", {}).get("template", {}).get("spec", o.get("spec"))
        if not spec:
            continue
        init = spec.pop("initContainers", [])
        sidecars = [c for c in init if c.pop("restartPolicy", None) == "Always"]
        others = [c for c in init if c not in sidecars]
        if others:
            spec["initContainers"] = others
        spec["containers"] = sidecars + spec["containers"]
        for container in spec["containers"] + others:
            container["imagePullPolicy"] = "Never"
            for key in NOT_PLAYED:
                container.pop(key, None)
    return found


def load(path):
    return [o for o in yaml.safe_load_all(path.read_text()) if o]
