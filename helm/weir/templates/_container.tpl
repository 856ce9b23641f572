{{/* Weir's container, and what it needs in its pod. They are included in the context of this chart. */}}

{{/* Weir's container. In a pod with an application it is a native sidecar, unless sidecar.native is false. */}}
{{- define "weir.container" -}}
name: weir
image: {{ include "weir.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if include "weir.isNative" . }}
restartPolicy: Always
{{- end }}
args:
  - run
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $ports := include "weir.ports" . | fromYaml }}
ports:
  {{- toYaml $ports.ports | nindent 2 }}
{{- $ready := dict "httpGet" (dict "path" "/ready" "port" (int (include "weir.probesPort" .))) }}
{{/* With a native sidecar the application starts only after this succeeds, so /ready does not wait for it. */ -}}
startupProbe:
  {{- merge dict $ready .Values.probes.startup | toYaml | nindent 2 }}
readinessProbe:
  {{- merge dict $ready .Values.probes.readiness | toYaml | nindent 2 }}
{{- with .Values.probes.liveness }}
livenessProbe:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "weir.configMounts" . | nindent 2 }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Mounts directories, not subPaths: a file mounted by subPath is not updated. */}}
{{- define "weir.configMounts" -}}
- name: weir-config
  mountPath: /etc/weir
  readOnly: true
{{- if include "weir.descriptorsName" . }}
- name: weir-descriptors
  mountPath: /etc/ratelimit
  readOnly: true
{{- end }}
{{- end -}}

{{/* Volumes of the pod with the configuration, and those of the values. */}}
{{- define "weir.podVolumes" -}}
- name: weir-config
  configMap:
    name: {{ include "weir.configMapName" . }}
{{- with include "weir.descriptorsName" . }}
- name: weir-descriptors
  configMap:
    name: {{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Prepares the containers of an application for a sidecar, in place: the port `weir` in probes becomes the port of
the listener, and their scheme that of the listener. With a native sidecar, a container without a preStop hook gets the pause until its endpoint is removed:
the kubelet stops it before Weir, which would respond with 503 to requests that still arrive. */}}
{{- define "weir.adaptContainers" -}}
{{- $weir := index . 0 -}}
{{- $port := include "weir.listenerPort" $weir -}}
{{- $scheme := include "weir.listenerScheme" $weir -}}
{{- range $container := index . 1 -}}
{{- range list "startupProbe" "readinessProbe" "livenessProbe" -}}
{{- $probe := get $container . -}}
{{- range list "httpGet" "tcpSocket" -}}
{{- if kindIs "map" $probe -}}
{{- $action := get $probe . -}}
{{- if and (kindIs "map" $action) (eq (toString $action.port) "weir") -}}
{{- $_ := set $action "port" (int $port) -}}
{{- if and (eq . "httpGet") (eq $scheme "https") (not $action.scheme) -}}
{{- $_ := set $action "scheme" "HTTPS" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $weir.Values.shutdown.delaySeconds -}}
{{- $lifecycle := default dict $container.lifecycle -}}
{{- if not $lifecycle.preStop -}}
{{- $_ := set $lifecycle "preStop" (dict "sleep" (dict "seconds" (int $weir.Values.shutdown.delaySeconds))) -}}
{{- $_ := set $container "lifecycle" $lifecycle -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
