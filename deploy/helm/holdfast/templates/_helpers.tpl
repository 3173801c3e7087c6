{{- define "holdfast.name" -}}
{{- printf "%s" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "holdfast.gateway.name" -}}
{{ include "holdfast.name" . }}-agentgateway
{{- end }}

{{- define "holdfast.labels" -}}
app.kubernetes.io/part-of: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "holdfast.gateway.selector" -}}
app.kubernetes.io/name: agentgateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "holdfast.hub.selector" -}}
app.kubernetes.io/name: holdfast-hub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The service account of the hub; empty for the default one of the namespace. */}}
{{- define "holdfast.hub.account" -}}
{{- $account := .Values.hub.serviceAccount }}
{{- $account.name | default ($account.create | ternary (printf "%s-hub" (include "holdfast.name" .)) "") }}
{{- end }}

{{- define "holdfast.hub.url" -}}
http://{{ include "holdfast.name" . }}-hub.{{ .Release.Namespace }}.svc.cluster.local:{{ int .Values.hub.port }}
{{- end }}

{{/* Whether the bridge reads the registry of the hub. That needs a hub, and no other source. */}}
{{- define "holdfast.bridge.fromHub" -}}
{{- if .Values.bridge.fromHub }}
{{- if or (not .Values.hub.enabled) .Values.bridge.targetsUrl }}
{{- fail "bridge.fromHub needs hub.enabled, and no bridge.targetsUrl" }}
{{- end }}
{{- if not (include "holdfast.hub.controlSecret" .) }}
{{- fail "bridge.fromHub needs hub.controlTokenSecret: a secret whose key `control` holds the control token of the hub" }}
{{- end }}yes{{ end }}
{{- end }}

{{/* Whether this chart runs the gateway. */}}
{{- define "holdfast.mode.static" -}}
{{- if and .Values.gateway.enabled (eq .Values.global.agentgateway.mode "static") }}yes{{ end }}
{{- end }}

{{/* Whether this chart gives a controller the resources of a gateway. */}}
{{- define "holdfast.mode.gatewayApi" -}}
{{- if and .Values.gateway.enabled (eq .Values.global.agentgateway.mode "gateway-api") }}yes{{ end }}
{{- end }}

{{/* The pod of `helm test`, which network policies let in. */}}
{{- define "holdfast.test.selector" -}}
app.kubernetes.io/name: holdfast-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Whether the gateway shows the hub its token: only for callers that it let in itself. Others show their own. */}}
{{- define "holdfast.hub.tokenAdded" -}}
{{- $gateway := .Values.global.agentgateway }}
{{- if and .Values.hub.enabled .Values.hub.tokenSecret (or $gateway.extAuth.enabled $gateway.jwt.issuer) }}yes{{ end }}
{{- end }}

{{/* The secret with the token of the control API; empty for none. */}}
{{- define "holdfast.hub.controlSecret" -}}
{{- .Values.hub.controlTokenSecret | default (.Values.bridge.fromHub | ternary .Values.hub.tokenSecret "") }}
{{- end }}

{{/* The reference to a credential that /metrics accepts. */}}
{{- define "holdfast.hub.scrapeCredentials" -}}
{{- if .Values.hub.tokenSecret -}}
{name: {{ .Values.hub.tokenSecret }}, key: token}
{{- else if include "holdfast.hub.controlSecret" . -}}
{name: {{ include "holdfast.hub.controlSecret" . }}, key: control}
{{- else }}
{{- fail "prometheus.podMonitor and .serviceMonitor need a token for the metrics of the hub: set hub.tokenSecret or hub.controlTokenSecret" }}
{{- end }}
{{- end }}

{{/* A duration of the mcp.json in whole seconds, rounded up. A bare number below 1,000 is seconds, else milliseconds. */}}
{{- define "holdfast.seconds" -}}
{{- $text := toString . }}
{{- if contains "${" $text }}
{{- fail (printf "the timeout %s is known to the hub alone: set hub.drainSeconds" $text) }}
{{- end }}
{{- $number := kindIs "string" . | ternary (regexFind "^[0-9]+(\\.[0-9]+)?" $text) . | float64 }}
{{- $unit := regexFind "(ms|s|m|h)$" $text | default (lt $number 1000.0 | ternary "s" "ms") }}
{{- $one := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit }}
{{- ceil (mulf $number $one) | int }}
{{- end }}

{{/* The longest that a call may go without an answer, in seconds: so long an ending hub waits for its calls. */}}
{{- define "holdfast.hub.drain" -}}
{{- if kindIs "invalid" .Values.hub.drainSeconds }}
{{- $most := include "holdfast.seconds" (dig "call" "timeout" "1m" .Values.hub.settings) | int }}
{{- range .Values.targets }}
{{- with .timeout }}{{- $most = max $most (include "holdfast.seconds" . | int) }}{{- end }}
{{- end }}
{{- $most }}
{{- else }}
{{- int .Values.hub.drainSeconds }}
{{- end }}
{{- end }}

