{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.fullname" -}}
{{- $name := include "weir.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Full name with a suffix, within the 63 characters of a DNS label. The argument is a list of context and suffix. */}}
{{- define "weir.suffixedName" -}}
{{- $suffix := printf "-%s" (index . 1) -}}
{{- include "weir.fullname" (index . 0) | trunc (sub 63 (len $suffix) | int) | trimSuffix "-" -}}{{- $suffix -}}
{{- end -}}

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the pods that contain Weir: those of this release, or pods of another chart with the sidecar. */}}
{{- define "weir.targetLabels" -}}
{{- if eq .Values.mode "library" -}}
{{- include "weir.sidecarLabels" . -}}
{{- else -}}
{{- include "weir.selectorLabels" . -}}
{{- end -}}
{{- end -}}

{{/* Whether the chart deploys pods with Weir. */}}
{{- define "weir.hasWorkload" -}}
{{- if has .Values.mode (list "sidecar" "proxy" "rls") -}}true{{- end -}}
{{- end -}}

{{- define "weir.component" -}}
{{- get (dict "sidecar" "sidecar" "library" "sidecar" "proxy" "proxy" "rls" "rate-limit-service" "injector" "injector") .Values.mode -}}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/component: {{ include "weir.component" . }}
app.kubernetes.io/part-of: weir
{{/* A label value must not contain the plus sign of a version with build metadata. */ -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object. The argument is a map: context, name, and optionally labels, annotations, and whether it is in no namespace. */}}
{{- define "weir.metadata" -}}
{{- $weir := .context -}}
name: {{ .name }}
{{- if not .isClusterWide }}
namespace: {{ $weir.Release.Namespace }}
{{- end }}
labels:
  {{- include "weir.labels" $weir | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge dict (default dict .annotations) $weir.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Without the versions in `weir.labels`: a new chart version alone would restart the pods and lose their counters. */}}
{{- define "weir.podLabels" -}}
{{- merge (dict) (include "weir.selectorLabels" . | fromYaml) .Values.podLabels .Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Without a checksum of the configuration: Weir applies every change while it runs, and keeps its counters. */}}
{{- define "weir.podAnnotations" -}}
{{- merge (dict) .Values.podAnnotations .Values.commonAnnotations | toYaml -}}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Without a default, because there is no image that every cluster can pull. */}}
{{- define "weir.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository: no image is named: build it, push it to a registry that the cluster can reach, and set its name, such as registry.example.com/weir" -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Smallest number of pods with autoscaling: enabling it removes no pod that `replicaCount` asks for. */}}
{{- define "weir.minReplicas" -}}
{{- max (int .Values.autoscaling.minReplicas) (int .Values.replicaCount) -}}
{{- end -}}

{{/* Fails for a HorizontalPodAutoscaler that Kubernetes rejects, or that never scales. */}}
{{- define "weir.validateAutoscaling" -}}
{{- $min := include "weir.minReplicas" . | int -}}
{{- $max := int .Values.autoscaling.maxReplicas -}}
{{- if gt $min $max -}}
{{- fail (printf "autoscaling.maxReplicas: %d is less than the smallest number of pods %d, the larger of autoscaling.minReplicas and replicaCount" $max $min) -}}
{{- end -}}
{{- if .Values.autoscaling.targetCPUUtilizationPercentage -}}
{{- if not (dig "requests" "cpu" "" .Values.resources) -}}
{{- fail "resources.requests.cpu: autoscaling.targetCPUUtilizationPercentage is a share of it, set it" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether there is a headless Service. */}}
{{- define "weir.isHeadless" -}}
{{- if kindIs "bool" .Values.headlessService.enabled -}}
{{- if .Values.headlessService.enabled -}}true{{- end -}}
{{- else if eq .Values.mode "rls" -}}true
{{- end -}}
{{- end -}}

{{/* Fails for values that exclude each other, with the way out. */}}
{{- define "weir.validate" -}}
{{- if and .Values.existingConfigMap (or .Values.config .Values.configText) -}}
{{- fail "existingConfigMap: the configuration is in that ConfigMap, remove config and configText" -}}
{{- end -}}
{{- if and .Values.configText .Values.config -}}
{{- fail "configText: it is the whole configuration, remove config" -}}
{{- end -}}
{{- if and (ne .Values.mode "rls") (or .Values.rls.descriptors .Values.rls.existingConfigMap) -}}
{{- fail (printf "rls: only the mode rls has these values, mode is %s" .Values.mode) -}}
{{- end -}}
{{- if eq .Values.mode "injector" -}}
{{- include "weir.validateInjector" . -}}
{{- end -}}
{{- if include "weir.isConfigKnown" . -}}
{{- $config := include "weir.config" . | fromYaml -}}
{{- if and (eq .Values.mode "proxy") (not (or $config.upstream $config.upstreams $config.config)) -}}
{{- fail "config.upstream: the mode proxy needs the Service that it protects, such as {address: \"shop.default.svc:80\"}" -}}
{{- end -}}
{{- if and (eq .Values.mode "rls") (not (or $config.rls $config.config)) -}}
{{- fail "config.rls: the mode rls needs this section, at least {address: \"[::]:8081\"}" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "rls") (not (include "weir.grpcPort" .)) -}}
{{- fail "config.rls.address: no port that the chart can read, set ports.grpc" -}}
{{- end -}}
{{- if and (ne .Values.mode "rls") (not (include "weir.listenerPort" .)) -}}
{{- fail (printf "config.listeners: the mode %s needs a listener with a port, or ports.http" .Values.mode) -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- include "weir.validateAutoscaling" . -}}
{{- end -}}
{{- end -}}
