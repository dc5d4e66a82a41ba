// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

const nic = "nic0"

// machine returns a node with a NIC and an open pod. The test is in the node's
// namespace from then on.
func machine(t testing.TB) (*kerneltest.Node, *kerneltest.Netns, *kernel.Kernel) {
	t.Helper()
	node := kerneltest.NewNode(t)
	node.NIC(nic)
	pod := node.Pod()
	return node, pod, open(t, pod)
}

func open(t testing.TB, pod *kerneltest.Netns) *kernel.Kernel {
	t.Helper()
	k, err := kernel.Open(pod.Path, fstest.MapFS{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func do(t testing.TB, k *kernel.Kernel, ops ...plan.Op) {
	t.Helper()
	for _, run := range plan.Ops(ops).Runs() {
		if err := k.Do(t.Context(), run...); err != nil {
			t.Fatalf("do %+v: %v", run, err)
		}
	}
}

func undo(t testing.TB, k *kernel.Kernel, ops plan.Ops) {
	t.Helper()
	for _, run := range slices.Backward(ops.Runs()) {
		if err := k.Undo(t.Context(), run...); err != nil {
			t.Errorf("undo %+v: %v", run, err)
		}
	}
}

func child(t testing.TB) plan.Child {
	return kerneltest.Attachment(kerneltest.Container(t), nic)[0].Kind.(plan.Child)
}

func wantCode(t *testing.T, err error, code cnierr.Code) {
	t.Helper()
	var e *cnierr.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got %v, code %d, want code %d", err, cnierr.CodeOf(err), code)
	}
}

// On a RoCE node, a NIC has an index that the pod also uses. Here both are 2.
func TestHintsOfCheckRestoreWhatIsMissing(t *testing.T) {
	t.Parallel()
	damages := map[string][]string{
		"link gone":       {"link del net1"},
		"link of another": {"link del net1", "link add net1 type bridge"},
		"link down":       {"link set net1 down"},
		"link different":  {"link set net1 mtu 1400 address 02:00:00:00:00:99", "link set net1 type macvlan mode private"},
		"mark gone":       {`link set net1 alias ""`},
		"addresses gone":  {"addr flush dev net1"},
		"settings gone":   {"link set net1 addrgenmode eui64"},
		"rules gone":      {"rule flush", "rule add lookup main priority 32766", "-6 rule flush", "-6 rule add lookup main priority 32766"},
		"routes gone":     {"route flush table 100", "-6 route flush table 100", "route del default metric 50"},
		"a rule in front": {
			"link add eth9 type bridge", "link set eth9 up", "addr add 10.8.0.5/24 dev eth9", "route add default via 10.8.0.1 dev eth9",
			"rule add lookup main priority 5",
		},
		"a rule in front beside others": {
			"link add eth9 type bridge", "link set eth9 up", "addr add 10.8.0.5/24 dev eth9", "route add default via 10.8.0.1 dev eth9",
			"rule add from 10.9.0.0/24 lookup main priority 5", "rule add from 10.7.0.0/24 lookup main priority 5", "rule add from 10.6.0.0/24 lookup main priority 5",
		},
		"subnets' routes gone": {"route del 10.9.0.0/24 dev net1", "-6 route del fd00:9:1::/64 dev net1-1"},
		"a blackhole":          {"route add blackhole 10.7.0.0/24 table 100"},
		"a route for a TOS":    {"link add eth9 type bridge", "link set eth9 up", "route add 10.7.0.0/24 tos 0x10 dev eth9 table 100"},
		"another length":       {"addr del 10.9.0.5/24 dev net1", "addr add 10.9.0.5/25 dev net1"},
		"a rule that leads past ours": {
			"link add eth9 type bridge", "link set eth9 up", "addr add 10.8.0.5/24 dev eth9", "route add default via 10.8.0.1 dev eth9",
			"rule add not from 10.7.0.0/24 goto 32766 priority 5 protocol 77",
		},
		"a rule in front for other subnets": {
			"link add eth9 type bridge", "link set eth9 up", "route add default dev eth9 table 77", "rule add to 203.0.113.0/24 lookup 77 priority 5",
		},
		"a rule in front for the subnet": {
			"link add eth9 type bridge", "link set eth9 up", "route add default dev eth9 table 77", "rule add to 10.9.0.0/24 lookup 77 priority 5",
		},
		"another gateway":             {"route del default table 100", "route add default via 10.9.0.9 dev net1 table 100"},
		"several gateways":            {"route del default table 100", "route add default table 100 nexthop via 10.9.0.1 dev net1 nexthop via 10.9.0.2 dev net1"},
		"a route to nowhere":          {"route del default table 100", "route add prohibit default table 100"},
		"the end on the host renamed": {"HOST link set veth1 down", "HOST link set veth1 name other1"},
		"the end in the pod gone":     {"link del host0"},
		"what is on the host gone":    {"HOST route flush table 8200", "HOST link set veth1 down"},
		"neighbours gone":             {"neigh flush dev host0 nud permanent"},
		"half of a rule":              {"rule del from 10.9.0.5/32 unreachable priority 32001"},
		"a route different":           {"route del default table 100"},
	}
	for name, commands := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := kerneltest.NewNode(t)
			node.NIC(nic)
			id := fmt.Sprintf("roce-kernel-test-%d-%s", os.Getpid(), strings.ReplaceAll(name, " ", "-"))
			pod := node.PodAt(filepath.Join(netnsDir(t), id))
			k := open(t, pod)
			ops := steps(t)
			do(t, k, ops...)
			for _, c := range commands {
				if on, is := strings.CutPrefix(c, "HOST "); is {
					node.IP(on)
				} else {
					pod.IP(c)
				}
			}
			found := 0
			for _, op := range ops {
				err := k.Check(t.Context(), op)
				if err == nil {
					continue
				}
				found++
				follow(t, node, err)
				if err := k.Check(t.Context(), op); err != nil {
					t.Errorf("after following the hint: %v", err)
				}
			}
			if found == 0 {
				t.Error("check found nothing")
			}
		})
	}
}

