// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// World is a machine with one NIC and one pod without interfaces but lo.
type World struct {
	NIC       conf.LinkName // in the host's namespace, up
	Container conf.ContainerID
	// Open opens the kernel at the path of a namespace.
	Open func(path string) (Kernel, error)
	// Pod and Host are paths of namespaces.
	Pod, Host string
	// IP and HostIP do what ip(8) does with the words, in the pod and in the
	// host. The kernel under test does not know of it.
	IP, HostIP func(command string)
	// Sysctl writes a setting in the pod.
	Sysctl func(path, value string)
	// Show and ShowHost return what is in the pod and in the host. Equal states
	// give equal texts.
	Show, ShowHost func() string
	// OpenHost opens only the host.
	OpenHost func() (Kernel, error)
	// Has says whether the kernel can make links of a kind.
	Has func(kind string) bool
}

// Suite runs the behaviours that every kernel must show, each in a new world.
// They are the law of plan.Op.
func Suite(t *testing.T, world func(t *testing.T) World) {
	t.Helper()
	for name, behaviour := range map[string]func(*testing.T, opened){
		"nothing changes when the context is over":        contextOver,
		"a link of somebody else's stays":                 foreignLink,
		"a link without mark is ours by its MAC":          unmarkedDuplicate,
		"a link with another alias is ours by its MAC":    changedLink,
		"macvlans with an address of ours go":             carried,
		"an ipvlan is made and removed":                   ipvlans,
		"an ipvlan is told from others of its NIC":        unmarkedIpvlan,
		"a lost record leaves the mark of an ipvlan":      lostIpvlan,
		"one ipvlan of a NIC has an address":              addressOfIpvlans,
		"a VLAN is made once and removed":                 vlanMade,
		"a VLAN of ours that others use stays":            vlanInUse,
		"an ipvlan of others keeps its mode":              ipvlanModes,
		"VLANs of the operator are used and stay":         vlanOfOthers,
		"a VLAN of ours is no master":                     vlanAsMaster,
		"a lost record leaves its mark":                   lostRecord,
		"a lost record leaves the marks of all rails":     lostRails,
		"rails are done and undone one by one":            railsOneByOne,
		"rails are done and undone in runs":               railsInRuns,
		"a run that fails leaves what undo removes":       runsThatFail,
		"groups of links of somebody else's stay":         foreignGroups,
		"undoing rails leaves what is not ours":           railsOfOthers,
		"rails that are different are made again":         differentRails,
		"a run is of one kind":                            mixedRun,
		"operations on the host leave the pod alone":      onHost,
		"the host can be opened alone":                    hostAlone,
		"a link between pod and host is done and undone":  hostLinked,
		"a link to the host is removed without the pod":   linkWithoutPod,
		"links with the names of its ends stay":           foreignEnds,
		"a link to the host that is broken is made again": brokenPair,
		"a link to the host of which an end was renamed":  renamedEnd,
		"a renamed link is told from one that is gone":    renamedLink,
		"a link of ours that is different is made again":  differentLink,
		"a route of somebody else's is never replaced":    foreignRoute,
		"a route of ours with another metric stays":       otherMetric,
		"a route of another protocol stays":               otherProtocol,
		"rules of somebody else's and ours live together": foreignRule,
		"twins of a rule go together":                     duplicateRules,
		"an address of another length is refused":         otherLength,
		"what cannot be done is classified":               impossible,
		"settings of other links are out of reach":        foreignSysctl,
		"a link of another plugin's is adopted as it is":  adoption,
		"what is added to an adopted link can be undone":  adoptedAttachment,
		"facts tell what is adopted":                      adoptedFacts,
		"the parent of an adopted child is in the host":   adoptedChild,
		"facts tell what is in the pod":                   facts,
		"facts are of every rail":                         railFacts,
		"facts find the NICs of all rails":                matchedFacts,
		"facts fail for parents that cannot carry":        badParents,
		"namespaces that are none are told apart":         badNamespaces,
		"enter runs the function":                         enter,
	} {
		t.Run(name, func(t *testing.T) { behaviour(t, openWorld(t, world(t))) })
	}
	for _, d := range damages() {
		t.Run("check finds "+d.name, func(t *testing.T) { d.run(t, openWorld(t, world(t))) })
	}
}

