{{/* Helpers that read Weir's configuration. Ports, times and the checksum follow it, because a second copy in the
values could differ from what Weir uses. They are included in the context of this chart. */}}

{{/* Applies the second map to the first one, in place: maps are merged, null removes, other values replace. */}}
{{- define "weir.overlay" -}}
{{- $target := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $target $key -}}
{{- else if kindIs "map" $value -}}
{{- if not (kindIs "map" (get $target $key)) -}}
{{- $_ := set $target $key dict -}}
{{- end -}}
{{- include "weir.overlay" (list (get $target $key) $value) -}}
{{- else -}}
{{- $_ := set $target $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of the default configuration. */}}
{{- define "weir.defaultsName" -}}
{{- get (dict "sidecar" "sidecar" "library" "sidecar" "injector" "sidecar" "proxy" "proxy" "rls" "rls") .Values.mode -}}
{{- end -}}

{{/* Whether Weir is a sidecar: the application is in the same pod. */}}
{{- define "weir.isSidecar" -}}
{{- if has .Values.mode (list "sidecar" "library" "injector") -}}true{{- end -}}
{{- end -}}

{{/* Whether the kubelet stops Weir after the application. */}}
{{- define "weir.isNative" -}}
{{- if and (include "weir.isSidecar" .) .Values.sidecar.native -}}true{{- end -}}
{{- end -}}

{{/* Whether the configuration is in the values. */}}
{{- define "weir.isConfigKnown" -}}
{{- if not .Values.existingConfigMap -}}true{{- end -}}
{{- end -}}

{{/* The default configuration, as far as it fits the values. */}}
{{- define "weir.defaults" -}}
{{- $values := .Values.config -}}
{{- $defaults := .Files.Get (printf "files/config/%s.yaml" (include "weir.defaultsName" .)) | fromYaml -}}
{{- if not (include "weir.isNative" .) -}}
{{- $_ := set $defaults.drain "delay" (printf "%ds" (int .Values.shutdown.delaySeconds)) -}}
{{- end -}}
{{- if $values.upstreams -}}
{{- $_ := unset $defaults "upstream" -}}
{{- end -}}
{{- if $values.config -}}
{{/* The rest comes from a configuration server, and a key may be in one of the two only. */ -}}
{{- range list "upstream" "rules" "rls" -}}
{{- $_ := unset $defaults . -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "rls") (or .Values.rls.descriptors .Values.rls.existingConfigMap) -}}
{{- $_ := unset $defaults "rules" -}}
{{- $_ := set $defaults.rls "config" (dict "directory" "/etc/ratelimit") -}}
{{- end -}}
{{- toYaml $defaults -}}
{{- end -}}

{{/* The configuration as a map: the values over the defaults, or the given text. */}}
{{- define "weir.config" -}}
{{- if .Values.configText -}}
{{- $parsed := .Values.configText | fromYaml -}}
{{- with $parsed.Error -}}
{{- fail (printf "configText: not valid YAML: %s" .) -}}
{{- end -}}
{{- toYaml $parsed -}}
{{- else -}}
{{- $config := include "weir.defaults" . | fromYaml -}}
{{- include "weir.overlay" (list $config .Values.config) -}}
{{- toYaml $config -}}
{{- end -}}
{{- end -}}

{{/* The text of the configuration file. */}}
{{- define "weir.configText" -}}
{{- if .Values.configText -}}
{{- .Values.configText -}}
{{- else -}}
{{- include "weir.config" . -}}
{{- end -}}
{{- end -}}

{{/* The configuration, or the default of the mode if it is in an existing ConfigMap. */}}
{{- define "weir.knownConfig" -}}
{{- if include "weir.isConfigKnown" . -}}
{{- include "weir.config" . -}}
{{- else -}}
{{- include "weir.defaults" . -}}
{{- end -}}
{{- end -}}

{{/* Name of the ConfigMap with the key weir.yaml. */}}
{{- define "weir.configMapName" -}}
{{- default (include "weir.fullname" .) .Values.existingConfigMap -}}
{{- end -}}