// netnsDir returns the folder in which ip -n looks.
func netnsDir(t *testing.T) string {
	t.Helper()
	const dir = "/run/netns"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("ip -n needs %s: %v", dir, err)
	}
	return dir
}

// follow runs the commands in the hint of an error, and of each that is joined in it.
func follow(t *testing.T, node *kerneltest.Node, err error) {
	t.Helper()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			follow(t, node, err)
		}
		return
	}
	var e *cnierr.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	_, commands, ok := strings.Cut(e.Hint, ": ")
	if !ok {
		t.Fatalf("%v: no commands in hint %q", err, e.Hint)
	}
	node.Exec("sh", "-ec", commands)
}

func TestLinkThatCannotBeMarkedIsRemoved(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	op := child(t)
	op.Mark = strings.Repeat("x", 300) // IFALIASZ is 256
	if err := k.Do(t.Context(), plan.Op{Kind: op}); err == nil {
		t.Fatal("an alias of 300 bytes was taken")
	}
	if links := pod.IP("-o link"); strings.Contains(links, "net1") {
		t.Errorf("the link is still there:\n%s", links)
	}
	pair := plan.Veth{Name: "veth1", MAC: conf.MAC{2, 0, 0, 0, 2, 1}, PodEnd: "host0", PodMAC: conf.MAC{2, 0, 0, 0, 2, 2}, MTU: 1500, Mark: op.Mark}
	if err := k.Do(t.Context(), plan.OnHost(pair)...); err == nil {
		t.Fatal("an alias of 300 bytes was taken")
	}
	if links := node.IP("-o link"); strings.Contains(links, "veth1") {
		t.Errorf("the pair is still there:\n%s", links)
	}
}

