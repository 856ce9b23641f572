{{/* The pod that validates the new configuration before it is applied. */}}

{{- define "weir.checkPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
{{- with .Values.check.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: weir
    image: {{ include "weir.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      - check
      {{- with .Values.check.extraArgs }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      - /etc/weir/weir.yaml
    {{- $env := include "weir.checkEnv" . | fromYaml }}
    {{- with $env.env }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.extraEnvFrom }}
    envFrom:
      {{- range . }}
      - {{ include "weir.optional" . | indent 8 | trim }}
      {{- end }}
    {{- end }}
    {{- with .Values.check.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      {{- include "weir.configMounts" . | nindent 6 }}
      {{- $volumes := include "weir.checkVolumes" . | fromYaml }}
      {{- range .Values.extraVolumeMounts }}
      {{- if has .name $volumes.names }}
      - {{ toYaml . | indent 8 | trim }}
      {{- end }}
      {{- end }}
volumes:
  - name: weir-config
    configMap:
      name: {{ default (include "weir.suffixedName" (list . "check")) .Values.existingConfigMap }}
  {{- if include "weir.descriptorsName" . }}
  - name: weir-descriptors
    configMap:
      name: {{ default (include "weir.suffixedName" (list . "check-descriptors")) .Values.rls.existingConfigMap }}
  {{- end }}
  {{- with $volumes.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Environment variables: those of the check, and the others of Weir's container. */}}
{{- define "weir.checkEnv" -}}
{{- $replaced := list -}}
{{- range .Values.check.env -}}
{{- $replaced = append $replaced .name -}}
{{- end -}}
{{- $env := list -}}
{{- range .Values.extraEnv -}}
{{- if not (has .name $replaced) -}}
{{- $one := deepCopy . -}}
{{- if .valueFrom -}}
{{- $_ := set $one "valueFrom" (include "weir.optional" .valueFrom | fromYaml) -}}
{{- end -}}
{{- $env = append $env $one -}}
{{- end -}}
{{- end -}}
{{- dict "env" (concat $env .Values.check.env) | toYaml -}}
{{- end -}}

{{/* A source of variables or of a volume, whose Secrets and ConfigMaps may be missing: those of the same release do not
exist yet when it is installed. The pod would wait for them until the deadline. Now the check starts, and reports what
the configuration misses. */}}
{{- define "weir.optional" -}}
{{- $source := deepCopy . -}}
{{- range list "secret" "secretRef" "secretKeyRef" "configMap" "configMapRef" "configMapKeyRef" -}}
{{- with get $source . -}}
{{- $_ := set . "optional" true -}}
{{- end -}}
{{- end -}}
{{- with $source.projected -}}
{{- $sources := list -}}
{{- range .sources -}}
{{- $sources = append $sources (include "weir.optional" . | fromYaml) -}}
{{- end -}}
{{- $_ := set . "sources" $sources -}}
{{- end -}}
{{- toYaml $source -}}
{{- end -}}

{{/* Volumes that another pod can mount too. A persistent volume may be bound to the node of a running pod, where this
pod would wait for it. */}}
{{- define "weir.checkVolumes" -}}
{{- $volumes := list -}}
{{- $names := list -}}
{{- range .Values.extraVolumes -}}
{{- if not (or .persistentVolumeClaim .ephemeral) -}}
{{- $volumes = append $volumes (include "weir.optional" . | fromYaml) -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- dict "volumes" $volumes "names" $names | toYaml -}}
{{- end -}}
