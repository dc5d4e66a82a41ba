// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// networkStatus is an entry of the pod's annotation
// k8s.v1.cni.cncf.io/network-status, as far as it is about interfaces.
type networkStatus struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	Mac       string   `json:"mac"`
	Mtu       int      `json:"mtu,omitempty"`
}

// statuses makes network-status of a result as Multus does
// (CreateNetworkStatuses): an entry for each interface with a sandbox, with the
// addresses that name it by its place. It takes an address that names none for
// the last interface's.
func statuses(t *testing.T, name string, r types.Result) []networkStatus {
	t.Helper()
	res, err := current.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	var out []networkStatus
	at := map[int]int{}
	for i, in := range res.Interfaces {
		if in.Sandbox != "" {
			at[i] = len(out)
			out = append(out, networkStatus{Name: name, Interface: in.Name, Mac: in.Mac, Mtu: in.Mtu})
		}
	}
	for _, ip := range res.IPs {
		n := len(out) - 1
		if ip.Interface != nil {
			n = at[*ip.Interface]
		}
		out[n].IPs = append(out[n].IPs, ip.Address.IP.String())
	}
	return out
}

// Multus hands on the configuration of a NetworkAttachmentDefinition as one
// plugin's, with the name of the definition if it has none, the pod's
// annotation as runtimeConfig, and its own CNI_ARGS. libcni gives DEL the result.
func TestMultusCallGivesANetworkStatusForEachRail(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rails)
			p := w.pod(t)
			before := p.snapshot(t)
			c := w.matched(cnitest.Subnet4, cnitest.Subnet6).With("cniVersion", version).With("name", "rails")
			a := w.attach(c, p, "net1").capable("ips", []string{"172.16.12.99/24", "fd00:15::99/64"}).arg("K8S_POD_REVISION", "7")
			testMultus(t, a)
			p.unchanged(t, before)
			w.nothingLeased(t)
			w.noRecords(t)
		})
	}
}

func testMultus(t *testing.T, a attachment) {
	t.Helper()
	b, err := json.Marshal(a.network)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := libcni.NetworkPluginConfFromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	runtime := a.libcni()
	res, err := runtime.AddNetwork(t.Context(), conf, a.runtime())
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	if got, want := res.Version(), a.network["cniVersion"]; got != want {
		t.Errorf("the result is of version %s, want %s", got, want)
	}
	got := statuses(t, "train/rails", res)
	var want []networkStatus
	for i := range rails {
		s := networkStatus{
			Name: "train/rails", Interface: railName(i), Mac: got[min(i, len(got)-1)].Mac,
			IPs: []string{fmt.Sprintf("172.16.%d.99", 10+i), fmt.Sprintf("fd00:%d::99", 10+i)},
		}
		if res.Version() == "1.1.0" { // 1.0.0 has no key for it
			s.Mtu = 9000
		}
		want = append(want, s)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("network-status (-want +got)\n%s", diff)
	}
	for _, s := range got {
		if !strings.HasPrefix(s.Mac, "02:") {
			t.Errorf("the MAC of %s is %q", s.Interface, s.Mac)
		}
	}
	if err := runtime.CheckNetwork(t.Context(), conf, a.runtime()); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := runtime.DelNetwork(t.Context(), conf, a.runtime()); err != nil {
		t.Errorf("DEL: %v", err)
	}
	// A second DEL has no result, for libcni's cache has none any more.
	if err := runtime.DelNetwork(t.Context(), conf, a.runtime()); err != nil {
		t.Errorf("second DEL: %v", err)
	}
}