func TestLinkMadeAsideIsLikeAnyOther(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	if err := k.CreateAside(t.Context(), child(t)); err != nil {
		t.Fatal(err)
	}
	if err := k.Check(t.Context(), plan.Op{Kind: child(t)}); err != nil {
		t.Error(err)
	}
	other := child(t)
	other.MAC[5]++
	if err := k.CreateAside(t.Context(), other); err == nil {
		t.Error("made a second link of the same name")
	}
	if links := strings.Count(pod.IP("-o link"), "\n"); links != 2 {
		t.Errorf("%d links, want lo and net1:\n%s", links, pod.IP("-o link"))
	}
}

// Before 6.15 the kernel makes the link in the host first.
func TestLinkMayHaveTheNameOfALinkOfTheHost(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	node.IP("link add net1 type bridge")
	do(t, k, plan.Op{Kind: child(t)})
	if err := k.Check(t.Context(), plan.Op{Kind: child(t)}); err != nil {
		t.Error(err)
	}
}

func TestParentMayHaveAnAltname(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	for _, name := range []string{"short", "a-name-of-more-than-fifteen-bytes"} {
		node.IP("link property add dev " + nic + " altname " + name)
		f, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: conf.LinkName(name)}}}}))
		if err != nil || f.Parent.Name != nic {
			t.Errorf("parent %q: got %q, %v, want its real name", name, f.Parent.Name, err)
		}
	}
}

func TestParentMayBeAMacvlanInThePod(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	do(t, k, plan.Op{Kind: child(t)}, plan.Op{Kind: plan.Up{Link: "net1"}})
	node.IP("addr add 10.2.0.1/24 dev " + nic)
	pod.IP("addr add 10.9.0.5/24 dev net1")
	nested := child(t)
	nested.Name, nested.Parent, nested.InPod, nested.MAC[5], nested.Mark = "net2", "net1", true, 6, plan.Mark(conf.Attachment{ContainerID: kerneltest.Container(t), IfName: "net2"})
	f, err := plan.Only(k.Facts(t.Context(), conf.Request{LinkInContainer: true, Rails: []conf.Rail{{IfName: "net2", Parent: conf.Parent{Name: "net1"}}}}))
	want := plan.Link{Name: "net1", Index: f.Parent.Index, MAC: child(t).MAC, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}, Layers: [][]int32{{f.Parent.Index}}}
	if diff := cmp.Diff(want, f.Parent, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	for _, taken := range []string{"10.2.0.1", "10.9.0.5"} {
		if !slices.Contains(f.HostAddrs, netip.MustParseAddr(taken)) {
			t.Errorf("%v has not %s", f.HostAddrs, taken)
		}
	}
	do(t, k, plan.Op{Kind: nested})
	do(t, k, plan.Op{Kind: nested})
	if err := k.Check(t.Context(), plan.Op{Kind: nested}); err != nil {
		t.Error(err)
	}
	pod.IP("link set net1 down")
	says(t, k.Check(t.Context(), plan.Op{Kind: nested}), cnierr.Damaged, "its NIC net1 is down", "restore it: "+plan.IP(plan.NetnsName(pod.Path))+" link set dev net1 up")
}

func TestPortOfABridgeIsRefusedWithTheBridgesName(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	node.IP("link add br0 type bridge")
	node.IP("link set " + nic + " master br0")
	_, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: nic}}}}))
	wantCode(t, err, cnierr.BadParent)
	var e *cnierr.Error
	if errors.As(err, &e) && !strings.Contains(e.Hint, "br0") {
		t.Errorf("hint %q does not name the bridge", e.Hint)
	}
	wantCode(t, k.Do(t.Context(), plan.Op{Kind: child(t)}), cnierr.BadParent)
}

