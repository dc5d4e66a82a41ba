// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// chain is a world in which another plugin has made net1 of c1, with an address
// of each family and a route.
func chain(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.made("c1")
	return w
}

// made does what the plugin before roce does for a new pod.
func (w *world) made(id string) {
	w.pod = w.fake.Pod(podPath(id))
	for _, command := range []string{
		"link add net1 type sriov", "link set net1 up",
		"addr add 172.16.11.3/24 dev net1", "addr add fd00:11::3/64 dev net1",
		"route add 10.0.0.0/8 via 172.16.11.254 dev net1",
	} {
		w.pod.IP(command)
	}
}

const behind = `{"cniVersion": "1.0.0", "name": "rail", "type": "roce", "rdma": %q, "deviceID": "0000:0b:00.2",
	"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "ens1"}, {"name": "net1", "sandbox": "/x"}],
		"ips": [{"address": "10.9.9.9/24", "interface": 0}, {"address": "172.16.11.%d/24", "gateway": "172.16.11.254", "interface": 1}, {"address": "fd00:11::3/64"}],
		"routes": [{"dst": "10.0.0.0/8", "gw": "172.16.11.254"}], "dns": {"domain": "rail"}}%s}`

// adopted returns the request to adopt net1; host is the last part of its IPv4
// address.
func (w *world) adopted(id string, host int, extra string) conf.Request {
	w.t.Helper()
	r, err := conf.Parse(conf.Input{
		Command: "ADD", ContainerID: id, IfName: "net1", Netns: podPath(id), Stdin: fmt.Appendf(nil, behind, w.mode, host, extra),
	})
	must(w.t, err)
	return r
}

// mustBeAsMade checks that nothing is left of ours but settings of the link,
// which the plugin before takes away with it.
func (w *world) mustBeAsMade(when string) {
	w.t.Helper()
	lines := slices.DeleteFunc(strings.Split(w.pod.String(), "\n"), func(l string) bool { return strings.HasPrefix(l, "sysctl ") })
	fresh := newWorld(w.t)
	fresh.made("c1")
	if diff := cmp.Diff(fresh.pod.String(), strings.Join(lines, "\n")); diff != "" {
		w.t.Errorf("%s, the pod is not as it was (-made +got):\n%s", when, diff)
	}
	w.pod.IP("link del net1")
	w.mustBeEmpty(when)
}

func TestAnAdoptedLinkGetsWhatOursGets(t *testing.T) {
	t.Parallel()
	w := chain(t)
	res := w.mustAdd(w.adopted("c1", 3, ""))
	if diff := cmp.Diff(w.adopted("c1", 3, "").Prev.Result, res); diff != "" {
		t.Errorf("the result is not the one that came in (-in +out):\n%s", diff)
	}
	for _, want := range []string{
		"route default via 172.16.11.254 dev net1 table 100 proto 82", "route 10.0.0.0/8 via 172.16.11.254 dev net1 table 100 proto 82",
		"rule from 172.16.11.3/32 lookup 100", "rule from fd00:11::3/128 unreachable", "net1/rp_filter=2",
	} {
		if !strings.Contains(w.pod.String(), want) {
			t.Errorf("want %q in\n%s", want, w.pod)
		}
	}
	if len(w.wire.asked) > 0 {
		t.Errorf("the wire was asked for the owner of %v", w.wire.asked)
	}
	w.mustBeWhole("c1")
	for range 2 {
		w.mustLeave("c1")
	}
	w.mustBeAsMade("after DEL")
}

func TestFailureAtEveryOpLeavesAnAdoptedLinkAsItWas(t *testing.T) {
	t.Parallel()
	whole := chain(t)
	before := whole.fake.Calls()
	if _, err := whole.node().Add(ctx, whole.adopted("c1", 3, "")); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= whole.fake.Calls()-before; i++ {
		w := chain(t)
		w.fake.FailAt(i, errFault)
		if _, err := w.node().Add(ctx, w.adopted("c1", 3, "")); !errors.Is(err, errFault) {
			t.Errorf("failing at call %d: got %v", i, err)
		}
		w.mustBeAsMade(fmt.Sprintf("after failing at call %d", i))
	}
}

