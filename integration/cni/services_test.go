// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// services does what rocectl agent does when these are the CIDRs of the cluster's Services.
func (n *node) services(t testing.TB, cidrs ...string) {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, netip.MustParsePrefix(c))
	}
	if _, err := (nodefile.Store{Dir: n.state, BootID: strings.TrimSpace(string(boot))}).WriteServices(list); err != nil {
		t.Fatal(err)
	}
}

// throughTheNode returns the routes of a pod through its node.
func (p *pod) throughTheNode(t *testing.T) string {
	t.Helper()
	return p.MustRun(t, "ip", "route", "show", "table", "all", "dev", "host0") + p.MustRun(t, "ip", "-6", "route", "show", "table", "all", "dev", "host0")
}

// TestAutoRoutesAreThoseOfTheNodesFile changes the CIDRs of the Services: new pods have the
// new ones, and living pods keep theirs, also when they are repaired.
func TestAutoRoutesAreThoseOfTheNodesFile(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	c := linkedTo(l.node, cnitest.Subnet4(0), cnitest.Subnet6(0)).With("hostLink.routes", []any{"auto", "10.244.0.0/16"})
	p, q := l.bare(t), l.bare(t)
	a, b := l.attach(c, p, "eth0"), l.attach(c, q, "eth0")
	if err := a.mustFail(t, 11); !strings.Contains(err.Msg, "_services") || !strings.Contains(err.Details, "rocectl agent runs on this node") {
		t.Errorf("without the file: %v: %s", err, err.Details)
	}
	if err := a.call().Status(t); err == nil || err.Code != 50 {
		t.Errorf("STATUS without the file: %v, want error 50", err)
	}
	l.services(t, "10.96.0.0/12", "fd00:96::/108")
	a.mustAdd(t)
	before := p.throughTheNode(t)
	for _, want := range []string{"10.96.0.0/12 via", "10.244.0.0/16 via", "fd00:96::/108 via"} {
		if !strings.Contains(before, want) {
			t.Errorf("the pod has no route %q:\n%s", want, before)
		}
	}

	l.services(t, "10.96.0.0/12", "10.112.0.0/16")
	b.mustAdd(t)
	if routes := q.throughTheNode(t); !strings.Contains(routes, "10.112.0.0/16 via") || strings.Contains(routes, "fd00:96::/108") {
		t.Errorf("a new pod has the routes\n%s", routes)
	}
	if err := os.Remove(filepath.Join(l.state, "pools", "_services")); err != nil {
		t.Fatal(err)
	}
	if err := a.check(t); err != nil {
		t.Errorf("CHECK of a pod with the CIDRs of before: %v", err)
	}
	p.IP(t, "route del 10.96.0.0/12")
	if err := a.check(t); err == nil || !strings.Contains(err.Msg, "10.96.0.0/12") {
		t.Errorf("CHECK without a route: %v", err)
	}
	if out, err := l.rocectl("repair", "--yes"); err != nil {
		t.Errorf("repair: %v\n%s", err, out)
	}
	if after := p.throughTheNode(t); after != before {
		t.Errorf("before the repair\n%s\nafter it\n%s", before, after)
	}
	a.mustDel(t)
	b.mustDel(t)
	l.nothingLeased(t)
	l.noRecords(t)
}