func TestCheckFindsAnotherParent(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	node.NIC("nic1")
	third := node.Pod()
	third.IP(fmt.Sprintf("link add twin index %d type bridge", facts(t, k).Index))
	for other, in := range map[string]*kerneltest.Netns{"nic1": node.Netns, "twin": third} {
		in.IP("link add link " + other + " name net1 netns " + pod.Path + " address " + child(t).MAC.String() + " type macvlan mode bridge")
		pod.IP("link set net1 alias " + child(t).Mark)
		if err := k.Check(t.Context(), plan.Op{Kind: child(t)}); err == nil {
			t.Errorf("check takes a link on %s for ours", other)
		}
		do(t, k, plan.Op{Kind: child(t)})
		if err := k.Check(t.Context(), plan.Op{Kind: child(t)}); err != nil {
			t.Error(err)
		}
		pod.IP("link del net1")
	}
}

// facts returns the NIC as ADD sees it.
func facts(t *testing.T, k *kernel.Kernel) plan.Link {
	t.Helper()
	f, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: nic}}}}))
	if err != nil {
		t.Fatal(err)
	}
	return f.Parent
}

func TestAnotherLinkWithTheIndexOfTheNICIsNotTheNIC(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	op, was := child(t), facts(t, k)
	op.NIC = plan.NIC{Index: was.Index, MAC: was.MAC}
	node.IP("link del " + nic)
	node.IP(fmt.Sprintf("link add other0 index %d type bridge", was.Index))
	wantCode(t, k.Do(t.Context(), plan.Op{Kind: op}), cnierr.BadParent)
}

func TestTheNICIsKnownByItsIndexOrItsMAC(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	op, was := child(t), facts(t, k)
	do(t, k, plan.Op{Kind: op})
	node.IP("link set " + nic + " address 02:00:00:00:00:77")
	for _, op.NIC = range []plan.NIC{{Index: was.Index, MAC: was.MAC}, {Index: was.Index + 500, MAC: conf.MAC{2, 0, 0, 0, 0, 0x77}}} {
		if err := k.Check(t.Context(), plan.Op{Kind: op}); err != nil {
			t.Errorf("as %+v: %v", op.NIC, err)
		}
	}
	op.NIC = plan.NIC{Index: was.Index + 500, MAC: was.MAC}
	wantCode(t, k.Check(t.Context(), plan.Op{Kind: op}), cnierr.BadParent)
}

// A pod has links of its own, of which one may have the index of the NIC.
func TestALinkOnALinkOfThePodDoesNotUseTheNIC(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	node.IP("link add index 77 name spare type bridge")
	pod.IP("link add index 77 name eth9 type bridge")
	pod.IP("link add onpod link eth9 type macvlan")
	l := rtnl.Link{Index: 77, Name: "spare"}
	node.IP("link set spare up") // with an address that the kernel gives
	if err := k.Unused(t.Context(), l); err != nil {
		t.Errorf("a link of the pod stands on another link: %v", err)
	}
	for use, end := range map[string]string{
		"addr add 192.0.2.1/24 dev spare": "addr del 192.0.2.1/24 dev spare",
		"addr add fd00::1/64 dev spare":   "addr del fd00::1/64 dev spare",
	} {
		node.IP(use)
		if err := k.Unused(t.Context(), l); !errors.Is(err, kernel.ErrInUse) {
			t.Errorf("%s: got %v", use, err)
		}
		node.IP(end)
	}
	if err := k.Unused(t.Context(), rtnl.Link{Index: 77, Master: 78, SlaveKind: "bridge"}); !errors.Is(err, kernel.ErrInUse) {
		t.Errorf("a port of a bridge: got %v", err)
	}
	third := node.PodAt(filepath.Join(t.TempDir(), "third"))
	node.IP("link add far0 link spare type macvlan")
	node.IP("link set far0 netns " + third.Path)
	if err := k.Unused(t.Context(), l); !errors.Is(err, kernel.ErrInUse) || !strings.Contains(err.Error(), `"far0" in the namespace `+third.Path) {
		t.Errorf("got %v, want that far0 stands on it", err)
	}
	third.IP("link del far0")
	node.IP("link add onhost link spare type macvlan")
	node.IP("link set onhost netns " + pod.Path)
	if err := k.Unused(t.Context(), l); !errors.Is(err, kernel.ErrInUse) || !strings.Contains(err.Error(), "onhost") {
		t.Errorf("got %v, want that onhost stands on it", err)
	}
}