// opened is a world with its pod opened.
type opened struct {
	World
	Kernel
}

func openWorld(t *testing.T, w World) opened {
	t.Helper()
	k, err := w.Open(w.Pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return opened{w, k}
}

// Attachment returns the operations of an attachment with an interface on each of the NICs,
// and an address of each family, as plan.Make returns them, but without questions to the
// network. There is one run of each kind. The NICs may be the same.
func Attachment(container conf.ContainerID, nics ...conf.LinkName) plan.Ops {
	var links, settings, ups, addresses, routes, rules plan.Ops
	for i, nic := range nics {
		name, mark := conf.LinkName("net1"), plan.Mark(conf.Attachment{ContainerID: container, IfName: "net1"})
		if i > 0 {
			name, mark = conf.LinkName(fmt.Sprintf("net1-%d", i)), fmt.Sprintf("%s/%d", mark, i)
		}
		table := uint32(100 + i)
		links = append(links, plan.Op{Kind: plan.Child{Name: name, Parent: nic, Mode: conf.Bridge, MTU: 1500, MAC: conf.MAC{2, 0, 0, 0, byte(i), 5}, Mark: mark}})
		settings = append(settings, plan.Op{Kind: settingsOf(name)})
		ups = append(ups, plan.Op{Kind: plan.Up{Link: name}})
		for _, p := range []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.9.%d.5/24", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:9:%d::5/64", i))} {
			addresses = append(addresses, plan.Op{Kind: plan.Address{Link: name, Prefix: p}})
			connected := plan.Route{Link: name, Table: table, Dst: p.Masked(), Src: p.Addr()}
			if p.Addr().Is4() {
				connected.Scope = plan.ScopeLink
			}
			via := plan.Route{Link: name, Table: table, Dst: netip.PrefixFrom(p.Addr(), 0).Masked(), Via: p.Masked().Addr().Next(), Src: p.Addr(), MTU: 1400}
			routes = append(routes, plan.InPod(connected, via)...)
			if i == 0 {
				via.Table, via.Metric, via.MTU = plan.MainTable, 50, 0
				routes = append(routes, plan.Op{Kind: via})
			}
			rules = append(rules, rulesOf(p.Addr(), table)...)
		}
		addresses = append(addresses, plan.Op{Kind: plan.Address{Link: name, Prefix: netip.MustParsePrefix("fe80::5/64")}})
	}
	return slices.Concat(links, settings, ups, addresses, routes, rules)
}

// rulesOf returns the rules for packets from an address.
func rulesOf(from netip.Addr, table uint32) plan.Ops {
	p := netip.PrefixFrom(from, from.BitLen())
	return plan.InPod(plan.Rule{From: p, Table: table, Priority: 32000}, plan.Rule{From: p, Priority: 32001})
}

func settingsOf(link conf.LinkName) plan.Sysctl {
	s := plan.Sysctl{Link: link}
	for _, v := range []string{
		"ipv4/conf/%s/arp_announce 2", "ipv4/conf/%s/arp_ignore 1", "ipv4/conf/%s/arp_notify 1", "ipv4/conf/%s/rp_filter 2",
		"ipv6/conf/%s/accept_ra 0", "ipv6/conf/%s/addr_gen_mode 1", "ipv6/conf/%s/disable_ipv6 0", "ipv6/conf/%s/keep_addr_on_down 1", "ipv6/conf/%s/ndisc_notify 1",
	} {
		key, value, _ := strings.Cut(fmt.Sprintf(v, link), " ")
		s.Set = append(s.Set, plan.Setting{Path: "net/" + key, Value: value})
	}
	return s
}