func TestASilentGatewayLeavesAnAdoptedLinkAsItWas(t *testing.T) {
	t.Parallel()
	w := chain(t)
	w.wire.silent = true
	_, err := w.node().Add(ctx, w.adopted("c1", 3, ""))
	if cnierr.CodeOf(err) != cnierr.GatewaySilent {
		t.Errorf("got %v, want code %d", err, cnierr.GatewaySilent)
	}
	w.mustLeave("c1")
	w.mustBeAsMade("after ADD failed")
}

// adoptions runs fn for a crash before every operation of an ADD that adopts a
// link and moves its RDMA device.
func adoptions(t *testing.T, fn func(w *world, when string)) {
	t.Helper()
	for at := 1; ; at++ {
		w := chain(t)
		w.hca.exclusive, w.mode = true, conf.RDMAExclusive
		w.crash = at
		died := w.run(func(n attach.Node) { _, _ = n.Add(ctx, w.adopted("c1", 3, "")) })
		if !died {
			if w.hca.in == (netns.ID{}) || at < 10 {
				t.Fatalf("an ADD has only %d operations, or did not move the device", at-1)
			}
			return
		}
		w.crash = 0
		fn(w, fmt.Sprintf("after a crash before operation %d", at))
	}
}

func TestDelAfterACrashLeavesAnAdoptedLinkAsItWas(t *testing.T) {
	t.Parallel()
	adoptions(t, func(w *world, when string) {
		w.mustLeave("c1", when)
		w.mustBeAsMade("after DEL " + when)
	})
}

func TestGCAfterACrashLeavesAnAdoptedLinkAsItWas(t *testing.T) {
	t.Parallel()
	adoptions(t, func(w *world, when string) {
		w.now++
		if err := w.node().GC(ctx, w.gc("rail")); err != nil {
			t.Errorf("GC %s: %v", when, err)
		}
		w.mustBeAsMade("after GC " + when)
	})
}

func TestTheDeviceOfAnAdoptedLinkComesBackFromANamespaceThatIsGone(t *testing.T) {
	t.Parallel()
	adoptions(t, func(w *world, when string) {
		w.fake.RemovePod(podPath("c1"))
		w.mustLeave("c1", when)
		w.mustBeEmpty("after DEL " + when)
	})
}

func TestAddAfterACrashAdoptsTheLinkAgain(t *testing.T) {
	t.Parallel()
	adoptions(t, func(w *world, when string) {
		// The network may have another version by now.
		if _, err := w.node().Add(ctx, w.adopted("c1", 3, `, "sysctl": {"net.ipv6.conf.IFNAME.keep_addr_on_down": "1"}`)); err != nil {
			t.Errorf("ADD %s: %v", when, err)
		}
		if err := w.node().Check(ctx, w.request("c1", "net1", "")); err != nil {
			t.Errorf("CHECK after ADD %s: %v", when, err)
		}
	})
}

func TestARepeatedAddOfAnAdoptedLink(t *testing.T) {
	t.Parallel()
	w := chain(t)
	w.mustAdd(w.adopted("c1", 3, ""))
	made := w.pod.String()
	if _, err := w.node().Add(ctx, w.adopted("c1", 3, "")); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("got %v, want code %d: it looks as a second roce in the list does", err, cnierr.BadConfig)
	}
	if now := w.pod.String(); now != made {
		t.Errorf("the repeated ADD changed the pod:\n%s\nwant\n%s", now, made)
	}
	w.pod.IP("addr add 172.16.11.4/24 dev net1")
	w.mustAdd(w.adopted("c1", 4, ""))
	if s := w.pod.String(); strings.Contains(s, "from 172.16.11.3") || !strings.Contains(s, "from 172.16.11.4") {
		t.Errorf("after an ADD with another address:\n%s", s)
	}
	w.pod.IP("addr del 172.16.11.4/24 dev net1")
	w.mustLeave("c1")
	w.mustBeAsMade("after DEL")
}