// roce keeps a value that it can keep, in whichever form it is written.
func TestSettingsOfUsersAreKeptOrRefused(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	do(t, k, plan.Op{Kind: child(t)})
	for _, tt := range []struct {
		key, value string
		code       cnierr.Code
		others     string // values that Check takes for others
	}{
		{"ipv4/conf/net1/arp_ignore", "0x2", 0, "1 0x1 x"},
		{"ipv6/conf/net1/stable_secret", "fd00:0::1", 0, "fd00::2 1"},
		{"ipv6/neigh/net1/retrans_time_ms", "1500", 0, "1501"},
		{"ipv6/neigh/net1/retrans_time_ms", "1", cnierr.BadConfig, ""}, // less than the kernel's clock ticks
		{"ipv4/conf/net1/arp_ignore", "many", cnierr.BadConfig, ""},
		{"ipv4/conf/net1/no_such", "1", cnierr.BadConfig, ""},
	} {
		op := plan.Sysctl{Link: "net1", Up: true, Set: []plan.Setting{{Path: "net/" + tt.key, Value: tt.value}}}
		err := k.Do(t.Context(), plan.Op{Kind: op})
		if tt.code != 0 {
			wantCode(t, err, tt.code)
			continue
		}
		if err := errors.Join(err, k.Check(t.Context(), plan.Op{Kind: op})); err != nil {
			t.Errorf("%s=%s: %v", tt.key, tt.value, err)
		}
		for _, other := range strings.Fields(tt.others) {
			op.Set[0].Value = other
			wantCode(t, k.Check(t.Context(), plan.Op{Kind: op}), cnierr.Damaged)
		}
	}
	// One that the user may change meanwhile is not compared, and each operation of a run is looked at.
	set := func(up bool, path, value string, again bool) plan.Op {
		return plan.Op{Kind: plan.Sysctl{Link: "net1", Up: up, Set: []plan.Setting{{Path: "net/" + path, Value: value, Again: again}}}}
	}
	run := []plan.Op{set(false, "ipv4/conf/net1/arp_ignore", "1", true), set(true, "ipv6/neigh/net1/retrans_time_ms", "1", false)}
	wantCode(t, k.Do(t.Context(), run...), cnierr.BadConfig)
	run[1] = set(true, "ipv4/conf/net1/arp_notify", "1", false)
	do(t, k, run...)
	pod.Exec("sh", "-ec", "echo 0 >/proc/sys/net/ipv4/conf/net1/arp_ignore")
	if err := k.Check(t.Context(), run...); err != nil {
		t.Error(err)
	}
	run[0] = set(false, "ipv4/conf/net1/arp_ignore", "1", false)
	wantCode(t, k.Check(t.Context(), run...), cnierr.Damaged)
}

func TestLinksMayHaveDotsInTheirNames(t *testing.T) {
	t.Parallel()
	_, _, k := machine(t)
	op := child(t)
	op.Name = "net1.5"
	set := plan.Sysctl{Link: op.Name, Set: []plan.Setting{{Path: "net/ipv4/conf/net1.5/arp_ignore", Value: "1"}}}
	do(t, k, plan.Op{Kind: op}, plan.Op{Kind: set})
	if err := k.Check(t.Context(), plan.Op{Kind: set}); err != nil {
		t.Error(err)
	}
}

func TestSecondPodWithTheSameMACWaits(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	other := open(t, node.Pod())
	do(t, k, plan.Op{Kind: child(t)}, plan.Op{Kind: plan.Up{Link: "net1"}})
	do(t, other, plan.Op{Kind: child(t)})
	wantCode(t, other.Do(t.Context(), plan.Op{Kind: plan.Up{Link: "net1"}}), cnierr.TryAgain)
}

