{{/* Prefix of all names. A node's name, <prefix>-<region>-<ordinal>, is in its certificate and has at most 63 characters. */}}
{{- define "rhumb.name" -}}
{{- default (ternary .Release.Name (printf "%s-rhumb" .Release.Name) (contains "rhumb" .Release.Name)) .Values.nameOverride | trunc 19 | trimSuffix "-" -}}
{{- end -}}

{{- define "rhumb.labels" -}}
app.kubernetes.io/name: rhumb
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Labels that select the pods of the installation. They never change, because a StatefulSet's selector cannot. */}}
{{- define "rhumb.selector" -}}
app.kubernetes.io/name: rhumb
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rhumb.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* DNS domain of the pods, which the headless service makes. */}}
{{- define "rhumb.domain" -}}
{{ include "rhumb.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* The first two pods of each region, and the nodes outside. A node that finds itself in the list ignores itself. */}}
{{- define "rhumb.join" -}}
{{- $hosts := list -}}
{{- $root := . -}}
{{- range .Values.regions -}}
{{- $region := . -}}
{{- range $i := until (min 2 (int .replicas) | int) -}}
{{- $hosts = append $hosts (printf "%s-%s-%d.%s:%d" (include "rhumb.name" $root) $region.name $i (include "rhumb.domain" $root) (int $root.Values.ports.main)) -}}
{{- end -}}
{{- end -}}
{{- concat $hosts .Values.join | toJson -}}
{{- end -}}

{{/* Faults that the schema cannot express. */}}
{{- define "rhumb.validate" -}}
{{- $names := list -}}
{{- range .Values.regions -}}
{{- if has .name $names -}}
{{- fail (printf "regions: %s stands twice" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $ports := values .Values.ports -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "ports: two ports are the same" -}}
{{- end -}}
{{- if and (ne .Values.identity.mode "tokens") (le (int (trimSuffix "h" .Values.identity.duration)) (int (trimSuffix "h" .Values.identity.renewBefore))) -}}
{{- fail (printf "identity: renewBefore %s is not less than duration %s" .Values.identity.renewBefore .Values.identity.duration) -}}
{{- end -}}
{{- end -}}
