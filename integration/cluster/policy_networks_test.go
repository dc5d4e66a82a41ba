// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

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
	for config, want := range map[string]string{
		`{"cniVersion": "1.1.0", "name": "x", "type": "roce", "master": "eth1", "ipam": {"type": "roce-ipam", "railPool": "compute"}}`: "",
		`{"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "roce"}, {"type": "tuning", "mtu": 9000}]}`:                         "",
		``:                                     "write spec.config",
		`{"type": "roce", "stateDir": "/etc"}`: "remove them",
		`{"type": "roce", "log" : {"file": "/etc/x"}}`:                       "remove them",
		`{"type": "roce", "LOG": {"file": "/etc/x"}}`:                        "remove them",
		`{"type": "roce", "runtimeConfig": {"CNIDeviceInfoFile": "/etc/x"}}`: "remove them",
		"{\"type\": \"roce\", \"stateDir\"\n: \"/etc\"}":                     "remove them",
		`{"type": "roce", "\u0073tateDir": "/etc"}`:                          "backslash",
		`{"type": "host-device", "device": "eth0"}`:                          "only plugins of type",
		`{"plugins": [{"type": "roce"}, {"type": "host-device"}]}`:           "only plugins of type",
		`{"type": "roce", "ipam": {"type": "host-local"}}`:                   "only plugins of type",
		`{"Type": "host-device"}`:                                            "only plugins of type",
		`{}`:                                                                 "only plugins of type",
	} {
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
