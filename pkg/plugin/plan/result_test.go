// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestAnAddressOfNoInterfaceIsNotThatOfOurs has a plugin before roce give an address the index
// of an interface that it does not list. Behind it, the first of ours has the index 1.
func TestAnAddressOfNoInterfaceIsNotThatOfOurs(t *testing.T) {
	t.Parallel()
	for index, want := range map[int]bool{-1: false, 0: true, 1: false, 7: false} {
		ip := &current.IPConfig{Interface: &index, Address: net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}}
		req := conf.Request{Before: &current.Result{Interfaces: []*current.Interface{{Name: "eth0"}}, IPs: []*current.IPConfig{ip}}}
		got := plan.Plan{Interfaces: []plan.Interface{{Name: "net1"}}}.Result(req).IPs[0].Interface
		if (got != nil) != want || want && *got != index {
			t.Errorf("interface %d: got %v, want it kept: %v", index, got, want)
		}
		if ip.Interface == nil || req.Before.IPs[0] != ip {
			t.Error("the result of the plugin before was changed")
		}
	}
}

func TestARouteOfThePluginBeforeIsNamedIfItCannotBe(t *testing.T) {
	t.Parallel()
	route := &types.Route{Dst: net.IPNet{IP: net.IPv4(10, 1, 0, 0), Mask: net.CIDRMask(16, 32)}, GW: net.ParseIP("fd00::1")}
	_, err := plan.PreviousLease(conf.Prev{Result: &current.Result{Routes: []*types.Route{route}}})
	var fault *cnierr.Error
	if !errors.As(err, &fault) || fault.Hint != "correct the configuration of that plugin" || !strings.Contains(err.Error(), "route to 10.1.0.0/16") {
		t.Errorf("got %+v", err)
	}
}