{{/* The version without its v. An unknown version is refused here, because the gateway would not start. */}}
{{- define "holdfast.gateway.version" -}}
{{- $version := trimPrefix "v" .Values.global.agentgateway.version }}
{{- if not (or (semverCompare "~0.12.0-0" $version) (semverCompare ">=1.0.0-0" $version)) }}
{{- fail (printf "AgentGateway %s is not supported: known: 0.12, 1.0 to 1.4" $version) }}
{{- end }}
{{- $version }}
{{- end }}

{{- define "holdfast.gateway.image" -}}
{{- $image := .Values.global.agentgateway.image }}
{{- $version := include "holdfast.gateway.version" . }}
{{- $released := hasPrefix "0." $version | ternary $version (printf "v%s" $version) }}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default $released }}{{ end }}
{{- end }}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "holdfast.extAuth.timeout" -}}
{{ .Values.global.agentgateway.extAuth.timeout | default "10s" }}
{{- end }}

{{- define "holdfast.extAuth.protocol" -}}
{{ .Values.global.agentgateway.extAuth.protocol | default "grpc" }}
{{- end }}

{{/* Checked here too, because helm can skip the schema. */}}
{{- define "holdfast.extAuth.outageStatus" -}}
{{- $status := int (.Values.global.agentgateway.extAuth.outageStatus | default 503) }}
{{- if not (or (eq $status 403) (and (ge $status 500) (le $status 599))) }}
{{- fail (printf "global.agentgateway.extAuth.outageStatus cannot be %d: an outage is a refusal" $status) }}
{{- end }}
{{- $status }}
{{- end }}

{{- define "holdfast.extAuth.service" -}}
{{- $auth := .Values.global.agentgateway.extAuth }}
{{- if not $auth.serviceName }}
{{- fail "global.agentgateway.extAuth.serviceName is empty: name the authorization service, or set enabled to false" }}
{{- end }}
{{- $auth.serviceName }}.{{ $auth.serviceNamespace | default .Release.Namespace }}.svc.cluster.local
{{- end }}

{{- define "holdfast.extAuth.host" -}}
{{ include "holdfast.extAuth.service" . }}:{{ int .Values.global.agentgateway.extAuth.port }}
{{- end }}

{{/* The authorization block of one route. It fails closed with all values. */}}
{{- define "holdfast.extAuth.block" -}}
{{- $auth := .Values.global.agentgateway.extAuth }}
extAuthz:
  host: {{ include "holdfast.extAuth.host" . | quote }}
  {{- if eq (include "holdfast.extAuth.outageStatus" .) "403" }}
  failureMode: "deny"
  {{- else }}
  failureMode:
    denyWithStatus: {{ include "holdfast.extAuth.outageStatus" . }}
  {{- end }}
  {{- if semverCompare "<1.0.0-0" (include "holdfast.gateway.version" .) }}
  timeout: {{ include "holdfast.extAuth.timeout" . | quote }}
  {{- else }}
  policies:
    http:
      requestTimeout: {{ include "holdfast.extAuth.timeout" . | quote }}
  {{- end }}
  protocol:
    {{ include "holdfast.extAuth.protocol" . }}: {}
  {{- if int $auth.bodyBytes }}
  includeRequestBody:
    maxRequestBytes: {{ int $auth.bodyBytes }}
    allowPartialMessage: true
    packAsBytes: {{ eq (include "holdfast.extAuth.protocol" .) "grpc" }}
  {{- end }}
{{- end }}

{{/* The user's own routes must not fail open, and must set the timeout in the form of this gateway version. */}}
{{- define "holdfast.routes.check" -}}
{{- $old := semverCompare "<1.0.0-0" (include "holdfast.gateway.version" .) }}
{{- $form := $old | ternary "timeout" "policies.http.requestTimeout" }}
{{- range $route := .Values.global.agentgateway.routes }}
{{- $auth := dig "policies" "extAuthz" dict $route }}
{{- range $block := $auth.conditional | default (list $auth) }}
{{- if $block }}
{{- $mode := $block.failureMode | default "deny" | toJson }}
{{- if not (regexMatch "^(\"deny\"|\\{\"denyWithStatus\":[45][0-9]{2}\\})$" $mode) }}
{{- fail (printf "global.agentgateway.routes: %s fails open: its failureMode is %s" $route.name $mode) }}
{{- end }}
{{- $new := dig "policies" "http" "requestTimeout" "" $block }}
{{- if not (and (eq (empty $block.timeout) (not $old)) (eq (empty $new) $old)) }}
{{- fail (printf "global.agentgateway.routes: %s needs its authorization timeout as %s, and in no other form" $route.name $form) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The arguments of the bridge, with the same authorization for its routes. */}}
{{- define "holdfast.bridge.args" -}}
{{- $gateway := .Values.global.agentgateway }}
- gateway
- bridge
- --gateway-version={{ include "holdfast.gateway.version" . }}
- --bootstrap=/etc/holdfast/bootstrap/config.yaml
- --output=/etc/agentgateway/config.yaml
{{- if $gateway.extAuth.enabled }}
- --ext-auth-host={{ include "holdfast.extAuth.host" . }}
- --ext-auth-timeout={{ include "holdfast.extAuth.timeout" . }}
- --ext-auth-protocol={{ include "holdfast.extAuth.protocol" . }}
- --ext-auth-body-bytes={{ int $gateway.extAuth.bodyBytes }}
- --outage-status={{ include "holdfast.extAuth.outageStatus" . }}
{{- end }}
{{- if $gateway.sessionKeySecret }}
- --session-key-file=/etc/holdfast/session/session-key
{{- end }}
{{- end }}

