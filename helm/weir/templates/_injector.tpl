{{/* The policies of the mode `injector`. Both have the same variables, so that what one cannot add is what the other rejects. */}}

{{/* Before the name of labels and annotations of pods and namespaces. */}}
{{- define "weir.domain" -}}weir.dev{{- end -}}

{{/* Pods that the policies are about, in namespaces that allow it. */}}
{{- define "weir.injectorMatch" -}}
# Both have to agree: who may label a namespace decides where pods can get the sidecar at all.
namespaceSelector:
  matchLabels:
    {{ include "weir.domain" . }}/injection: enabled
objectSelector:
  matchLabels:
    {{ include "weir.domain" . }}/inject: "true"
resourceRules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE]
    resources: [pods]
{{- end -}}

{{/* Where the parameters are. Without them no pod of a labelled namespace starts unlimited. */}}
{{- define "weir.injectorParameters" -}}
name: {{ include "weir.fullname" . }}
namespace: {{ .Release.Namespace }}
parameterNotFoundAction: Deny
{{- end -}}

{{/* What both policies know about a pod. `problem` is empty if the sidecar can be added, and else what to do. */}}
{{- define "weir.injectorVariables" -}}
{{- $domain := include "weir.domain" . -}}
- name: containers
  expression: "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
- name: isInjected
  expression: variables.containers.exists(c, c.name == "weir")
- name: annotations
  expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
- name: image
  expression: 'has(params.data) && "image" in params.data ? params.data.image : ""'
- name: configMap
  expression: >-
    "{{ $domain }}/config-map" in variables.annotations ? variables.annotations["{{ $domain }}/config-map"]
    : has(params.data) && "configMap" in params.data ? params.data.configMap : ""
# The port of Weir's listener, as text; ${WEIR_PORT} in the configuration.
- name: listenerText
  expression: >-
    "{{ $domain }}/listener-port" in variables.annotations ? variables.annotations["{{ $domain }}/listener-port"]
    : has(params.data) && "listenerPort" in params.data ? params.data.listenerPort : "{{ include "weir.listenerPort" . }}"
- name: listener
  expression: 'variables.listenerText.matches("^[1-9][0-9]{0,4}$") ? int(variables.listenerText) : 0'
# Containers of the application with TCP ports.
- name: served
  expression: >-
    object.spec.containers.filter(c, has(c.ports) && c.ports.exists(p, p.protocol == "TCP"))
# The application's port by name or number: of the annotation, the only one, or the one with the name http.
- name: wanted
  expression: >-
    "{{ $domain }}/port" in variables.annotations ? variables.annotations["{{ $domain }}/port"]
    : size(variables.served) == 1 && size(variables.served[0].ports.filter(p, p.protocol == "TCP")) == 1
    ? string(variables.served[0].ports.filter(p, p.protocol == "TCP")[0].containerPort)
    : "http"
- name: owners
  expression: >-
    variables.served.filter(c, c.ports.exists(p, p.protocol == "TCP"
    && (string(p.containerPort) == variables.wanted || has(p.name) && p.name == variables.wanted)))
# Its entry in the list of ports, if a container declares it.
- name: chosen
  expression: >-
    size(variables.owners) == 0 ? [] : variables.owners[0].ports.filter(p, p.protocol == "TCP"
    && (string(p.containerPort) == variables.wanted || has(p.name) && p.name == variables.wanted))
- name: port
  expression: >-
    size(variables.chosen) > 0 ? int(variables.chosen[0].containerPort)
    : variables.wanted.matches("^[1-9][0-9]{0,4}$") ? int(variables.wanted) : 0
# Entries that give this port a port of the node, at which clients would reach the application past Weir.
- name: published
  expression: >-
    size(variables.owners) == 0 ? [] : variables.owners[0].ports.filter(p, p.protocol == "TCP"
    && int(p.containerPort) == variables.port && has(p.hostPort) && int(p.hostPort) > 0)
# Weir takes it over, so that a Service with this target port reaches Weir.
- name: portName
  expression: 'size(variables.chosen) > 0 && has(variables.chosen[0].name) ? variables.chosen[0].name : "http"'
