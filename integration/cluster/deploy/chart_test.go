// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the templates and CRDs of charts/roce-cni")

const chart = root + "/charts/roce-cni"

// change is a text of our manifests and what it is in a template. A template without
// any of its changes is an error: then the manifest has changed its form.
type change struct{ from, to string }

const ourImage = `{{ include "roce-cni.image" (dict "root" . "image" .Values.image) }}`

// selector is a nodeSelector of the values at the line before which it belongs.
func selector(values string) string {
	return "{{- with " + values + " }}\n      nodeSelector: {{- toYaml . | nindent 8 }}\n      {{- end }}\n      "
}

// withPackets is the security context of an agent that listens for LLDP.
const withPackets = `{runAsUser: 0, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: ["ALL"], add: ["NET_RAW"]}, seccompProfile: {type: RuntimeDefault}}`

// labelOfNICs is a comment for those who have no value to set.
const labelOfNICs = "# For nodes with NICs of NVIDIA only, with Node Feature Discovery as the network operator installs it:\n" +
	"      #   nodeSelector: {feature.node.kubernetes.io/pci-15b3.present: \"true\"}\n      "

const pullSecrets = "{{- with .Values.imagePullSecrets }}\n      imagePullSecrets: {{- toYaml . | nindent 8 }}\n      {{- end }}\n      "

// board is the template of the dashboard, which the chart has as a file.
const board = `apiVersion: v1
kind: ConfigMap
metadata:
  name: roce-cni-dashboard
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: roce-cni, grafana_dashboard: "1"}
data:
  dashboard.json: {{ .Files.Get "files/dashboard.json" | quote }}
`

// only is a text for values that fulfil a condition.
func only(condition, text string) string {
	return "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
}

// templates has the manifests of the chart, and what is a value in each.
func templates() map[string][]change {
	namespace := change{"namespace: roce-cni\n", "namespace: {{ .Release.Namespace }}\n"}
	image := change{"image: roce-cni\n", "image: " + ourImage + "\n"}
	binaries := change{"path: /opt/cni/bin,", "path: {{ .Values.cniBinDir }},"}
	state := change{": /run/roce", ": {{ .Values.stateDir }}"}
	found := change{"labels: {app.kubernetes.io/name: roce-cni}\n", "labels: {{- merge (dict \"app.kubernetes.io/name\" \"roce-cni\") .Values.monitoring.labels | toYaml | nindent 4 }}\n"}
	return map[string][]change{
		"monitoring/podmonitor.yaml": {namespace, found},
		"monitoring/rules.yaml":      {{"{{ $labels", `{{ "{{ $labels`}, {" }}", ` }}" }}`}, namespace, found},
		"rbac.yaml":                  {namespace},
		"policy.yaml":                nil,
		"agent.yaml": {
			namespace, image, binaries, state,
			{`["agent", "--host-root", "/host"]`, `["agent", "--host-root", "/host"{{ with .Values.agent.serviceClusterIPRange }}, {{ printf "--service-cluster-ip-range=%s" . | quote }}{{ end }}{{ if .Values.agent.lldp }}, "--lldp"{{ end }}{{ with .Values.agent.unused }}, "--unused", {{ join "," . | quote }}{{ end }}]`},
			{"securityContext: *confined\n          ports:", `securityContext: {{ if .Values.agent.lldp }}` + withPackets + `{{ else }}*confined{{ end }}` + "\n          ports:"},
			{labelOfNICs + "serviceAccountName: roce-cni-agent\n", pullSecrets + selector(".Values.agent.nodeSelector") + "serviceAccountName: roce-cni-agent\n"},
		},
		"heal.yaml": {
			namespace, image, state,
			{"automountServiceAccountToken: false\n", pullSecrets + selector(".Values.agent.nodeSelector") + "automountServiceAccountToken: false\n"},
		},
		"pod-label/class.yaml": {
			{"roce-cni.io/rails: rails get. For another network, write\n# another ConfigMap with the value of that label as its name.\n", "roce-cni.io/rails: {{ $name }} get.\n"},
			{"name: rails\n", "name: {{ quote $name }}\n"},
			{"namespace: roce-cni\n", "namespace: {{ $.Release.Namespace }}\n"},
			{"network: rails ", "network: {{ quote $class.network }} "},
			{"resource: rdma/rails\n", "resource: {{ quote $class.resource }}\n"},
			{"shm: 8Gi ", "shm: {{ quote $class.shm }} "},
			{"image: registry.example.org/roce-cni:devel # the one that you have built, for", `image: {{ include "roce-cni.image" (dict "root" $ "image" $.Values.image) }} # for`},
		},
		"pod-label/policy.yaml": {
			namespace,
			{"write\n# v1beta1 in place of v1 for the two objects of kind MutatingAdmissionPolicy.\n", "set\n# podLabel.apiVersion to v1beta1.\n"},
			{"/v1\nkind: Mutating", "/{{ .Values.podLabel.apiVersion }}\nkind: Mutating"},
			{"the namespace roce-cni has", "the namespace {{ .Release.Namespace }} has"},
		},
		"uninstall/daemonset.yaml": {
			namespace, image, binaries, state,
			{"image: registry.k8s.io/pause", `image: {{ .Values.imageRegistry | default "registry.k8s.io" }}/pause`},
			{"automountServiceAccountToken: false\n", pullSecrets + selector(".Values.agent.nodeSelector") + "automountServiceAccountToken: false\n"},
		},
		"gc.yaml": {
			namespace, image,
			{"replicas: 2\n", "replicas: {{ .Values.gc.replicas }}\n"},
			{`"$(NAMESPACE)"]`, `"$(NAMESPACE)"{{ if .Values.gc.railTaint }}, "--rail-taint"{{ end }}]`},
			{"serviceAccountName: roce-cni-gc\n", pullSecrets + "serviceAccountName: roce-cni-gc\n"},
		},
		"rdma/device-plugin/config.yaml": {
			namespace,
			{"  config.json: |\n    {\n", "  config.json: |\n    {{- with .Values.devicePlugin.config }}\n    {{- toPrettyJson . | nindent 4 }}\n    {{- else }}\n    {\n"},
			{`"resourceName": "rails"`, `"resourceName": {{ .Values.devicePlugin.resourceName | quote }}`},
			{`"rdmaHcaMax": 100`, `"rdmaHcaMax": {{ int .Values.devicePlugin.rdmaHcaMax }}`},
			{`{"vendors": ["15b3"], "linkTypes": ["ether"]}`, "{{ toJson .Values.devicePlugin.selectors }}"},
			{"      ]\n    }\n", "      ]\n    }\n    {{- end }}\n"},
		},
		"rdma/device-plugin/daemonset.yaml": {
			namespace,
			// The plugin reads its configuration only when it starts.
			{"    metadata:\n      labels:", "    metadata:\n" + `      annotations: {checksum/config: {{ include (print $.Template.BasePath "/device-plugin-config.yaml") . | sha256sum }}}` + "\n      labels:"},
			{"image: ghcr.io/mellanox/k8s-rdma-shared-dev-plugin\n", `image: {{ include "roce-cni.image" (dict "root" . "image" .Values.devicePlugin.image) }}` + "\n"},
			{"hostNetwork: true\n", pullSecrets + selector(".Values.devicePlugin.nodeSelector") + "hostNetwork: true\n"},
		},
	}
}