func TestRepairLeavesTheLinkToThePluginThatMadeIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   cnierr.Code
	}{
		"a rule":          {"rule del from 172.16.11.3/32 lookup 100 priority 32000", 0},
		"a route":         {"route del default dev net1 table 100", 0},
		"the state":       {"link set net1 down", 0},
		"an address":      {"addr del 172.16.11.3/24 dev net1", cnierr.Damaged},
		"the link itself": {"link del net1", cnierr.Damaged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := chain(t)
			w.mustAdd(w.adopted("c1", 3, `, "sysctl": {"net.ipv6.conf.IFNAME.keep_addr_on_down": "1"}`))
			w.pod.IP(tc.script)
			if _, err := w.repairs().CheckRecord(ctx, c1); cnierr.CodeOf(err) != cnierr.Damaged {
				t.Errorf("CHECK: got %v, want code %d", err, cnierr.Damaged)
			}
			before := w.pod.String()
			_, err := w.repairs().Repair(ctx, c1)
			if tc.want == 0 && err != nil || tc.want != 0 && (cnierr.CodeOf(err) != tc.want || w.pod.String() != before) {
				t.Errorf("got %v, want code %d, and the pod\n%s", err, tc.want, w.pod)
			}
		})
	}
}

func TestRoceDoesNotAdoptItsOwnInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	before := w.pod.String()
	_, err := w.node().Add(ctx, w.adopted("c1", 3, ""))
	if cnierr.CodeOf(err) != cnierr.BadConfig || w.pod.String() != before {
		t.Errorf("got %v, want code %d, and the pod\n%s", err, cnierr.BadConfig, w.pod)
	}
}

func TestPrevResultOfNoUseIsRefused(t *testing.T) {
	t.Parallel()
	w := chain(t)
	req := w.adopted("c1", 3, "")
	req.Prev.Result.IPs[1].Gateway = req.Prev.Result.IPs[1].Address.IP
	_, err := w.node().Add(ctx, req)
	if cnierr.CodeOf(err) != cnierr.Decode {
		t.Errorf("an address that is its own gateway: got %v, want code %d", err, cnierr.Decode)
	}
	_, err = w.node().Add(ctx, w.adopted("c1", 5, ""))
	if cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("an address that is not there: got %v, want code %d", err, cnierr.BadConfig)
	}
	w.mustBeAsMade("after ADD failed")
}

func TestStatusCannotKnowWhatWillBeAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := conf.Input{Command: "STATUS", Stdin: []byte(`{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rdma": "exclusive"}`)}
	req, err := conf.Parse(in)
	must(t, err)
	w.hca.exclusive = true
	if err := w.node().Status(ctx, req); err != nil { // there is no default route to tell a master
		t.Error(err)
	}
	w.hca.exclusive = false
	if err := w.node().Status(ctx, req); cnierr.CodeOf(err) != cnierr.NotAvailable {
		t.Errorf("on a node that shares its devices: got %v, want code %d", err, cnierr.NotAvailable)
	}
	in.Stdin = []byte(`{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rdma": "off", "master": "ens9"}`)
	req, err = conf.Parse(in)
	must(t, err)
	if err := w.node().Status(ctx, req); cnierr.CodeOf(err) != cnierr.Limited {
		t.Errorf("a master that is not there: got %v, want code %d", err, cnierr.Limited)
	}
}

func TestTheHolderOfAnAdoptedDeviceIsNamed(t *testing.T) {
	t.Parallel()
	w := chain(t)
	w.hca.exclusive, w.mode = true, conf.RDMAExclusive
	w.mustAdd(w.adopted("c1", 3, ""))
	rec, err := record.Store{Dir: w.dir, BootID: w.boot}.Load(c1)
	must(t, err)
	if m, ok := rec.Plan.Ops.At(plan.Host)[0].Kind.(plan.Move); !ok || m.Parent != "" || m.Device.PCI != "0000:0b:00.2" {
		t.Errorf("recorded: %+v", rec.Plan.Ops.At(plan.Host))
	}
	if !w.hca.inPod {
		t.Error("the device of a link in the pod was looked for in the host alone")
	}
	w.made("c2")
	_, err = w.node().Add(ctx, w.adopted("c2", 3, ""))
	if cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), `"c1"`) {
		t.Errorf("got %v, want code %d that names c1", err, cnierr.RDMAHeld)
	}
}
