{{/* Templates for other charts, which add Weir to their own pods. Each takes the context of the chart that includes it,
`.`, if this chart is its dependency under the name `weir`, or the context of this chart: `.Subcharts.ALIAS`. The
values under the name of the dependency apply, with `mode: library`, and this chart renders the ConfigMap. */}}

{{/* Weir's container as an item of a list: for `initContainers`, or for `containers` with sidecar.native false. */}}
{{- define "weir.sidecar" -}}
{{- $weir := . -}}
{{- if hasKey .Subcharts "weir" -}}
{{- $weir = .Subcharts.weir -}}
{{- end -}}
- {{ include "weir.container" $weir | nindent 2 | trim }}
{{- end -}}

{{/* Items of the pod's `volumes`. */}}
{{- define "weir.volumes" -}}
{{- $weir := . -}}
{{- if hasKey .Subcharts "weir" -}}
{{- $weir = .Subcharts.weir -}}
{{- end -}}
{{- include "weir.podVolumes" $weir -}}
{{- end -}}

{{/* Label of the pods, by which a PodMonitor and a NetworkPolicy of this chart find them. */}}
{{- define "weir.sidecarLabels" -}}
{{- $weir := . -}}
{{- if hasKey .Subcharts "weir" -}}
{{- $weir = .Subcharts.weir -}}
{{- end -}}
weir-sidecar: {{ include "weir.fullname" $weir }}
{{- end -}}

{{/* Annotation of the pods: a change of the keys that need a restart restarts them. */}}
{{- define "weir.sidecarAnnotations" -}}
{{- $weir := . -}}
{{- if hasKey .Subcharts "weir" -}}
{{- $weir = .Subcharts.weir -}}
{{- end -}}
{{- include "weir.podAnnotations" $weir -}}
{{- end -}}

{{/* Port of Weir's listener: the target port of a Service, and the port of the application's probes. */}}
{{- define "weir.port" -}}
{{- $weir := . -}}
{{- if hasKey .Subcharts "weir" -}}
{{- $weir = .Subcharts.weir -}}
{{- end -}}
{{- include "weir.listenerPort" $weir -}}
{{- end -}}

{{/* terminationGracePeriodSeconds of the pod. */}}
{{- define "weir.terminationGracePeriodSeconds" -}}
{{- $weir := . -}}
{{- if hasKey .Subcharts "weir" -}}
{{- $weir = .Subcharts.weir -}}
{{- end -}}
{{- include "weir.gracePeriod" $weir -}}
{{- end -}}

{{/* A whole workload with Weir added: Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or CronJob. The argument is a list of
the context and the name of the template with the workload. */}}
{{- define "weir.inject" -}}
{{- $root := index . 0 -}}
{{- $weir := $root -}}
{{- if hasKey $root.Subcharts "weir" -}}
{{- $weir = $root.Subcharts.weir -}}
{{- end -}}
{{- $name := index . 1 -}}
{{- $workload := include $name $root | fromYaml -}}
{{- with $workload.Error -}}
{{- fail (printf "weir.inject: template %q is not valid YAML: %s" $name .) -}}
{{- end -}}
{{- $spec := default dict $workload.spec -}}
{{- if eq (toString $workload.kind) "CronJob" -}}
{{- $spec = dig "jobTemplate" "spec" dict $spec -}}
{{- end -}}
{{- $template := default dict $spec.template -}}
{{- if not (dig "spec" "containers" list $template) -}}
{{- fail (printf "weir.inject: template %q has no spec.template.spec.containers" $name) -}}
{{- end -}}
{{- include "weir.addSidecar" (list $weir $template) -}}
{{- toYaml $workload -}}
{{- end -}}

{{/* Adds Weir to a pod template, in place. */}}
{{- define "weir.addSidecar" -}}
{{- $weir := index . 0 -}}
{{- $template := index . 1 -}}
{{- $spec := $template.spec -}}
{{- $metadata := default dict $template.metadata -}}
{{- $_ := set $template "metadata" $metadata -}}
{{- $_ := set $metadata "labels" (merge (include "weir.sidecarLabels" $weir | fromYaml) (default dict $metadata.labels)) -}}
{{- $_ := set $metadata "annotations" (merge (default dict $metadata.annotations) (include "weir.podAnnotations" $weir | fromYaml)) -}}
{{- include "weir.adaptContainers" (list $weir $spec.containers) -}}
{{- $container := include "weir.container" $weir | fromYaml -}}
{{- if include "weir.isNative" $weir -}}
{{/* After the other init containers, which may fill volumes that Weir reads. */ -}}
{{- $_ := set $spec "initContainers" (append (default list $spec.initContainers) $container) -}}
{{- else -}}
{{- $_ := set $spec "containers" (prepend $spec.containers $container) -}}
{{- end -}}
{{- $_ := set $spec "volumes" (concat (default list $spec.volumes) (include "weir.podVolumes" $weir | fromYamlArray)) -}}
{{- $grace := int (include "weir.gracePeriod" $weir) -}}
{{- if not $spec.terminationGracePeriodSeconds -}}
{{- $_ := set $spec "terminationGracePeriodSeconds" $grace -}}
{{- else if lt (int $spec.terminationGracePeriodSeconds) $grace -}}
{{- fail (printf "weir.inject: terminationGracePeriodSeconds is %d, less than the %d seconds that the shutdown can take" (int $spec.terminationGracePeriodSeconds) $grace) -}}
{{- end -}}
{{- end -}}
