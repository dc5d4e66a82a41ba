// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package result_test

import (
	"net"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/result"
)

// TestAnAddressOfNoInterfaceIsNotThatOfOurs has a plugin before roce give an address the index
// of an interface that it does not list. Behind it, the first of ours has the index 1.
func TestAnAddressOfNoInterfaceIsNotThatOfOurs(t *testing.T) {
	t.Parallel()
	for index, want := range map[int]bool{-1: false, 0: true, 1: false, 7: false} {
		ip := &current.IPConfig{Interface: &index, Address: net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}}
		req := conf.Request{Before: &current.Result{Interfaces: []*current.Interface{{Name: "eth0"}}, IPs: []*current.IPConfig{ip}}}
		got := result.Of(plan.Plan{Interfaces: []plan.Interface{{Name: "net1"}}}, req).IPs[0].Interface
		if (got != nil) != want || want && *got != index {
			t.Errorf("interface %d: got %v, want it kept: %v", index, got, want)
		}
		if ip.Interface == nil {
			t.Error("the result of the plugin before was changed")
		}
	}
}