// TestTheChartIsMadeFromTheManifests compares the templates and the CRDs of the chart
// with the manifests, which are their source.
func TestTheChartIsMadeFromTheManifests(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for _, path := range files(t, dir+"/crds") {
		want["crds/"+filepath.Base(path)] = string(content(t, path))
	}
	changes := templates()
	for _, path := range slices.Concat(files(t, dir), files(t, uninstall), files(t, devicePlugin), files(t, monitoring), files(t, railTaint), files(t, podLabel)) {
		name, err := filepath.Rel(dir, path)
		must(t, path, err)
		if name == "namespace.yaml" {
			continue // Helm needs the namespace before the chart
		}
		list, known := changes[name]
		if !known {
			list = []change{{"namespace: roce-cni\n", "namespace: {{ .Release.Namespace }}\n"}}
		}
		text := string(content(t, path))
		if strings.Contains(text, "{{") && list[0].from != "{{ $labels" {
			t.Errorf("%s has {{, which Helm would evaluate", path)
		}
		for _, c := range list {
			if known && !strings.Contains(text, c.from) {
				t.Errorf("%s has no %q: change templates in this test", path, c.from)
			}
			text = strings.ReplaceAll(text, c.from, c.to)
		}
		switch folder, base := filepath.Split(name); {
		case folder == "rdma/device-plugin/":
			text, name = only(".Values.devicePlugin.enabled", text), "device-plugin-"+base
		case folder == "monitoring/":
			text, name = only(".Values.monitoring.enabled", text), "monitoring-"+base
		case name == "pod-label/class.yaml":
			text, name = only(".Values.podLabel.enabled", "{{- range $name, $class := .Values.podLabel.classes }}\n---\n"+text+"{{- end }}\n"), "pod-label-"+base
		case folder == "pod-label/":
			text, name = only(".Values.podLabel.enabled", text), "pod-label-"+base
		case folder == "rail-taint/":
			text, name = only(".Values.gc.railTaint", text), "rail-taint.yaml"
		case folder == "uninstall/":
			text, name = only(".Values.uninstall", text), "uninstall.yaml"
		case name == "heal.yaml":
			text = only("and .Values.heal.enabled (not .Values.uninstall)", text)
		case name == "agent.yaml": // it would install the plugins again
			text = only("not .Values.uninstall", text)
		}
		want["templates/"+name] = text
	}
	want["templates/monitoring-dashboard.yaml"] = only(".Values.monitoring.enabled", board)
	want["files/dashboard.json"] = string(content(t, monitoring+"/dashboard.json"))
	got := map[string]string{}
	for _, folder := range []string{"templates", "crds", "files"} {
		found, err := filepath.Glob(chart + "/" + folder + "/*.[jy]*")
		must(t, chart, err)
		for _, path := range found {
			got[folder+"/"+filepath.Base(path)] = string(content(t, path))
		}
	}
	if *update {
		for name := range got {
			must(t, name, os.Remove(chart+"/"+name))
		}
		for name, text := range want {
			must(t, name, os.WriteFile(chart+"/"+name, []byte(text), 0o644))
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("charts/roce-cni is old: run make gen (-want +got)\n%s", diff)
	}
}