func TestMasterOfTheDefaultRouteOfLowestMetric(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	node.NIC("nic1")
	node.IP("addr add 10.1.0.1/24 dev " + nic)
	node.IP("addr add 10.2.0.1/24 dev nic1")
	node.IP("route add default via 10.1.0.254 metric 20")
	node.IP("route add default via 10.2.0.254 metric 10")
	f, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1"}}}))
	if err != nil || f.Parent.Name != "nic1" {
		t.Errorf("got %q, %v, want nic1", f.Parent.Name, err)
	}
}

func TestRulesThatLookAtMoreThanTheSourceAreNoFacts(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	for _, r := range []string{
		"from 10.0.0.0/8 fwmark 1 lookup 201", "from 10.0.0.0/8 iif lo lookup 202", "to 10.0.0.0/8 lookup 203",
		"ipproto tcp lookup 204", "nop", "from 10.0.0.0/8 tos 0x10 lookup 205", "uidrange 1-2 lookup 206",
	} {
		pod.IP("rule add " + r + " priority 10")
	}
	pod.IP("rule add not from 10.0.0.0/8 lookup 301 priority 11")
	pod.IP("rule add lookup main suppress_prefixlength 0 priority 12")
	pod.IP("-6 rule add from fd00::/64 unreachable priority 13")
	f, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: nic}}}}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range f.Pod.Rules {
		got = append(got, r.From.String())
	}
	if want := "0.0.0.0/0 0.0.0.0/0 fd00::/64"; strings.Join(got, " ") != want {
		t.Errorf("got rules from %q, want %q", got, want)
	}
	if len(f.Pod.Tables) != 7 {
		t.Errorf("got tables %v, want those of all rules", f.Pod.Tables)
	}
}

func TestSeveralPathsAreOneDefaultAndNoneOfOurs(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	do(t, k, kerneltest.Attachment(kerneltest.Container(t), nic)...)
	pod.IP("route del default table 100")
	pod.IP("route add default table 100 proto 82 nexthop via 10.9.0.1 dev net1 nexthop via 10.9.0.2 dev net1")
	pod.IP("route add default nexthop via 10.9.0.3 dev net1 nexthop via 10.9.0.4 dev net1")
	ours := plan.Route{Link: "net1", Table: 100, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.9.0.1")}
	if err := k.Check(t.Context(), plan.Op{Kind: ours}); err == nil {
		t.Error("check takes a route with two paths for ours")
	}
	wantCode(t, k.Do(t.Context(), plan.Op{Kind: ours}), cnierr.RouteTaken)
	pod.IP("route add default via 10.9.0.3 dev net1 table 101") // and nothing else
	ours.Table = 101
	wantCode(t, k.Do(t.Context(), plan.Op{Kind: ours}), cnierr.RouteTaken)
	f, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net2", Parent: conf.Parent{Name: nic}}}}))
	if err != nil {
		t.Fatal(err)
	}
	want := plan.DefaultRoute{Link: "net1", Via: netip.MustParseAddr("10.9.0.3")}
	if len(f.Pod.Defaults) == 0 || f.Pod.Defaults[0] != want {
		t.Errorf("defaults %+v, want %+v first", f.Pod.Defaults, want)
	}
}

func TestPodsAreMadeAtTheSameTime(t *testing.T) {
	t.Parallel()
	node, _, _ := machine(t)
	done := make(chan error)
	const pods = 8
	for i := range pods {
		k := open(t, node.Pod())
		ops := kerneltest.Attachment(kerneltest.Container(t), nic)
		m := ops[0].Kind.(plan.Child)
		m.MAC[5] = byte(i)
		ops[0] = plan.Op{Kind: m}
		go func() {
			var errs []error
			for _, op := range ops {
				errs = append(errs, k.Do(t.Context(), op), k.Check(t.Context(), op))
			}
			for i := len(ops) - 1; i >= 0; i-- {
				errs = append(errs, k.Undo(t.Context(), ops[i]))
			}
			done <- errors.Join(errs...)
		}()
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