// attach does the attachment.
func (w opened) attach(t *testing.T) plan.Ops {
	t.Helper()
	ops := Attachment(w.Container, w.NIC)
	w.must(t, ops...)
	return ops
}

// must does operations, in runs.
func (w opened) must(t *testing.T, ops ...plan.Op) {
	t.Helper()
	for _, run := range plan.Ops(ops).Runs() {
		if err := w.Do(t.Context(), run...); err != nil {
			t.Fatalf("do %+v: %v", run, err)
		}
	}
}

// holds wants Check to find nothing.
func (w opened) holds(t *testing.T, ops ...plan.Op) {
	t.Helper()
	for _, run := range plan.Ops(ops).Runs() {
		if err := w.Check(t.Context(), run...); err != nil {
			t.Errorf("check %+v: %v", run, err)
		}
	}
}

func (w opened) undo(t *testing.T, ops plan.Ops) {
	t.Helper()
	for _, run := range slices.Backward(ops.Runs()) {
		if err := w.Undo(t.Context(), run...); err != nil {
			t.Errorf("undo %+v: %v", run, err)
		}
	}
}

// cycle does and undoes operations, and does so by their teardown. Each is done twice, which
// is as once.
func (w opened) cycle(t *testing.T, ops plan.Ops) {
	t.Helper()
	pod, host := w.Show(), w.ShowHost()
	for _, undone := range []plan.Ops{ops, ops.Teardown()} {
		w.must(t, ops...)
		w.must(t, ops...)
		w.holds(t, ops...)
		if w.Show() == pod {
			t.Error("what was done cannot be seen")
		}
		w.undo(t, undone)
		w.undo(t, undone)
		w.asBefore(t, pod, host)
	}
}

// refuses wants an operation to fail with a code and to change nothing.
func (w opened) refuses(t *testing.T, op plan.Op, code cnierr.Code) {
	t.Helper()
	before := w.Show()
	wantCode(t, w.Do(t.Context(), op), code)
	w.unchanged(t, before)
}

func (w opened) unchanged(t *testing.T, before string) {
	t.Helper()
	if diff := cmp.Diff(before, w.Show()); diff != "" {
		t.Errorf("the pod has changed (-before +after):\n%s", diff)
	}
}

func wantCode(t *testing.T, err error, code cnierr.Code) {
	t.Helper()
	var e *cnierr.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got error %v with code %d, want code %d", err, cnierr.CodeOf(err), code)
	}
}

func contextOver(t *testing.T, w opened) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	before := w.Show()
	for _, op := range Attachment(w.Container, w.NIC) {
		wantCode(t, w.Do(over, op), cnierr.TryAgain)
	}
	w.unchanged(t, before)
	ops := w.attach(t)
	before = w.Show()
	wantCode(t, w.Undo(over, ops[0]), cnierr.TryAgain)
	wantCode(t, w.Check(over, ops[0]), cnierr.TryAgain)
	w.unchanged(t, before)
}

func badNamespaces(t *testing.T, w opened) {
	_, err := w.Open(w.Pod + ".gone")
	wantCode(t, err, cnierr.BadNetns)
	if !errors.Is(err, kernel.ErrNetnsGone) {
		t.Errorf("open a path that does not exist: %v, want ErrNetnsGone", err)
	}
	_, err = w.Open(w.Host)
	wantCode(t, err, cnierr.BadNetns)
	if !errors.Is(err, kernel.ErrHostNetns) {
		t.Errorf("open the host's own namespace: %v, want ErrHostNetns", err)
	}
	other, err := w.Open(w.Pod)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.ID() != w.ID() || w.ID() == (netns.ID{}) {
		t.Errorf("IDs of the same namespace: %v and %v", w.ID(), other.ID())
	}
}

func enter(t *testing.T, w opened) {
	cause := errors.New("cause")
	if err := w.Enter(func() error { return cause }); !errors.Is(err, cause) {
		t.Errorf("Enter returned %v, want the function's error", err)
	}
}
