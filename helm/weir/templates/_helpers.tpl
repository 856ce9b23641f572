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

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
{{/* A label value must not contain the plus sign of a version with build metadata. */ -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Without the versions in `weir.labels`: a new chart version alone would restart the pods and lose their counters. */}}
{{- define "weir.podLabels" -}}
{{- merge (dict) (include "weir.selectorLabels" . | fromYaml) .Values.podLabels .Values.commonLabels | toYaml -}}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Ports are read from the configuration: a second copy in the values could differ from the ports that Weir binds. */}}
{{- define "weir.listenerPort" -}}
{{- regexFind "[0-9]+$" (first .Values.config.listeners).address -}}
{{- end -}}

{{- define "weir.probesPort" -}}
{{- regexFind "[0-9]+$" .Values.config.admin.probes -}}
{{- end -}}

{{- define "weir.container" -}}
name: weir
image: {{ include "weir.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if .Values.sidecar.native }}
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
ports:
  - name: http
    containerPort: {{ include "weir.listenerPort" . }}
  - name: probes
    containerPort: {{ include "weir.probesPort" . }}
{{/* With a native sidecar the application starts only after this succeeds, so /ready does not wait for it. */ -}}
startupProbe:
  httpGet:
    path: /ready
    port: {{ include "weir.probesPort" . }}
  periodSeconds: 1
  failureThreshold: 30
readinessProbe:
  httpGet:
    path: /ready
    port: {{ include "weir.probesPort" . }}
  periodSeconds: 5
{{- /* No livenessProbe: /ready also fails during a drain, when a restart would be wrong. */}}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{/* Mounts the directory, not a subPath: a file mounted by subPath is not updated. */ -}}
  - name: weir-config
    mountPath: /etc/weir
    readOnly: true
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