{{- define "holdfast.pod.security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "holdfast.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The resource name for the id of a target, unique for each id. */}}
{{- define "holdfast.target.name" -}}
{{- $clean := regexReplaceAll "[^a-z0-9-]+" (lower .) "-" | trunc 30 | trimSuffix "-" }}
{{- eq $clean . | ternary $clean (printf "%s-%s" $clean (sha256sum . | trunc 6)) }}
{{- end }}

{{/* A group of alerts from deploy/prometheus/alerts.yaml, for the namespace of this release, with `for` and
     the address of the runbooks from the values. */}}
{{- define "holdfast.rules" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (printf "rules/%s.yaml" (index . 1)) -}}
{{- $text = regexReplaceAll "(holdfast_[a-z_]+)[{]" $text (printf "${1}{namespace=%q," $root.Release.Namespace) -}}
{{- $text = regexReplaceAll "(?m)^#.*\n" $text "" -}}
{{- $text = regexReplaceAll "for: 5m" $text (printf "for: %s" $root.Values.prometheus.for) -}}
{{- regexReplaceAll "(runbook_url: )" $text (printf "${1}%s" $root.Values.prometheus.runbooks) -}}
{{- end }}

{{/* Names are looked up, and the named peers are reached. Without any, everything but the node's own network: there the
cloud's metadata service gives out credentials. */}}
{{- define "holdfast.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- to:
    {{- if .Values.networkPolicy.to }}
    {{- toYaml .Values.networkPolicy.to | nindent 4 }}
    {{- else }}
    - namespaceSelector: {}
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fe80::/10", "fd00:ec2::254/128"]}
    {{- end }}
{{- end }}

{{/* The targets as they are stored in a config map, which is no place for a secret. */}}
{{- define "holdfast.targets" -}}
{{- range $id, $target := .Values.targets }}
{{- $secret := dict }}
{{- if kindIs "map" $target.oauth }}{{- $secret = pick $target.oauth "clientSecret" }}{{- end }}
{{- range $kind, $values := dict "headers" (get $target "headers") "env" (get $target "env") "oauth" $secret }}
{{- range $name, $value := $values | default dict }}
{{- /* A default in a reference is a literal too. */}}
{{- if or (not (regexMatch "\\$\\{(env:)?[A-Za-z_]" (toString $value))) (regexMatch "\\$\\{[^}]*:-[^}]" (toString $value)) }}
{{- fail (printf "targets.%s.%s.%s is a literal, and a config map is no place for a secret: write ${env:NAME}, and give the variable to the hub with hub.envFrom" $id $kind $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "mcpServers" .Values.targets | toPrettyJson }}
{{- end }}

{{- define "holdfast.singletons.selector" -}}
app.kubernetes.io/name: holdfast-singletons
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The mcp.json of the hub that has the singletons: these targets, and the settings of the hub. */}}
{{- define "holdfast.singletons.config" -}}
{{- $config := include "holdfast.targets" . | fromJson }}
{{- $own := dict }}
{{- range .Values.hub.singletons }}{{- $_ := set $own . (get $config.mcpServers .) }}{{- end }}
{{- $_ := set $config "mcpServers" $own }}
{{- with .Values.hub.settings }}{{- $_ := set $config "holdfast" . }}{{- end }}
{{- toPrettyJson $config }}
{{- end }}

{{/* The mcp.json of the hub: the targets and its settings. A singleton is the address of the hub that has it, and keeps
what the hub in front decides. */}}
{{- define "holdfast.hub.config" -}}
{{- $config := include "holdfast.targets" . | fromJson }}
{{- $address := printf "%s-singletons:%d" (include "holdfast.name" .) (int .Values.hub.singletonPort) }}
{{- range .Values.hub.singletons }}
{{- $kept := pick (get $config.mcpServers .) "prefix" "tools" "includeTools" "excludeTools" "disabledTools" "approvals" "timeout" "enabled" "disabled" }}
{{- $_ := set $config.mcpServers . (set $kept "hub" $address) }}
{{- end }}
{{- with .Values.hub.settings }}{{- $_ := set $config "holdfast" . }}{{- end }}
{{- toPrettyJson $config }}
{{- end }}
