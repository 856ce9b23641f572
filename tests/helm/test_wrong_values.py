"""Wrong values: Helm rejects them before anything is applied, with a message that names the value."""

import re

import helm_python as helm
import pytest
from support import render

BY_SCHEMA = {
    "replicas: 2": "'replicas' not allowed",
    "image: {tagg: x}": "'/image'.*'tagg' not allowed",
    "mode: gateway": "'/mode'.*'sidecar', 'proxy', 'rls', 'library', 'injector'",
    "serviceAccount: {crate: true}": "'crate'",
    "service: {prot: 80}": "'prot'",
    "service: {port: 70000}": "'/service/port'.*65,535",
    "sidecar: {nativ: false}": "'nativ'",
    "app: {readynessProbe: {}}": "'readynessProbe'",
    "app: {name: weir}": "'/app/name'",
    "resources: {limit: {}}": "'limit'",
    "replicaCount: two": "'/replicaCount'.*want integer",
    "image: {digest: latest}": "'/image/digest'",
    "probes: {startup: {httpGet: {}}}": "'/probes/startup'.*'httpGet'",
    "metrics: {podMonitor: {interval: 30}}": "'/metrics/podMonitor/interval'.*want string",
    "rls: {descriptors: {..data: x}}": "'/rls/descriptors'",
    # The schema of the configuration is Weir's own.
    "config: {rulez: []}": "'/config'.*'rulez' not allowed",
    "config: {rules: [{name: a, limitt: 1/s}]}": "'/config/rules/0'.*'limitt' not allowed",
    "config: {rules: [{name: a, limit: 5}]}": "'/config/rules/0/limit'.*want string",
    "config: {rules: [{name: a, action: permit}]}": "'/config/rules/0/action'",
    "config: {rules: [{name: a, limit: 1/s, algorithm: leaky}]}": "'/config/rules/0/algorithm'",
    "config: {workers: 0}": "'/config/workers'",
    "config: {drain: {dealy: 5s}}": "'/config/drain'.*'dealy'",
    "config: {upstream: {adress: 'a:80'}}": "'adress'",
}
BY_TEMPLATE = {
    "config: {admin: {probes: null}}": "config.admin.probes: no address with a port",
    "config: {admin: {address: '0.0.0.0:9901', probes: null, token: 0123456789abcdef}}":
        "config.admin.probes: the kubelet and Prometheus have no config.admin.token, and would get 401",
    "{config: {admin: {probes: null, token: {file: token}}}, ports: {probes: 9901}}": "config.admin.probes: .* would get 401",
    "config: {admin: {probes: '127.0.0.1:9902'}}": "config.admin.probes: 127.0.0.1:9902 is on loopback",
    "config: {admin: {probes: '0.0.0.0:${PORT}'}}": "set ports.probes",
    "config: {listeners: 'unix:/run/weir.sock'}": "config.listeners: no address with a port .* set ports.http",
    "config: {listeners: null}": "config.listeners: the mode sidecar needs a listener",
    "mode: proxy": "config.upstream: the mode proxy needs the Service that it protects",
    "{mode: rls, config: {rls: null, listeners: '0.0.0.0:80'}}": "config.rls: the mode rls needs this section",
    "{mode: rls, config: {config: {http: 'http://a/x'}}}": "config.rls.address: no port .* set ports.grpc",
    "{mode: rls, config: {rls: {address: 'unix:/run/rls'}}}": "config.rls.address: no port .* set ports.grpc",
    "rls: {descriptors: {a.yaml: {}}}": "rls: only the mode rls has these values, mode is sidecar",
    "{existingConfigMap: a, config: {workers: 3}}": "existingConfigMap: .* remove config",
    "{configText: 'workers: 2', config: {workers: 3}}": "configText: .* remove config",
    "configText: 'a: [b'": "configText: not valid YAML",
    "terminationGracePeriodSeconds: 19": "terminationGracePeriodSeconds: 19 is less than the 20 seconds",
    "{mode: proxy, config: {upstream: 'a:80', drain: {timeout: 60s}}, terminationGracePeriodSeconds: 60}": "60 is less than the 70 seconds",
    "config: {drain: {timeout: '${DRAIN}'}}": "config.drain.timeout: the chart cannot read the duration .*, set terminationGrace",
    "autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 2}": "autoscaling.maxReplicas: 2 is less than the smallest number of pods 5",
    "{replicaCount: 12, autoscaling: {enabled: true}}": "autoscaling.maxReplicas: 10 is less than the smallest number of pods 12",
    "{mode: proxy, config: {upstream: 'a:80'}, autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}":
        "resources.requests.cpu: autoscaling.targetCPUUtilizationPercentage is a share of it",
    "{mode: injector, config: {rules: []}}": "config: the mode injector reads only listeners, admin and drain",
    "{mode: injector, existingConfigMap: limits}": "config: .* named by injector.configMap",
    "{mode: injector, sidecar: {native: false}}": "sidecar.native: the mode injector adds native sidecars only",
    "{mode: injector, networkPolicy: {enabled: true}}": "networkPolicy: the mode injector has no pods of its own",
    "{mode: injector, config: {listeners: ['0.0.0.0:80', '0.0.0.0:81']}}": "config.listeners: the mode injector adds a sidecar with one listener",
    "metrics: {podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}": "metrics: .* every pod would be scraped twice",
    "image: {repository: ''}": "image.repository: no image is named: .* such as registry.example.com/weir",
}


def flat(caught):
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize("values", BY_SCHEMA)
def test_schema_rejects_the_value_and_names_it(values):
    with pytest.raises(helm.HelmValuesError) as caught:
        render(values)
    assert re.search(BY_SCHEMA[values], flat(caught)), flat(caught)
    assert len(str(caught.value)) < 1500, "the message is too long to read"


@pytest.mark.parametrize("values", BY_TEMPLATE)
def test_templates_reject_the_combination_with_what_to_set(values):
    with pytest.raises(helm.HelmRenderError) as caught:
        render(values)
    assert re.search(BY_TEMPLATE[values], flat(caught)), flat(caught)


def test_longer_grace_period_than_needed_is_kept():
    spec = render("terminationGracePeriodSeconds: 300")["Deployment", "hello-weir"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 300


@pytest.mark.parametrize("values, expected", [
    ("{}", 30),
    ("sidecar: {native: false}", 20),
    ("{mode: proxy, config: {upstream: 'a:80'}}", 30),
    ("{mode: proxy, config: {upstream: 'a:80', drain: {delay: 1500ms, timeout: 1m}}}", 67),
    ("{mode: proxy, config: {upstream: 'a:80'}, shutdown: {delaySeconds: 15}}", 40),
    ("shutdown: {applicationSeconds: 60}", 80),
    ("{config: {drain: {timeout: '${T}'}}, terminationGracePeriodSeconds: 90}", 90),
])
def test_grace_period_is_the_sum_of_the_steps(values, expected):
    spec = render(values)["Deployment", "hello-weir"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == expected
