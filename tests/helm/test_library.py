"""The chart as a library: the chart in foreign/ depends on it and adds Weir to its own workloads."""

import functools
import pathlib
import shutil
import tempfile

import helm_python as helm
import kubernetes_validate
import pytest
import yaml
from support import CHART, KUBERNETES, WEIR_BIN, by_name, check, configurations, of_kind, render, seconds, weir_of

FOREIGN = pathlib.Path(__file__).resolve().parent / "foreign"
CLASSIC = "weir: {sidecar: {native: false}}"


@functools.cache
def foreign(alias=None):
    """Returns the foreign chart with its dependency in `charts`, optionally under another name."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="weir-foreign-")) / "shop"
    shutil.copytree(FOREIGN, directory)
    shutil.copytree(CHART, directory / "charts" / "weir")
    manifest = yaml.safe_load((directory / "Chart.yaml").read_text())
    if alias:
        manifest["dependencies"][0]["alias"] = alias
        (directory / "values.yaml").write_text((FOREIGN / "values.yaml").read_text().replace("weir:", f"{alias}:"))
        for path in (directory / "templates").iterdir():
            text = path.read_text().replace("(list . ", f"(list .Subcharts.{alias} ").replace('" . ', f'" .Subcharts.{alias} ')
            # The workload itself does not depend on the dependency.
            path.write_text(text.replace(".Chart.AppVersion", "1").replace(".Values.weir.sidecar", ".Values.edge.sidecar"))
            if path.name == "web.yaml":
                path.write_text(path.read_text().replace('"weir.port" . ', f'"weir.port" .Subcharts.{alias} '))
    (directory / "Chart.yaml").write_text(yaml.safe_dump(manifest))
    return helm.Chart.load(directory)


@functools.cache
def objects(values="{}", alias=None):
    return render(values, foreign(alias), name="prod")


def template(found, kind, name):
    return found[kind, name]["spec"]["template"]


def test_dependency_can_be_resolved_from_the_repository(tmp_path):
    shutil.copytree(FOREIGN, tmp_path / "shop")
    manifest = yaml.safe_load((tmp_path / "shop" / "Chart.yaml").read_text())
    resolved = (FOREIGN / manifest["dependencies"][0]["repository"].removeprefix("file://")).resolve()
    assert resolved == CHART
    manifest["dependencies"][0]["repository"] = f"file://{CHART}"
    (tmp_path / "shop" / "Chart.yaml").write_text(yaml.safe_dump(manifest))
    helm.dependency_update(tmp_path / "shop")
    with helm.Chart.load(tmp_path / "shop") as loaded:
        assert [d["name"] for d in loaded.dependencies] == ["weir"]


@pytest.mark.parametrize("values", ["{}", CLASSIC])
def test_objects_satisfy_the_strict_kubernetes_schema(values):
    for o in objects(values).values():
        kubernetes_validate.validate(o, KUBERNETES, strict=True)


def test_library_renders_no_workload_of_its_own():
    found = objects()
    assert {(kind, name) for kind, name in found} == {
        ("ConfigMap", "prod-weir"), ("ConfigMap", "prod-weir-check"), ("Job", "prod-weir-check"),
        ("Deployment", "prod-web"), ("Service", "prod-web"), ("StatefulSet", "prod-queue"), ("CronJob", "prod-report"),
    }


@pytest.mark.parametrize("kind, name", [("Deployment", "prod-web"), ("StatefulSet", "prod-queue")])
def test_native_sidecar_runs_after_the_other_init_containers(kind, name):
    spec = template(objects(), kind, name)["spec"]
    assert spec["initContainers"][-1]["name"] == "weir"
    assert spec["initContainers"][-1]["restartPolicy"] == "Always"
    assert "weir" not in [c["name"] for c in spec["containers"]]


@pytest.mark.parametrize("kind, name", [("Deployment", "prod-web"), ("StatefulSet", "prod-queue")])
def test_classic_sidecar_is_a_container(kind, name):
    spec = template(objects(CLASSIC), kind, name)["spec"]
    assert spec["containers"][0]["name"] == "weir" and "restartPolicy" not in spec["containers"][0]
    assert "weir" not in [c["name"] for c in spec.get("initContainers", [])]


def test_both_ways_add_the_same_container_and_volume():
    for values in ("{}", CLASSIC):
        web, queue = (template(objects(values), *key) for key in (("Deployment", "prod-web"), ("StatefulSet", "prod-queue")))
        assert weir_of(web["spec"]) == weir_of(queue["spec"])
        assert web["spec"]["volumes"][-1] == queue["spec"]["volumes"][-1]
        assert web["spec"]["volumes"][-1]["configMap"]["name"] == "prod-weir"
        assert web["metadata"]["annotations"] == queue["metadata"]["annotations"]
        assert web["spec"]["terminationGracePeriodSeconds"] == queue["spec"]["terminationGracePeriodSeconds"]


def test_sidecar_of_a_cron_job_is_in_the_pods_of_its_jobs():
    report = objects()["CronJob", "prod-report"]["spec"]["jobTemplate"]
    spec = report["spec"]["template"]["spec"]
    assert weir_of(spec) == weir_of(template(objects(), "Deployment", "prod-web")["spec"])
    assert spec["restartPolicy"] == "Never" and spec["volumes"][-1]["configMap"]["name"] == "prod-weir"


def test_everything_else_of_the_workload_is_kept():
    web = objects()["Deployment", "prod-web"]
    assert web["spec"]["replicas"] == 2
    assert [c["name"] for c in web["spec"]["template"]["spec"]["containers"]] == ["shop", "worker"]
    assert web["spec"]["template"]["spec"]["volumes"][0] == {"name": "cache", "emptyDir": {}}
    assert web["spec"]["selector"]["matchLabels"].items() <= web["spec"]["template"]["metadata"]["labels"].items()


def test_image_is_that_of_weir_and_not_of_the_application():
    with helm.Chart.load(CHART) as chart:
        version = chart.metadata["appVersion"]
    assert weir_of(template(objects(), "Deployment", "prod-web")["spec"])["image"] == f"weir:{version}"


def test_probes_and_service_use_the_port_of_the_listener():
    for listen, values in ((8080, "{}"), (9000, 'weir: {config: {listeners: ["0.0.0.0:9000"]}}')):
        found = objects(values)
        shop = template(found, "Deployment", "prod-web")["spec"]["containers"][0]
        assert shop["readinessProbe"]["httpGet"]["port"] == listen
        assert found["Service", "prod-web"]["spec"]["ports"][0]["targetPort"] == listen


def test_application_pauses_before_it_stops_unless_it_has_a_hook():
    shop, worker = template(objects(), "Deployment", "prod-web")["spec"]["containers"]
    assert shop["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert worker["lifecycle"] == {"preStop": {"exec": {"command": ["stop"]}}}
    config = yaml.safe_load(configurations(objects())["prod-weir"])
    assert seconds(config["drain"]["delay"]) == 0


def test_monitors_and_policies_find_the_pods_by_the_label():
    found = objects("weir: {metrics: {podMonitor: {enabled: true}}, networkPolicy: {enabled: true}}")
    labels = template(found, "Deployment", "prod-web")["metadata"]["labels"].items()
    for kind, path in (("PodMonitor", "selector"), ("NetworkPolicy", "podSelector")):
        assert of_kind(found, kind)[0]["spec"][path]["matchLabels"].items() <= labels


def test_alias_of_the_dependency_is_passed_as_context():
    found = objects(alias="edge")
    assert weir_of(template(found, "Deployment", "prod-web")["spec"])["args"] == ["run"]
    assert ("ConfigMap", "prod-edge") in found
    assert template(found, "Deployment", "prod-web")["spec"]["volumes"][-1]["configMap"]["name"] == "prod-edge"


@pytest.mark.parametrize("change, message", [
    (("containers:\n        - name: shop", "contained:\n        - name: shop"), "no spec.template.spec.containers"),
    (("  replicas: 2", "  replicas: [2"), "not valid YAML"),
    (("    spec:\n      initContainers", "    spec:\n      terminationGracePeriodSeconds: 9\n      initContainers"), "less than the 30 seconds"),
])
def test_unusable_workload_is_rejected_with_the_name_of_its_template(change, message, tmp_path):
    shutil.copytree(FOREIGN, tmp_path / "shop")
    shutil.copytree(CHART, tmp_path / "shop" / "charts" / "weir")
    web = tmp_path / "shop" / "templates" / "web.yaml"
    assert change[0] in web.read_text()
    web.write_text(web.read_text().replace(*change))
    with helm.Chart.load(tmp_path / "shop") as loaded, pytest.raises(helm.HelmRenderError, match=message) as caught:
        by_name(loaded.render({}, name="prod").values())
    assert "weir.inject" in str(caught.value)


def test_mistyped_rule_of_the_dependency_is_rejected():
    with pytest.raises(helm.HelmValuesError, match="/config/rules/0"):
        render("weir: {config: {rules: [{name: a, limitt: 1/s}]}}", foreign(), name="prod")


@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
def test_weir_accepts_the_configuration(tmp_path):
    texts = configurations(objects())
    assert len(texts) == 2
    for text in texts.values():
        check(text, tmp_path)
