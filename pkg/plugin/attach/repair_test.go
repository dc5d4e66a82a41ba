// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

var c1 = conf.Attachment{ContainerID: "c1", IfName: "net1"}

// attached returns a world in which c1 is attached, and what its addresses are.
func attached(t *testing.T) (w *world, v4, v6 string) {
	t.Helper()
	w = newWorld(t)
	res := w.mustCome("c1")
	w.wire.asked = nil
	return w, res.IPs[0].Address.IP.String(), res.IPs[1].Address.IP.String()
}

// damages are what a program may do to an attachment in the pod; ADDR4 and ADDR6
// stand for its addresses.
var damages = map[string]struct {
	script []string
	asks   bool // an address is lost, so the wire must be asked
}{
	"link down and up":   {[]string{"link set net1 down", "link set net1 up"}, false},
	"link down":          {[]string{"link set net1 down"}, false},
	"link gone":          {[]string{"link del net1"}, true},
	"IPv4 address gone":  {[]string{"addr del ADDR4/29 dev net1"}, true},
	"IPv6 address gone":  {[]string{"addr del ADDR6/64 dev net1"}, true},
	"default route gone": {[]string{"route del default dev net1 table 100"}, false},
	"rules gone": {[]string{
		"rule del from ADDR4/32 lookup 100 priority 32000", "rule del from ADDR4/32 priority 32001",
	}, false},
}

func TestRepairRestoresWhatCheckMisses(t *testing.T) {
	t.Parallel()
	for name, d := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, v4, v6 := attached(t)
			w.pod.IP("link add theirs type dummy")
			w.pod.IP("rule add from 10.0.0.1/32 lookup 200 priority 100")
			whole, n := w.fake.String(), w.repairs()
			for _, command := range d.script {
				w.pod.IP(strings.NewReplacer("ADDR4", v4, "ADDR6", v6).Replace(command))
			}
			damaged := w.fake.String()

			_, err := n.CheckRecord(ctx, c1)
			if err == nil || cnierr.CodeOf(err) != cnierr.Damaged {
				t.Errorf("CheckRecord: got %v, want code %d", err, cnierr.Damaged)
			}
			if diff := cmp.Diff(text(n.Check(ctx, w.request("c1", "net1", ""))), text(err)); diff != "" {
				t.Errorf("CheckRecord finds something else than CHECK (-CHECK +CheckRecord):\n%s", diff)
			}
			lost, err := n.Lost(ctx, c1)
			if err != nil || len(lost) == 0 {
				t.Fatalf("Lost: %v, %v", lost, err)
			}
			if diff := cmp.Diff(damaged, w.fake.String()); diff != "" || len(w.wire.asked) > 0 {
				t.Fatalf("looking has changed the pod, or asked for %v (-before +after):\n%s", w.wire.asked, diff)
			}

			done, err := n.Repair(ctx, c1)
			must(t, err)
			if diff := cmp.Diff(lost.Commands("pod"), done.Commands("pod")); diff != "" {
				t.Errorf("Repair did something else than Lost said (-said +did):\n%s", diff)
			}
			if diff := cmp.Diff(lines(whole), lines(w.fake.String())); diff != "" {
				t.Errorf("the pod after Repair (-want +got):\n%s", diff)
			}
			if asked := len(w.wire.asked) > 0; asked != d.asks {
				t.Errorf("asked the wire: %v, want %v", asked, d.asks)
			}
			if done, err := n.Repair(ctx, c1); err != nil || len(done) > 0 {
				t.Errorf("a second Repair does %v, %v", done, err)
			}
		})
	}
}

// lines returns what is in the pods without the order in which it was made.
func lines(kernel string) []string { return slices.Sorted(strings.Lines(kernel)) }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestRepairLeavesARouteOfAnotherProtocol has an operator's route in the place
// of ours, which differs in its protocol number alone.
func TestRepairLeavesARouteOfAnotherProtocol(t *testing.T) {
	t.Parallel()
	w, v4, _ := attached(t)
	w.pod.IP("route del default dev net1 table 100")
	w.pod.IP("route add default via 172.16.11.6 dev net1 table 100 proto 4 src " + v4)
	damaged := w.fake.String()
	if done, err := w.repairs().Repair(ctx, c1); cnierr.CodeOf(err) != cnierr.RouteTaken || len(done) > 0 {
		t.Errorf("did %v, %v, want code %d", done, err, cnierr.RouteTaken)
	}
	if diff := cmp.Diff(damaged, w.fake.String()); diff != "" {
		t.Errorf("Repair changed the pod (-before +after):\n%s", diff)
	}
}