# Ports that Weir binds in the network of the pod.
- name: reserved
  expression: "[variables.listener{{ range include "weir.injectorReserved" . | fromYamlArray }}, {{ . }}{{ end }}]"
- name: taken
  expression: >-
    variables.containers.filter(c, c.name != "weir" && has(c.ports)
    && c.ports.exists(p, p.protocol == "TCP" && int(p.containerPort) in variables.reserved))
- name: problem
  expression: >-
    has(object.spec.hostNetwork) && object.spec.hostNetwork
    ? "hostNetwork: Weir would bind the ports of the node: remove the label {{ $domain }}/inject and add Weir to the manifest with free ports"
    : has(object.spec.os) && object.spec.os.name == "windows"
    || has(object.spec.nodeSelector) && "kubernetes.io/os" in object.spec.nodeSelector && object.spec.nodeSelector["kubernetes.io/os"] == "windows"
    ? "the pod runs on Windows, and the image of Weir is for Linux: remove the label {{ $domain }}/inject"
    : has(object.spec.volumes) && object.spec.volumes.exists(v, v.name == "weir-config")
    ? "the sidecar needs the name of a volume of the pod: rename it: weir-config"
    : variables.image == ""
    ? "the ConfigMap {{ include "weir.fullname" . }} has no image: set its key image"
    : variables.configMap == ""
    ? "no ConfigMap with the configuration: set the annotation {{ $domain }}/config-map, or configMap in the ConfigMap {{ include "weir.fullname" . }}"
    : variables.listener < 1 || variables.listener > 65535
    ? "port of Weir's listener: not a number from 1 to 65535: " + variables.listenerText
    : size(variables.owners) > 1 || size(variables.chosen) > 0 && has(variables.chosen[0].name) && variables.containers.exists(c,
    c.name != variables.owners[0].name && has(c.ports) && c.ports.exists(p, has(p.name) && p.name == variables.portName))
    ? "several containers have the same port: set the annotation {{ $domain }}/port to the number of the application's, and rename the others: "
    + variables.portName
    : size(variables.chosen) == 0 && !("{{ $domain }}/port" in variables.annotations)
    ? (size(variables.served) == 0
    ? "no container declares a TCP port: set the annotation {{ $domain }}/port to the port of the application"
    : "several ports, and none has the name http: set the annotation {{ $domain }}/port to one of: " + variables.served.map(c,
    c.name + " " + c.ports.filter(p, p.protocol == "TCP").map(p, string(p.containerPort)).join(" ")).join(", "))
    : variables.port < 1 || variables.port > 65535
    ? "annotation {{ $domain }}/port: neither the name of a port nor a number from 1 to 65535: " + variables.wanted
    : variables.port == variables.listener
    ? "the application's port is also that of Weir's listener: set the annotation {{ $domain }}/listener-port to a free port: " + string(variables.port)
    : size(variables.taken) > 0 || variables.port in variables.reserved
    ? "a container uses a port of Weir, which are " + variables.reserved.map(p, string(p)).join(", ") + ": move it: "
    + (size(variables.taken) > 0 ? variables.taken[0].name : string(variables.port))
    : size(variables.published) > 1 || variables.containers.exists(c, (size(variables.owners) == 0 || c.name != variables.owners[0].name)
    && has(c.ports) && c.ports.exists(p, p.protocol == "TCP" && int(p.containerPort) == variables.port && has(p.hostPort) && int(p.hostPort) > 0))
    ? "several ports of the node lead to the application's port, and Weir takes over one: remove hostPort from the others: "
    + string(variables.port)
    : variables.portName == "probes"
    ? "the application's port has the name of another port of Weir: rename it: probes"
    : ""
{{- end -}}

{{/* What only the patch needs: where containers are in their list. */}}
{{- define "weir.injectorPaths" -}}
- name: names
  expression: object.spec.containers.map(c, c.name)
- name: owner
  expression: '"/spec/containers/" + string(variables.names.indexOf(variables.owners[0].name))'