{{/* Name of the ConfigMap with rules in the format of envoyproxy/ratelimit; empty without such rules. */}}
{{- define "weir.descriptorsName" -}}
{{- if .Values.rls.existingConfigMap -}}
{{- .Values.rls.existingConfigMap -}}
{{- else if .Values.rls.descriptors -}}
{{- printf "%s-descriptors" (include "weir.fullname" . | trunc 51 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Port at the end of an address; empty for a Unix socket and for a variable. */}}
{{- define "weir.portOf" -}}
{{- if not (hasPrefix "unix:" (toString .)) -}}
{{- regexFind ":[0-9]+$" (toString .) | trimPrefix ":" -}}
{{- end -}}
{{- end -}}

{{/* Ports of the listeners as a map with one list. A listener is an address or a map, alone or in a list. */}}
{{- define "weir.listenerPorts" -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- $listeners := $config.listeners -}}
{{- if and $listeners (not (kindIs "slice" $listeners)) -}}
{{- $listeners = list $listeners -}}
{{- end -}}
{{- $found := list -}}
{{- range $listeners -}}
{{- $address := . -}}
{{- if kindIs "map" . -}}
{{- $address = .address -}}
{{- end -}}
{{- with include "weir.portOf" $address -}}
{{- $found = append $found (int .) -}}
{{- end -}}
{{- end -}}
{{- if .Values.ports.http -}}
{{- $found = prepend (rest $found) (int .Values.ports.http) -}}
{{- else if and $listeners (not $found) -}}
{{- fail "config.listeners: no address with a port that the chart can read, set ports.http" -}}
{{- end -}}
{{- dict "ports" $found | toYaml -}}
{{- end -}}

{{/* Port of the first listener; empty without listeners. */}}
{{- define "weir.listenerPort" -}}
{{- $listeners := include "weir.listenerPorts" . | fromYaml -}}
{{- with first $listeners.ports -}}
{{- int . -}}
{{- end -}}
{{- end -}}

{{/* Scheme of the first listener, http or https; http for a configuration that the chart cannot read. */}}
{{- define "weir.listenerScheme" -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- $first := $config.listeners -}}
{{- if kindIs "slice" $first -}}
{{- $first = first $first -}}
{{- end -}}
{{- if and (kindIs "map" $first) (dig "tls" "" $first) -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{/* Port of the rate limit service; empty without one. */}}
{{- define "weir.grpcPort" -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- if .Values.ports.grpc -}}
{{- int .Values.ports.grpc -}}
{{- else if kindIs "map" $config.rls -}}
{{- with $config.rls.address -}}
{{- include "weir.portOf" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* HTTP port of the rate limit service; empty without one. */}}
{{- define "weir.rlsHttpPort" -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- if kindIs "map" $config.rls -}}
{{- with $config.rls.http -}}
{{- include "weir.portOf" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Port for probes and metrics: of `admin.probes`, or of an admin port that the kubelet can reach. */}}
{{- define "weir.probesPort" -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- $admin := default dict $config.admin -}}
{{- $port := "" -}}
{{- if and $admin.token (not $admin.probes) -}}
{{- fail "config.admin.probes: the kubelet and Prometheus have no config.admin.token, and would get 401, set it to \"[::]:PORT\"" -}}
{{- end -}}
{{- if .Values.ports.probes -}}
{{- $port = int .Values.ports.probes -}}
{{- else if $admin.probes -}}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" (toString $admin.probes) -}}
{{- fail (printf "config.admin.probes: %s is on loopback, where the kubelet cannot reach it, set \"[::]:PORT\"" $admin.probes) -}}
{{- end -}}
{{- $port = include "weir.portOf" $admin.probes -}}
{{- else if and $admin.address (not (regexMatch "^(127\\.|localhost:|\\[::1\\])" (toString $admin.address))) -}}
{{- $port = include "weir.portOf" $admin.address -}}
{{- end -}}
{{- if not $port -}}
{{- fail "config.admin.probes: no address with a port for the kubelet and Prometheus, set it to \"[::]:PORT\", or set ports.probes" -}}
{{- end -}}
{{- $port -}}
{{- end -}}

{{/* All ports of Weir's container as a map with one list of names and numbers. */}}
{{- define "weir.ports" -}}
{{- $ports := list -}}
{{- $listeners := include "weir.listenerPorts" . | fromYaml -}}
{{- range $index, $port := $listeners.ports -}}
{{- $ports = append $ports (dict "name" (ternary "http" (printf "http-%d" (add1 $index)) (eq $index 0)) "containerPort" (int $port)) -}}
{{- end -}}
{{- with include "weir.grpcPort" . -}}
{{- $ports = append $ports (dict "name" "grpc" "containerPort" (int .)) -}}
{{- end -}}
{{- with include "weir.rlsHttpPort" . -}}
{{- $ports = append $ports (dict "name" "rls-http" "containerPort" (int .)) -}}
{{- end -}}
{{- $ports = append $ports (dict "name" "probes" "containerPort" (int (include "weir.probesPort" .))) -}}
{{- dict "ports" $ports | toYaml -}}
{{- end -}}

{{/* Whole seconds of a duration, rounded up. The argument is a list of its name and its text. */}}
{{- define "weir.seconds" -}}
{{- $text := toString (index . 1) | trim -}}
{{- $units := dict "s" 1 "m" 60 "min" 60 "h" 3600 "d" 86400 -}}
{{- $unit := regexFind "[a-z]+$" $text -}}
{{- $count := regexFind "^[0-9]+" $text -}}
{{- if and $count (eq $unit "ms") -}}
{{- div (add (int64 $count) 999) 1000 -}}
{{- else if and $count (hasKey $units $unit) -}}
{{- mul (int64 $count) (get $units $unit) -}}
{{- else -}}
{{- fail (printf "%s: the chart cannot read the duration %q, set terminationGracePeriodSeconds" (index . 0) $text) -}}
{{- end -}}
{{- end -}}

{{/* Grace period of the pod: the given one if it covers the drain, or else the sum of all steps and 5 s to exit. */}}
{{- define "weir.gracePeriod" -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- $config := include "weir.knownConfig" . | fromYaml -}}
{{- $drain := default dict $config.drain -}}
{{- $delay := toString (default "0s" $drain.delay) -}}
{{- $timeout := toString (default "20s" $drain.timeout) -}}
{{- if and $given (or (contains "$" $delay) (contains "$" $timeout)) -}}
{{- int $given -}}
{{- else -}}
{{- $weir := add (include "weir.seconds" (list "config.drain.delay" $delay)) (include "weir.seconds" (list "config.drain.timeout" $timeout)) -}}
{{- $pause := int .Values.shutdown.delaySeconds -}}
{{- $application := add $pause (int .Values.shutdown.applicationSeconds) -}}
{{- $least := add $weir 5 -}}
{{- $default := $least -}}
{{- if include "weir.isNative" . -}}
{{- $least = add $pause $weir 5 -}}
{{- $default = add $application $weir 5 -}}
{{- else if include "weir.isSidecar" . -}}
{{- $default = add (max $application $weir) 5 -}}
{{- end -}}
{{- if not $given -}}
{{- $default -}}
{{- else if lt (int $given) (int $least) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is less than the %d seconds of shutdown.delaySeconds, drain.delay and drain.timeout and 5 s to exit" (int $given) (int $least)) -}}
{{- else -}}
{{- int $given -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Data of the ConfigMap with rules in the format of envoyproxy/ratelimit. */}}
{{- define "weir.descriptorFiles" -}}
{{- range $name, $content := .Values.rls.descriptors }}
{{ $name }}: |
  {{- ternary $content (toYaml $content) (kindIs "string" $content) | nindent 2 }}
{{- end }}
{{- end -}}
