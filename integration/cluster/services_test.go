// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// knows waits until the node's file has these CIDRs of Services.
func (m *machine) knows(cidrs ...string) {
	m.t.Helper()
	var want []netip.Prefix
	for _, s := range cidrs {
		want = append(want, netip.MustParsePrefix(s))
	}
	eventually(m.t, fmt.Sprintf("%s knows %v", m.name, want), func(context.Context) error {
		got, err := m.files().Services()
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it knows %v", got)
		}
		return err
	})
}

// TestTheNodesKnowTheServicesOfARealServer adds CIDRs of Services and removes them, also
// while the agent or the server is away. The agent has the rights of its account.
func TestTheNodesKnowTheServicesOfARealServer(t *testing.T) {
	t.Parallel()
	c := pooled(t) // --service-cluster-ip-range=10.96.0.0/16
	served, err := client(t, c.Admin()).Discovery().ServerResourcesForGroupVersion(networking.SchemeGroupVersion.String())
	must(t, err)
	if !slices.ContainsFunc(served.APIResources, func(r meta.APIResource) bool { return r.Name == "servicecidrs" }) {
		t.Skip("this API server has no ServiceCIDRs, which Kubernetes has from 1.33 on")
	}
	m := joins(t, c, "n1")
	m.start()
	m.knows("10.96.0.0/16")

	objects := client(t, c.Admin()).NetworkingV1().ServiceCIDRs()
	more := &networking.ServiceCIDR{ObjectMeta: meta.ObjectMeta{Name: "more"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"10.112.0.0/16", "fd00:96::/108"}}}
	_, err = objects.Create(t.Context(), more, meta.CreateOptions{})
	must(t, err)
	m.knows("10.96.0.0/16", "10.112.0.0/16", "fd00:96::/108")

	m.agent.kill()
	must(t, objects.Delete(t.Context(), "more", meta.DeleteOptions{}))
	m.start()
	m.knows("10.96.0.0/16")

	must(t, c.KillServer())
	must(t, os.Remove(filepath.Join(m.state, "pools", "_services")))
	m.knows("10.96.0.0/16") // from memory
	must(t, c.StartServer(t.Context()))
	_, err = objects.Create(t.Context(), more, meta.CreateOptions{})
	must(t, err)
	m.knows("10.96.0.0/16", "10.112.0.0/16", "fd00:96::/108")
}

// TestServicesGivenByHandAreNotAskedFor starts an agent as clusters without ServiceCIDRs
// need it.
func TestServicesGivenByHandAreNotAskedFor(t *testing.T) {
	t.Parallel()
	m := joins(t, pooled(t), "n1")
	m.agent = runs(t, m.kubeconfig, append(m.args(), "--service-cluster-ip-range=10.7.0.0/16,fd00:7::/108")...)
	m.knows("10.7.0.0/16", "fd00:7::/108")
	m.healthy()
}
