{{/* The pod of this chart's own Deployment. */}}

{{- define "weir.podSpec" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "weir.serviceAccountName" . }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: {{ .Values.automountServiceAccountToken }}
terminationGracePeriodSeconds: {{ include "weir.gracePeriod" . }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.extraInitContainers (include "weir.isNative" .) }}
initContainers:
  {{- with .Values.extraInitContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if include "weir.isNative" . }}
  - {{ include "weir.container" . | indent 4 | trim }}
  {{- end }}
{{- end }}
containers:
  {{- if not (include "weir.isNative" .) }}
  - {{ include "weir.container" . | indent 4 | trim }}
  {{- end }}
  {{- if include "weir.isSidecar" . }}
  {{- $app := deepCopy .Values.app }}
  {{- include "weir.adaptContainers" (list . (list $app)) }}
  - {{ toYaml $app | indent 4 | trim }}
  {{- end }}
  {{- with .Values.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "weir.podVolumes" . | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- $selector := dict "labelSelector" (dict "matchLabels" (include "weir.selectorLabels" . | fromYaml)) }}
  {{- range .Values.topologySpreadConstraints }}
  - {{ merge dict . $selector | toYaml | indent 4 | trim }}
  {{- end }}
{{- end }}
{{- with .Values.extraPodSpec }}
{{ toYaml . }}
{{- end }}
{{- end -}}
