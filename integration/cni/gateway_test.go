// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

const router = "02:bb:bb:bb:bb:bb"

// asks says whether a frame asks for an address, not as a probe.
func (f frame) asks(addr netip.Addr) bool {
	return !f.out && (f.kind == arpRequest || f.kind == solicit) && f.to == addr && !f.from.IsUnspecified()
}

func gatewayOf(subnet map[string]any) netip.Addr {
	return netip.MustParseAddr(subnet["gateway"].(string))
}

func TestSilentGatewayIsAnErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	answers := map[string]func(frame, netip.Addr) [][]byte{
		"silent": func(frame, netip.Addr) [][]byte { return nil },
		"another address is answered for": func(f frame, gateway netip.Addr) [][]byte {
			f.to = gateway.Prev()
			return [][]byte{reply(f, router)}
		},
	}
	for _, family := range families {
		for name, answer := range answers {
			t.Run(family.name+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 0)
				w.wire(t, 0)
				p := w.pod(t)
				pod, node := p.snapshot(t), w.snapshot(t)
				subnet := family.subnet(0)
				gateway := gatewayOf(subnet)
				tap := w.leaf.listen(t, "leaf0", func(f frame) [][]byte {
					if !f.asks(gateway) {
						return nil
					}
					return answer(f, gateway)
				})
				c := w.rail(0).With("ipam.subnets", []any{subnet}).With("probe.gateway", map[string]any{"timeout": "20ms"})
				err := w.attach(c, p, "net1").mustFail(t, 106)
				if !strings.Contains(err.Msg, gateway.String()) {
					t.Errorf("%v: want it to name %s", err, gateway)
				}
				if got := tap.await(t, 3, "a question for the gateway", func(f frame) bool { return f.asks(gateway) }); len(got) != 3 {
					t.Errorf("the gateway was asked %d times, want 3", len(got))
				}
				p.unchanged(t, pod)
				w.unchanged(t, node)
				w.nothingLeased(t)
				w.noRecords(t)

				a := w.attach(c.With("probe.gateway.mode", "warn"), p, "net1")
				a.mustAdd(t)
				if !strings.Contains(a.stderr.String(), "level=WARN") || !strings.Contains(a.stderr.String(), gateway.String()) {
					t.Errorf("the log is %q, want a warning that names %s", a.stderr, gateway)
				}
			})
		}
	}
}

func TestMasterWithoutCarrierIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	w.leaf.IP(t, "link set dev leaf0 down")
	cnitest.Await(t, "rail0 has no carrier", func() bool {
		return strings.Contains(w.MustRun(t, "ip", "link", "show", "dev", "rail0"), " state DOWN ")
	})
	pod, node := p.snapshot(t), w.snapshot(t)
	err := w.attach(w.rail(0), p, "net1").mustFail(t, 102)
	if !strings.Contains(err.Error(), "carrier") && !strings.Contains(err.Error(), "cable") {
		t.Errorf("%v: want it to speak of the carrier", err)
	}
	p.unchanged(t, pod)
	w.unchanged(t, node)
	w.noRecords(t)
	w.nothingLeased(t)
}

func TestArpAndNeighbourEntriesOfOthersAreOverwritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.leaf.IP(t, `
		neigh add 172.16.10.70 lladdr 02:dd:dd:dd:dd:dd dev leaf0 nud stale
		neigh add fd00:10::70 lladdr 02:dd:dd:dd:dd:dd dev leaf0 nud stale`)
	tap := w.leaf.listen(t, "leaf0", nil)
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}).With("args.cni.ips", []any{"172.16.10.70", "fd00:10::70"})
	res := w.attach(c, w.pod(t), "net1").mustAdd(t)
	for _, addr := range addrs(res) {
		tap.await(t, 1, "an announcement", func(f frame) bool { return f.gratuitous(addr) })
		got := strings.Fields(w.leaf.MustRun(t, "ip", "neigh", "show", "to", addr.String(), "dev", "leaf0"))
		if !slices.Contains(got, res.Interfaces[0].Mac) {
			t.Errorf("the leaf's entry of %s is %q, want %s in it", addr, got, res.Interfaces[0].Mac)
		}
	}
}
