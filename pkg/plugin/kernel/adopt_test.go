// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// lend makes net1 as another plugin would, with a MAC that ends so, and gives it
// an IPv6 address that the kernel looks for duplicates of, for so long.
func lend(t *testing.T, pod *kerneltest.Netns, k *kernel.Kernel, mac byte, detection time.Duration) plan.Adopt {
	t.Helper()
	m := child(t)
	m.MAC[5] = mac
	do(t, k, plan.Op{Kind: m}, plan.Op{Kind: plan.Sysctl{Link: "net1", Set: []plan.Setting{
		{Path: "net/ipv6/conf/net1/router_solicitation_delay", Value: "0"},
		{Path: "net/ipv6/neigh/net1/retrans_time_ms", Value: fmt.Sprint(detection.Milliseconds())},
	}}}, plan.Op{Kind: plan.Up{Link: "net1"}})
	pod.IP("addr add fd00:9::5/64 dev net1")
	return plan.Adopt{Link: "net1", MAC: m.MAC, Addresses: []netip.Prefix{netip.MustParsePrefix("fd00:9::5/64")}}
}

const shortly = 300 * time.Millisecond

func TestAdoptWaitsForDuplicateAddressDetection(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	op := lend(t, pod, k, 5, time.Hour) // nothing here can take longer
	route := plan.Route{Link: "net1", Table: 100, Dst: netip.MustParsePrefix("fd00:9::/64"), Src: op.Addresses[0].Addr()}
	if err := k.Do(t.Context(), plan.Op{Kind: route}); err == nil {
		t.Fatal("the address was not tentative: the test proves nothing")
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantCode(t, k.Do(soon, plan.Op{Kind: op}), cnierr.TryAgain)
	pod.IP("link del net1")
	op = lend(t, pod, k, 5, shortly)
	do(t, k, plan.Op{Kind: op}, plan.Op{Kind: route})
	if s := pod.IP("addr show dev net1 tentative to fd00:9::5"); s != "" {
		t.Errorf("still tentative:\n%s", s)
	}
}

func TestAdoptRefusesAnAddressThatAnotherMachineHas(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	do(t, k, plan.Op{Kind: lend(t, pod, k, 5, shortly)})
	second := node.Pod()
	k2 := open(t, second)
	op := lend(t, second, k2, 6, time.Hour) // an answer ends it
	wantCode(t, k2.Do(t.Context(), plan.Op{Kind: op}), cnierr.AddressTaken)
	wantCode(t, k2.Check(t.Context(), plan.Op{Kind: op}), cnierr.Damaged)
	err := k2.Check(t.Context(), plan.Op{Kind: plan.Address{Link: "net1", Prefix: op.Addresses[0]}})
	wantCode(t, err, cnierr.Damaged)
	if err == nil || !strings.Contains(err.Error(), "duplicate address detection failed") {
		t.Errorf("check of the address: %v", err)
	}
}

func TestTheParentOfAnAdoptedLinkIsWhatItStandsOn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   conf.LinkName
		inPod  bool
	}{
		"a veth is a NIC":                    {"link add net1 type veth peer name peer0", "net1", true},
		"a link that has no neighbours":      {"link add net1 type veth peer name peer0\nlink set net1 arp off", "net1", true},
		"a macvlan of the pod":               {"link add nic1 type veth peer name peer0\nlink add net1 link nic1 type macvlan", "nic1", true},
		"a macvlan of a macvlan of the pod":  {"link add nic1 type veth peer name peer0\nlink add mid0 link nic1 type macvlan\nlink add net1 link mid0 type macvlan", "nic1", true},
		"a macvlan of the host's macvlan":    {"HOST link add mid0 link nic0 type macvlan\nHOST link add net1 link mid0 netns POD type macvlan", nic, false},
		"a macvlan of a third namespace's":   {"WIRE link add net1 link nic0 netns POD type macvlan", "net1", true},
		"a link of the same index elsewhere": {"WIRE link add name x0 type bridge\nWIRE link add net1 link x0 netns POD type macvlan", "net1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, pod, k := machine(t)
			for line := range strings.Lines(tc.script) {
				line = strings.ReplaceAll(strings.TrimSpace(line), "POD", pod.Path)
				at := map[string]*kerneltest.Netns{"HOST": node.Netns, "WIRE": node.Wire}
				where, rest, _ := strings.Cut(line, " ")
				if at[where] == nil {
					where, rest, at[where] = "", line, nil
				}
				if ns := at[where]; ns != nil {
					ns.IP(rest)
				} else {
					pod.IP(rest)
				}
			}
			got, err := plan.Only(k.Facts(t.Context(), conf.Request{RDMA: conf.RDMA{Mode: conf.RDMAAuto}, Prev: &conf.Prev{}, Rails: []conf.Rail{{IfName: "net1"}}}))
			if err != nil {
				t.Fatal(err)
			}
			if noARP := strings.Contains(tc.script, "arp off"); got.Adopted.NoARP != noARP {
				t.Errorf("got %+v, without ARP: %v", got.Adopted, noARP)
			}
			if got.Parent.Name != tc.want || got.Parent.InPod != tc.inPod || len(got.Parent.Layers) == 0 || got.Parent.Device != "" {
				t.Errorf("got %+v, want %s in the pod: %v", got.Parent, tc.want, tc.inPod)
			}
		})
	}
}

func TestTheRemedyGivesAnAdoptedLinkItsAddressAgain(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	op := plan.Op{Kind: lend(t, pod, k, 5, shortly)}
	do(t, k, op)
	pod.IP("addr del fd00:9::5/64 dev net1")
	pod.IP("addr add fd00:9::5/64 dev lo") // that of another link
	follow(t, node, k.Check(t.Context(), op))
	do(t, k, op)
	pod.IP("addr del fd00:9::5/64 dev net1")
	pod.IP("link set net1 address 02:00:00:00:00:99")
	says(t, k.Check(t.Context(), op), cnierr.Damaged, "want MAC 02:00:00:00:00:05, got 02:00:00:00:00:99", " link set dev net1 address 02:00:00:00:00:05")
	says(t, k.Do(t.Context(), op), cnierr.TryAgain, "want MAC 02:00:00:00:00:05, got 02:00:00:00:00:99", "")
	follow(t, node, k.Check(t.Context(), op)) // which finds both
	do(t, k, op)
}

func TestAdoptEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	op := lend(t, pod, k, 5, shortly)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Do(gone, plan.Op{Kind: op}); err == nil || !errors.Is(err, context.Canceled) && cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v", err)
	}
}

// infiniband has links of InfiniBand only.
type infiniband struct{ nlsock.Socket }

func (s infiniband) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	replies, err := s.Socket.Exchange(ctx, reqs...)
	for _, r := range replies {
		for _, row := range r.Rows {
			binary.NativeEndian.PutUint16(row[2:], unix.ARPHRD_INFINIBAND)
		}
	}
	return replies, err
}

func TestInfiniBandIsNotAdopted(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	lend(t, pod, k, 5, shortly)
	if err := k.Through(func(s nlsock.Socket) nlsock.Socket { return infiniband{s} }); err != nil {
		t.Fatal(err)
	}
	_, err := plan.Only(k.Facts(t.Context(), conf.Request{Prev: &conf.Prev{}, Rails: []conf.Rail{{IfName: "net1"}}}))
	wantCode(t, err, cnierr.NoRDMA)
}