# The port of Weir's listener, after its container has been added.
- name: sidecarPort
  expression: >-
    "/spec/initContainers/" + string(has(object.spec.initContainers) ? size(object.spec.initContainers) : 0) + "/ports/0"
{{- end -}}

{{/* Numbers of Weir's ports besides that of the listener. */}}
{{- define "weir.injectorReserved" -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- $ports := list (int (include "weir.probesPort" .)) -}}
{{- with include "weir.portOf" (dig "admin" "address" "" $config) -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- $ports | uniq | toYaml -}}
{{- end -}}

{{/* Weir's container as an expression: that of the other modes, with what depends on the pod. */}}
{{- define "weir.injectorContainer" -}}
{{- $container := include "weir.container" . | fromYaml -}}
{{- $_ := set $container "image" (dict "$cel" "variables.image") -}}
{{- $first := first $container.ports -}}
{{- $_ := set $first "name" (dict "$cel" "variables.portName") -}}
{{- $_ := set $first "containerPort" (dict "$cel" "variables.listener") -}}
{{- $env := list
  (dict "name" "WEIR_PORT" "value" (dict "$cel" "string(variables.listener)"))
  (dict "name" "APP_PORT" "value" (dict "$cel" "string(variables.port)")) -}}
{{- $_ := set $container "env" (concat $env (default list $container.env)) -}}
{{- include "weir.cel" (list "Object.spec.initContainers" $container) -}}
{{- end -}}

{{/* Operations that add one item to a list of the pod, which may be missing. The argument is a list of its name and the expression. */}}
{{- define "weir.injectorAdd" -}}
{{- $name := index . 0 -}}
(has(object.spec.{{ $name }}) ? [] : [JSONPatch{op: "add", path: "/spec/{{ $name }}", value: []}])
+ [JSONPatch{op: "add", path: "/spec/{{ $name }}/-", value: {{ index . 1 }}}]
{{- end -}}

{{/* The patch: an expression for a list of operations. */}}
{{- define "weir.injectorPatch" -}}
{{- $grace := include "weir.gracePeriod" . -}}
variables.problem != "" ? [] :
{{ include "weir.injectorAdd" (list "initContainers" (include "weir.injectorContainer" .)) }}
{{- $config := dict "name" "weir-config" "configMap" (dict "name" (dict "$cel" "variables.configMap")) }}
+ {{ include "weir.injectorAdd" (list "volumes" (include "weir.cel" (list "Object.spec.volumes" $config))) }}
{{- range .Values.extraVolumes }}
+ [JSONPatch{op: "add", path: "/spec/volumes/-", value: {{ include "weir.cel" (list "Object.spec.volumes" .) }}}]
{{- end }}
{{- with .Values.imagePullSecrets }}
+ (has(object.spec.imagePullSecrets) ? [] : [JSONPatch{op: "add", path: "/spec/imagePullSecrets", value: []}])
{{- range . }}
+ (has(object.spec.imagePullSecrets) && object.spec.imagePullSecrets.exists(s, s.name == {{ toJson .name }}) ? [] :
  [JSONPatch{op: "add", path: "/spec/imagePullSecrets/-", value: {{ include "weir.cel" (list "Object.spec.imagePullSecrets" .) }}}])
{{- end }}
{{- end }}
// The name of the port is Weir's now. Probes and hooks of the container still reach the application, by its number.
+ (size(variables.chosen) == 0 || !has(variables.chosen[0].name) ? [] :
  [JSONPatch{op: "remove", path: variables.owner + "/ports/" + string(variables.owners[0].ports.map(p, has(p.name) ? p.name : "").indexOf(variables.portName)) + "/name"}]
  + ["startupProbe", "readinessProbe", "livenessProbe"].filter(probe, probe in variables.owners[0]
      && "httpGet" in variables.owners[0][probe] && variables.owners[0][probe].httpGet.port == dyn(variables.portName)).map(probe,
    JSONPatch{op: "replace", path: variables.owner + "/" + probe + "/httpGet/port", value: variables.port})
  + ["startupProbe", "readinessProbe", "livenessProbe"].filter(probe, probe in variables.owners[0]
      && "tcpSocket" in variables.owners[0][probe] && variables.owners[0][probe].tcpSocket.port == dyn(variables.portName)).map(probe,
    JSONPatch{op: "replace", path: variables.owner + "/" + probe + "/tcpSocket/port", value: variables.port})
  + (!has(variables.owners[0].lifecycle) ? [] : ["postStart", "preStop"].filter(hook, hook in variables.owners[0].lifecycle
      && "httpGet" in variables.owners[0].lifecycle[hook] && variables.owners[0].lifecycle[hook].httpGet.port == dyn(variables.portName)).map(hook,
    JSONPatch{op: "replace", path: variables.owner + "/lifecycle/" + hook + "/httpGet/port", value: variables.port})))
