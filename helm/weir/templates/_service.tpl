{{/* Ports of the Services. Target ports are numbers, because before Kubernetes 1.32 a Service cannot resolve the named
port of a native sidecar. */}}

{{- define "weir.servicePorts" -}}
{{- $service := .Values.service -}}
{{- $isRls := eq .Values.mode "rls" -}}
{{- if not $isRls -}}
{{- $scheme := include "weir.listenerScheme" . -}}
- name: {{ $scheme }}
  port: {{ default (ternary 443 80 (eq $scheme "https")) $service.port }}
  targetPort: {{ include "weir.listenerPort" . }}
  {{- with $service.appProtocol }}
  appProtocol: {{ . }}
  {{- end }}
  {{- with $service.nodePort }}
  nodePort: {{ . }}
  {{- end }}
{{ end -}}
{{- with include "weir.grpcPort" . -}}
- name: grpc
  port: {{ ternary (default 8081 $service.port) 8081 $isRls }}
  targetPort: {{ . }}
  appProtocol: {{ ternary (default "kubernetes.io/h2c" $service.appProtocol) "kubernetes.io/h2c" $isRls }}
  {{- if and $isRls $service.nodePort }}
  nodePort: {{ $service.nodePort }}
  {{- end }}
{{ end -}}
{{- with include "weir.rlsHttpPort" . -}}
- name: rls-http
  port: 8080
  targetPort: {{ . }}
{{ end -}}
{{- end -}}

{{/* A headless Service forwards nothing, so its ports are those of the pods. */}}
{{- define "weir.headlessPorts" -}}
{{- $ports := include "weir.ports" . | fromYaml -}}
{{- range $ports.ports }}
- name: {{ ternary (include "weir.listenerScheme" $) .name (eq .name "http") }}
  port: {{ .containerPort }}
  targetPort: {{ .containerPort }}
  {{- if eq .name "grpc" }}
  appProtocol: kubernetes.io/h2c
  {{- end }}
{{- end }}
{{- end -}}

{{/* Settings of a scrape, from the values of a monitor. */}}
{{- define "weir.scrape" -}}
interval: {{ .interval }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
