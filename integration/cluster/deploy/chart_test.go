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

// selector is a nodeSelector of the values at a line with the account or the network.
func selector(values string) string {
	return "{{- with " + values + " }}\n      nodeSelector: {{- toYaml . | nindent 8 }}\n      {{- end }}\n      "
}

// withPackets is the security context of an agent that listens for LLDP.
const withPackets = `{runAsUser: 0, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: ["ALL"], add: ["NET_RAW"]}, seccompProfile: {type: RuntimeDefault}}`

const pullSecrets = "{{- with .Values.imagePullSecrets }}\n      imagePullSecrets: {{- toYaml . | nindent 8 }}\n      {{- end }}\n      "

// templates has the manifests of the chart, and what is a value in each.
func templates() map[string][]change {
	namespace := change{"namespace: roce-cni\n", "namespace: {{ .Release.Namespace }}\n"}
	image := change{"image: roce-cni\n", "image: " + ourImage + "\n"}
	system := change{"namespace: kube-system\n", "namespace: {{ .Release.Namespace }}\n"}
	return map[string][]change{
		"rbac.yaml":   {namespace},
		"policy.yaml": nil,
		"agent.yaml": {
			namespace, image,
			{"path: /opt/cni/bin,", "path: {{ .Values.cniBinDir }},"},
			{": /run/roce", ": {{ .Values.stateDir }}"},
			{`["agent", "--host-root", "/host"]`, `["agent", "--host-root", "/host"{{ with .Values.agent.serviceClusterIPRange }}, {{ printf "--service-cluster-ip-range=%s" . | quote }}{{ end }}{{ if .Values.agent.lldp }}, "--lldp"{{ end }}]`},
			{"securityContext: *confined\n          ports:", `securityContext: {{ if .Values.agent.lldp }}` + withPackets + `{{ else }}*confined{{ end }}` + "\n          ports:"},
			{"serviceAccountName: roce-cni-agent\n", pullSecrets + selector(".Values.agent.nodeSelector") + "serviceAccountName: roce-cni-agent\n"},
		},
		"gc.yaml": {
			namespace, image,
			{"replicas: 2\n", "replicas: {{ .Values.gc.replicas }}\n"},
			{"serviceAccountName: roce-cni-gc\n", pullSecrets + "serviceAccountName: roce-cni-gc\n"},
		},
		"rdma/device-plugin/config.yaml": {system},
		"rdma/device-plugin/daemonset.yaml": {
			system,
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
	for _, path := range slices.Concat(files(t, dir), files(t, devicePlugin)) {
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
		if strings.Contains(text, "{{") {
			t.Errorf("%s has {{, which Helm would evaluate", path)
		}
		for _, c := range list {
			if known && !strings.Contains(text, c.from) {
				t.Errorf("%s has no %q: change templates in this test", path, c.from)
			}
			text = strings.ReplaceAll(text, c.from, c.to)
		}
		if strings.HasPrefix(name, "rdma/") {
			text = "{{- if .Values.devicePlugin.enabled }}\n" + text + "{{- end }}\n"
			name = "device-plugin-" + filepath.Base(name)
		}
		want["templates/"+name] = text
	}
	got := map[string]string{}
	for _, folder := range []string{"templates", "crds"} {
		found, err := filepath.Glob(chart + "/" + folder + "/*.yaml")
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