// So is its port of the node, which two containers cannot have.
+ (size(variables.published) == 0 ? [] : ["hostPort", "hostIP"].filter(field, field in variables.published[0]).map(field,
    JSONPatch{op: "remove", path: variables.owner + "/ports/" + string(variables.owners[0].ports.map(p, p == variables.published[0] ? "published" : "").indexOf("published")) + "/" + field})
  + [JSONPatch{op: "add", path: variables.sidecarPort + "/hostPort", value: int(variables.published[0].hostPort)}]
  + (!has(variables.published[0].hostIP) ? [] : [JSONPatch{op: "add", path: variables.sidecarPort + "/hostIP", value: variables.published[0].hostIP}]))
{{- with int .Values.shutdown.delaySeconds }}
// The kubelet stops the application before its sidecars. Without this pause Weir would respond with 503 to requests that
// arrive until the endpoint is removed everywhere.
+ object.spec.containers.filter(c, !has(c.lifecycle)).map(c,
  JSONPatch{op: "add", path: "/spec/containers/" + string(variables.names.indexOf(c.name)) + "/lifecycle",
    value: Object.spec.containers.lifecycle{preStop: Object.spec.containers.lifecycle.preStop{
      sleep: Object.spec.containers.lifecycle.preStop.sleep{seconds: {{ . }}}}}})
+ object.spec.containers.filter(c, has(c.lifecycle) && !has(c.lifecycle.preStop)).map(c,
  JSONPatch{op: "add", path: "/spec/containers/" + string(variables.names.indexOf(c.name)) + "/lifecycle/preStop",
    value: Object.spec.containers.lifecycle.preStop{sleep: Object.spec.containers.lifecycle.preStop.sleep{seconds: {{ . }}}}})
{{- end }}
// Both stop within this period: the application, and then Weir. A longer one stays.
+ (has(object.spec.terminationGracePeriodSeconds) && int(object.spec.terminationGracePeriodSeconds) >= {{ $grace }} ? [] :
  [JSONPatch{op: "add", path: "/spec/terminationGracePeriodSeconds", value: {{ $grace }}}])
{{- end -}}

{{/* Fails for values without effect in the mode `injector`. */}}
{{- define "weir.validateInjector" -}}
{{- if or .Values.configText .Values.existingConfigMap (omit .Values.config "listeners" "admin" "drain") -}}
{{- fail "config: the mode injector reads only listeners, admin and drain of it, for ports and times; rules are in the ConfigMap of each namespace, named by injector.configMap" -}}
{{- end -}}
{{- if not .Values.sidecar.native -}}
{{- fail "sidecar.native: the mode injector adds native sidecars only, remove it" -}}
{{- end -}}
{{- range $name, $enabled := dict "autoscaling" .Values.autoscaling.enabled "podDisruptionBudget" .Values.podDisruptionBudget.enabled
  "networkPolicy" .Values.networkPolicy.enabled "metrics.podMonitor" .Values.metrics.podMonitor.enabled
  "metrics.serviceMonitor" .Values.metrics.serviceMonitor.enabled -}}
{{- if $enabled -}}
{{- fail (printf "%s: the mode injector has no pods of its own, whose object it could be, remove it" $name) -}}
{{- end -}}
{{- end -}}
{{- if gt (len (include "weir.listenerPorts" . | fromYaml).ports) 1 -}}
{{- fail "config.listeners: the mode injector adds a sidecar with one listener" -}}
{{- end -}}
{{- end -}}