// What is restored is ours, where the kernel's was.
func TestRepairRestoresTheRouteToASubnetAlone(t *testing.T) {
	t.Parallel()
	for kernels, ours := range map[string]string{
		"172.16.11.0/29 dev net1 table 254 proto 2 scope link": "172.16.11.0/29 dev net1 table 254 proto 82 scope link",
		"fd00:11::/64 dev net1 table 254 proto 2 metric 256":   "fd00:11::/64 dev net1 table 254 proto 82 metric 256",
	} {
		w, _, _ := attached(t)
		want := strings.Replace(w.fake.String(), kernels, ours, 1)
		subnet, _, _ := strings.Cut(kernels, " ")
		w.pod.IP("route del " + subnet + " dev net1")
		if done, err := w.repairs().Repair(ctx, c1); err != nil || len(done) != 1 {
			t.Errorf("%s: did %v, %v, want one operation", subnet, done, err)
		}
		if diff := cmp.Diff(lines(want), lines(w.fake.String())); diff != "" || len(w.wire.asked) > 0 {
			t.Errorf("%s: asked for %v; the pod after Repair (-want +got):\n%s", subnet, w.wire.asked, diff)
		}
	}
}

func TestRepairAsksOnlyForTheAddressThatWasLost(t *testing.T) {
	t.Parallel()
	w, _, v6 := attached(t)
	w.pod.IP("addr del " + v6 + "/64 dev net1")
	w.wire.refuse = 1
	before := w.fake.String()
	if _, err := w.repairs().Repair(ctx, c1); err == nil || cnierr.CodeOf(err) != cnierr.AddressTaken {
		t.Errorf("got %v, want code %d: another host took the address", err, cnierr.AddressTaken)
	}
	if diff := cmp.Diff([]string{v6}, w.wire.asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, w.fake.String()); diff != "" {
		t.Errorf("the pod changed (-before +after):\n%s", diff)
	}
}

// A refusal leaves the pod as it is.
func TestRepairRefusesWhatItCannotRestore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(w *world, v4 string)
		code  cnierr.Code
	}{
		"interface is another one": {func(w *world, _ string) { w.pod.IP("link set net1 type macvlan mode private") }, cnierr.Damaged},
		"interface is not ours": {func(w *world, _ string) {
			w.pod.IP("link del net1")
			w.pod.IP("link add net1 type dummy")
		}, cnierr.Damaged},
		"interface was renamed": {func(w *world, _ string) {
			w.pod.IP("link set net1 down")
			w.pod.IP("link set net1 name foo")
		}, cnierr.Damaged},
		"master is gone":    {func(w *world, _ string) { w.fake.Host().IP("link del ens1") }, cnierr.BadParent},
		"namespace is gone": {func(w *world, _ string) { w.fake.RemovePod(podPath("c1")) }, cnierr.Damaged},
		"namespace is another one": {func(w *world, _ string) {
			w.fake.RemovePod(podPath("c1"))
			w.fake.Pod(podPath("c1"))
		}, cnierr.Damaged},
		"address is not leased to it any more": {func(w *world, v4 string) {
			w.pod.IP("addr del " + v4 + "/29 dev net1")
			if err := w.book().ReleaseAddress(ctx, "rail", netip.MustParseAddr(v4)); err != nil {
				t.Error(err)
			}
		}, cnierr.Damaged},
		"ADD did not finish": {func(w *world, _ string) {
			rec, err := w.node().Records.Load(c1)
			rec.Committed = false
			if err = errors.Join(err, w.node().Records.Save(rec)); err != nil {
				t.Error(err)
			}
		}, cnierr.Damaged},
		"record is unreadable": {func(w *world, _ string) {
			write(t, w.file("c1", "net1.json"), "{")
		}, cnierr.Unreadable},
		"kernel refuses to answer": {func(w *world, _ string) { w.fake.FailFrom(3, cnierr.New(cnierr.IO, "ask", "kernel", "", "no")) }, cnierr.IO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, v4, _ := attached(t)
			tt.spoil(w, v4)
			before := w.fake.String()
			for verb, do := range map[string]func() (plan.Ops, error){
				"Lost":   func() (plan.Ops, error) { return w.repairs().Lost(ctx, c1) },
				"Repair": func() (plan.Ops, error) { return w.repairs().Repair(ctx, c1) },
			} {
				if ops, err := do(); err == nil || cnierr.CodeOf(err) != tt.code || len(ops) > 0 {
					t.Errorf("%s: got %v, %v, want code %d", verb, ops, err, tt.code)
				}
			}
			if _, err := w.repairs().CheckRecord(ctx, c1); err == nil {
				t.Error("CheckRecord finds nothing wrong")
			}
			if diff := cmp.Diff(before, w.fake.String()); diff != "" {
				t.Errorf("the pod changed (-before +after):\n%s", diff)
			}
		})
	}
}

// Making the interface again would destroy the one that the pod works with.
func TestRepairOfARenamedInterfaceSaysWhatCheckSays(t *testing.T) {
	t.Parallel()
	w, _, _ := attached(t)
	w.pod.IP("link set net1 down")
	w.pod.IP("link set net1 name foo")
	if _, err := w.repairs().Repair(ctx, c1); !errors.Is(err, kernel.ErrRenamed) {
		t.Errorf("got %v, want kernel.ErrRenamed", err)
	}
	w.pod.IP("link set foo name net1")
	w.pod.IP("link set net1 up")
	if _, err := w.repairs().Repair(ctx, c1); err != nil {
		t.Errorf("after the interface has its name again: %v", err)
	}
	w.pod.IP("link set net1 down")
	w.pod.IP("link set net1 name foo")
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL of a renamed interface")
}

func TestWhatWasNeverAddedHasNoRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.repairs().CheckRecord(ctx, c1); !errors.Is(err, record.ErrNotExist) || cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("got %v, want record.ErrNotExist with code %d", err, cnierr.Damaged)
	}
	w.mustBeEmpty("after looking")
}

func TestRepairThatFailedIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	for i := 1; ; i++ {
		w, _, _ := attached(t)
		whole := w.fake.String()
		w.pod.IP("link del net1")
		w.fake.FailAt(i, errFault)
		before := w.fake.Calls()
		_, err := w.repairs().Repair(ctx, c1)
		if w.fake.Calls()-before < i {
			return // beyond the last call
		}
		if !errors.Is(err, errFault) {
			t.Fatalf("failing at call %d: got %v", i, err)
		}
		if _, err := w.repairs().Repair(ctx, c1); err != nil {
			t.Errorf("after failing at call %d: %v", i, err)
		}
		if diff := cmp.Diff(lines(whole), lines(w.fake.String())); diff != "" {
			t.Errorf("after failing at call %d and another Repair (-want +got):\n%s", i, diff)
		}
	}
}

func TestARailThatCannotBeRestoredDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]struct{ host, pod, says string }{
		"NIC gone":        {"link set ens2 name ens9", "link del net1-1", `"ens2"`},
		"another mode":    {"", "link set net1-1 type macvlan mode private", "mode"},
		"renamed, no NIC": {"link set ens2 name ens9", "link set net1-1 name mine", "renamed"},
	} {
		test := func(t *testing.T, routingOnly bool) {
			t.Parallel()
			w := newRailsWorld(t)
			n := w.repairs()
			n.RoutingOnly = routingOnly
			w.mustCome("c1")
			if d.host != "" {
				w.fake.Host().IP("link set ens2 down")
				w.fake.Host().IP(d.host)
			}
			w.pod.IP("link set net1-1 down")
			w.pod.IP(d.pod)
			w.pod.IP("route del default dev net1-2 table 102")
			lost, err := n.Lost(ctx, c1)
			if err == nil || !strings.Contains(err.Error(), `rail "1 (net1-1)"`) || len(lost) != 1 {
				t.Fatalf("Lost: %v, %v: want the route of net1-2, and why not rail 1", lost.Commands("pod"), err)
			}
			done, err := n.Repair(ctx, c1)
			if err == nil || !strings.Contains(err.Error(), `rail "1 (net1-1)"`) || !strings.Contains(err.Error(), d.says) {
				t.Errorf("Repair: %v, want it to name the rail and %s", err, d.says)
			}
			if diff := cmp.Diff(lost.Commands("pod"), done.Commands("pod")); diff != "" {
				t.Errorf("Repair did something else than Lost said (-said +did):\n%s", diff)
			}
			if _, err := w.repairs().CheckRecord(ctx, c1); err == nil || strings.Contains(err.Error(), "net1-2") {
				t.Errorf("CHECK: %v, want findings about rail 1 alone", err)
			}
		}
		t.Run(name, func(t *testing.T) { test(t, false) })
		t.Run(name+", routing only", func(t *testing.T) { test(t, true) })
	}
}

// TestARenamedRDMADeviceIsNoDamage has udev rename the device while the pod uses it.
func TestARenamedRDMADeviceIsNoDamage(t *testing.T) {
	t.Parallel()
	w := history(t, `"any"`, 1)
	w.hca.now = "rocep1s0f0"
	if changed, err := w.repairs().CheckRecord(ctx, c1); err != nil || len(changed) != 3 || !strings.Contains(changed[0].Error(), "want name mlx5_0, got rocep1s0f0") {
		t.Errorf("check: got %v, %v", changed, err)
	}
	w.mustBeWhole("c1")
	before := w.indexes("c1")
	w.lose("net1", "0.0.0.0/0")
	if done, err := w.repairs().Repair(ctx, c1); err != nil || len(done) == 0 {
		t.Fatalf("repair: got %v, %v", done, err)
	}
	if diff := cmp.Diff(before, w.indexes("c1")); diff != "" {
		t.Errorf("indexes (-before +after):\n%s", diff)
	}
}

// A namespace that was named by its process has the path of the host's when another process
// has got the number.
func TestAPodOfAProcessOfTheHostIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	n := w.repairs()
	if _, err := n.Add(ctx, w.request("c1", "net1", "")); err != nil {
		t.Fatal(err)
	}
	rec, err := n.Records.Load(c1)
	must(t, err)
	rec.Netns = kerneltest.HostPath
	must(t, n.Records.Save(rec))
	if _, err := n.CheckRecord(ctx, c1); !errors.Is(err, kernel.ErrNetnsGone) {
		t.Errorf("got %v, want that the pod is gone", err)
	}
}
