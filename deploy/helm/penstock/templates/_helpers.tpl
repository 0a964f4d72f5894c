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

# How the NATS chart names what it makes.
{{- define "penstock.nats" -}}
{{- if contains "nats" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-nats" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "penstock.natsServers" -}}
app.kubernetes.io/name: nats
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: nats
{{- end }}

{{- define "penstock.servers" -}}
{{- if .Values.nats.enabled }}nats://{{ include "penstock.nats" . }}:4222{{ else }}{{ required "cluster.servers: the URLs of the NATS servers" .Values.cluster.servers }}{{ end }}
{{- end }}

{{- define "penstock.monitors" -}}
{{- if .Values.nats.enabled -}}
{{- $urls := list -}}
{{- range $n := until (int .Values.nats.config.cluster.replicas) -}}
{{- $urls = append $urls (printf "http://%s-%d.%s-headless:8222" (include "penstock.nats" $) $n (include "penstock.nats" $)) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}
{{- .Values.cluster.monitors -}}
{{- end -}}
{{- end }}

{{- define "penstock.natsSecrets" -}}
{{- if .Values.cluster.enabled -}}
{{- with .Values.cluster.credentialsSecret }}
credentials: {{ . }}
{{- end }}
{{- with .Values.cluster.tlsSecret }}
tls: {{ . }}
{{- end }}
{{- end }}
{{- end }}
