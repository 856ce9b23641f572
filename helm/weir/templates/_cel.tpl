{{/* Objects as expressions of CEL, in the typed form that Kubernetes checks against the schema of the object. */}}

{{/* An expression for a value. The argument is a list of its type, such as Object.spec.initContainers, and the value. A
map with the only key `$cel` is an expression already. */}}
{{- define "weir.cel" -}}
{{- $type := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- if hasKey $value "$cel" -}}
{{- get $value "$cel" -}}
{{- else if include "weir.isCelMap" $type -}}
{{- include "weir.celMap" $value -}}
{{- else -}}
{{ $type }}{
{{- range $name, $field := $value }}
  {{ $name }}: {{ include "weir.cel" (list (printf "%s.%s" $type $name) $field) | nindent 2 | trim }},
{{- end }}
}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- $items := list -}}
{{- range $value -}}
{{- $items = append $items (include "weir.cel" (list $type .)) -}}
{{- end -}}
{{- printf "[%s]" (join ", " $items) -}}
{{- else -}}
{{- toJson $value -}}
{{- end -}}
{{- end -}}

{{/* Whether a type has free keys. */}}
{{- define "weir.isCelMap" -}}
{{- if regexMatch "\\.(requests|limits|matchLabels|annotations|labels|volumeAttributes|options)$" . -}}true{{- end -}}
{{- end -}}

{{/* Values as text: a map of CEL in Kubernetes has values of one type, and a quantity may be text. */}}
{{- define "weir.celMap" -}}
{{- $entries := list -}}
{{- range $name, $entry := . -}}
{{- $entries = append $entries (printf "%s: %s" (toJson $name) (toString $entry | toJson)) -}}
{{- end -}}
{{- printf "{%s}" (join ", " $entries) -}}
{{- end -}}
