// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// pathsOfUpstream returns the plugins of the module, each with its keys that may be paths. What
// writes files in a plugin takes the path from such a key.
func pathsOfUpstream(t *testing.T) map[string][]string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/containernetworking/plugins").Output()
	must(t, err)
	out := map[string][]string{}
	key := regexp.MustCompile("(?i)`json:\"([^\",]*(dir|path|file|conf|socket|log)[^\",]*)")
	files, err := filepath.Glob(strings.TrimSpace(string(dir)) + "/plugins/*/*/*.go")
	must(t, err)
	deeper, err := filepath.Glob(strings.TrimSpace(string(dir)) + "/plugins/*/*/*/*/*.go")
	must(t, err)
	for _, file := range append(files, deeper...) {
		b, err := os.ReadFile(file)
		must(t, err)
		plugin := strings.Split(strings.SplitN(file, "/plugins/", 2)[1], "/")[1]
		out[plugin] = append(out[plugin], "")
		for _, m := range key.FindAllSubmatch(b, -1) {
			if name := string(m[1]); name != "runtimeConfig" { // it holds what the runtime says
				out[plugin] = append(out[plugin], name)
			}
		}
		out[plugin] = slices.DeleteFunc(out[plugin], func(s string) bool { return s == "" })
	}
	return out
}

// TestTheSampleOfAPolicyForNetworksRefusesWhatItSays has a user who is no administrator.
func TestTheSampleOfAPolicyForNetworksRefusesWhatItSays(t *testing.T) {
	t.Parallel()
	c := own(t)
	applyFile(t, c, "e2e/testdata/network-attachment-definition.yaml")
	applyFile(t, c, filepath.Join(deployment, "samples", "networks-policy.yaml"))
	applyText(t, c, "the rights of the tenant", []byte(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: tenants-are-not-limited-by-rbac}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: User, name: tenant, apiGroup: rbac.authorization.k8s.io}]`))
	tenant := c.Admin()
	tenant.Impersonate.UserName = "tenant"
	all, err := dynamic.NewForConfig(tenant)
	must(t, err)
	networks := all.Resource(schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}).Namespace("default")
	create := func(ctx context.Context, config string) error {
		spec := map[string]any{}
		if config != "" {
			spec["config"] = config
		}
		_, err := networks.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"name": "x"}, "spec": spec,
		}}, meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		return err
	}
	inForce(t, c)
	cases := map[string]string{
		`{"cniVersion": "1.1.0", "name": "x", "type": "roce", "master": "eth1", "ipam": {"type": "roce-ipam", "railPool": "compute"}}`: "",
		`{"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "roce"}, {"type": "roce-ipam"}]}`:                                   "",
		`{"plugins": [{"type": "roce"}, {"type": "tuning", "mtu": 9000}]}`:                                                             "only plugins of type",
		``:                                     "write spec.config",
		`{"type": "roce", "stateDir": "/etc"}`: "paths are settings of the node",
		`{"type": "roce", "log" : {"file": "/etc/x"}}`:                       "paths are settings of the node",
		`{"type": "roce", "LOG": {"file": "/etc/x"}}`:                        "paths are settings of the node",
		`{"type": "roce", "runtimeConfig": {"CNIDeviceInfoFile": "/etc/x"}}`: "paths are settings of the node",
		"{\"type\": \"roce\", \"stateDir\"\n: \"/etc\"}":                     "paths are settings of the node",
		`{"type": "roce", "\u0073tateDir": "/etc"}`:                          "backslash",
		`{"type": "host-device", "device": "eth0"}`:                          "only plugins of type",
		`{"plugins": [{"type": "roce"}, {"type": "host-device"}]}`:           "only plugins of type",
		`{"type": "roce", "ipam": {"type": "host-local"}}`:                   "only plugins of type",
		`{"Type": "host-device"}`:                                            "only plugins of type",
		`{}`:                                                                 "only plugins of type",
	}
	upstream := 0
	for plugin, keys := range pathsOfUpstream(t) {
		cases[fmt.Sprintf(`{"type": "roce", "plugins": [{"type": %q}]}`, plugin)] = "only plugins of type"
		for _, key := range keys { // also if a site allows the plugin
			cases[fmt.Sprintf(`{"type": "roce", %q: "/etc/cni/net.d"}`, key)] = "paths are settings of the node"
			upstream++
		}
	}
	if upstream < 4 {
		t.Errorf("%d keys of upstream's plugins are paths, want at least those of host-local, dhcp and tuning", upstream)
	}
	for config, want := range cases {
		err := create(t.Context(), config)
		if want == "" && err != nil || want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
	}
	// An administrator is not limited.
	admin, err := dynamic.NewForConfig(c.Admin())
	must(t, err)
	_, err = admin.Resource(schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}).Namespace("default").
		Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"name": "x"},
			"spec": map[string]any{"config": `{"type": "host-device", "stateDir": "/x"}`},
		}}, meta.CreateOptions{})
	must(t, err)
}
