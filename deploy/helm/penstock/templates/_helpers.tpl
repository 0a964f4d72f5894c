{{- define "penstock.name" -}}
{{- if contains "penstock" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-penstock" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "penstock.servers" -}}
{{- if .Values.nats.enabled }}nats://{{ .Release.Name }}-nats:4222{{ else }}{{ required "cluster.servers: the URLs of the NATS servers" .Values.cluster.servers }}{{ end }}
{{- end }}

{{- define "penstock.monitors" -}}
{{- if .Values.nats.enabled -}}
{{- $urls := list -}}
{{- range $n := until (int .Values.nats.config.cluster.replicas) -}}
{{- $urls = append $urls (printf "http://%s-nats-%d.%s-nats-headless:8222" $.Release.Name $n $.Release.Name) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}
{{- .Values.cluster.monitors -}}
{{- end -}}
{{- end }}
