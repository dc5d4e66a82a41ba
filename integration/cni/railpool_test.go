// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const railPool = "compute"

// told is what rocectl's agent and the plugins tell each other.
func (n *node) told(t testing.TB) nodefile.Store {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	return nodefile.Store{Dir: n.state, BootID: strings.TrimSpace(string(boot))}
}

// services does what rocectl agent does when these are the CIDRs of the cluster's Services.
func (n *node) services(t testing.TB, cidrs ...string) {
	t.Helper()
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, netip.MustParsePrefix(c))
	}
	if _, err := n.told(t).WriteServices(list); err != nil {
		t.Fatal(err)
	}
}

// own does what rocectl's agent does: it writes which host parts of the pool's
// rails the node may lease.
func (n *node) own(t testing.TB, rails int, hosts ...string) {
	t.Helper()
	must(t, n.told(t).Write(owned(t, rails, hosts...)))
}

func owned(t testing.TB, rails int, hosts ...string) nodefile.File {
	t.Helper()
	f := nodefile.File{Pool: railPool, Quarantine: time.Minute}
	for i := range rails {
		s := pool.Subnet{
			Prefix:  netip.MustParsePrefix(fmt.Sprintf("172.16.%d.0/24", 10+i)),
			Gateway: netip.MustParseAddr(fmt.Sprintf("172.16.%d.254", 10+i)),
		}
		for _, h := range hosts {
			first, last, _ := strings.Cut(h, "-")
			r, err := netrange.Parse(fmt.Sprintf("172.16.%[1]d.%[2]s-172.16.%[1]d.%[3]s", 10+i, first, last))
			must(t, err)
			s.Ranges = append(s.Ranges, r)
		}
		f.Rails = append(f.Rails, []pool.Subnet{s})
	}
	return f
}

// rangesFile is the file that own writes.
func (n *node) rangesFile() string { return filepath.Join(n.state, "pools", railPool, "ranges") }

// within fails the test if not all addresses have one of the host parts first to
// last.
func within(t *testing.T, addrs []netip.Addr, first, last byte) {
	t.Helper()
	for _, a := range addrs {
		if h := a.As4()[3]; h < first || h > last {
			t.Errorf("%s is not the node's, which has %d to %d", a, first, last)
		}
	}
}

func TestIPAMPluginLeasesOfARailPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a := w.attach(w.delegate().Pooled(railPool), w.pod(t), "net1")
	call := func(verb string, a attachment) (string, *types.Error) {
		t.Helper()
		out, err := a.raw(t, "roce-ipam", verb, a.text(t))
		return string(out), err
	}
	if _, err := call("ADD", a); err == nil || err.Code != 11 || !strings.Contains(err.Details, "runs on this node") {
		t.Errorf("ADD without ranges: got %v, want error 11", err)
	}
	status := a
	status.network = a.network.With("cniVersion", "1.1.0")
	if _, err := call("STATUS", status); err == nil || err.Code != 50 || !strings.Contains(err.Msg, "no addresses of the pool yet") {
		t.Errorf("STATUS without ranges: got %v, want error 50", err)
	}
	status.network = status.network.With("status.pool", "off")
	if _, err := call("STATUS", status); err != nil {
		t.Errorf("STATUS without ranges, with status.pool off: %v", err)
	}
	w.own(t, 1, "32-32")
	out, err := call("ADD", a)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cniVersion": "1.0.0", "ips": [{"address": "172.16.10.32/24", "gateway": "172.16.10.254"}]}`
	if diff := cmp.Diff(parse(t, want), parse(t, out)); diff != "" {
		t.Errorf("result (-want +got)\n%s", diff)
	}
	if _, err := call("ADD", w.attach(a.network, w.pod(t), "net1")); err == nil || err.Code != 101 || !strings.Contains(err.Details, "another block") {
		t.Errorf("exhausted: got %v, want error 101", err)
	}
	if _, err := call("DEL", a); err != nil {
		t.Error(err)
	}
	if _, err := call("ADD", w.attach(a.network, w.pod(t), "net1")); err == nil || err.Code != 101 ||
		!strings.Contains(err.Msg, "are leased or in quarantine") || !strings.Contains(err.Details, "another block") {
		t.Errorf("exhausted by an address in quarantine: got %v, want error 101 that tells of blocks", err)
	}
	if _, err := call("ADD", a); err != nil {
		t.Error(err)
	}

	// The NIC is the main plugin's: of several rails the configuration says which.
	w.own(t, 3, "32-47")
	other := w.attach(a.network, w.pod(t), "net1")
	if _, err := call("ADD", other); err == nil || err.Code != 7 || !strings.Contains(err.Details, "ipam.rail") {
		t.Errorf("three rails: got %v, want error 7", err)
	}
	other.network = a.network.With("ipam.rail", 2)
	if out, err := call("ADD", other); err != nil || !strings.Contains(out, `"172.16.12.`) {
		t.Errorf("ipam.rail 2: got %s, %v", out, err)
	}

	must(t, os.Remove(w.rangesFile()))
	for _, verb := range []string{"CHECK", "DEL", "DEL"} {
		for _, one := range []attachment{a, other} {
			if _, err := call(verb, one); err != nil {
				t.Errorf("%s without ranges: %v", verb, err)
			}
		}
	}
	w.nothingLeased(t)
}
