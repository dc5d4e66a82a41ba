// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// newPromisedWorld returns a node of three rails with different histories, and a
// network with equal GID indexes.
func newPromisedWorld(t *testing.T) *world {
	t.Helper()
	return promising(t, `"equal"`, newGIDTables(64, 2, 3, 0, 1))
}

func promising(t *testing.T, index string, tables *gidTables) *world {
	t.Helper()
	w := newRailsWorld(t)
	w.config = strings.Replace(railsConfig, `"rdma": %q`, `"rdma": {"mode": %q, "gidIndex": `+index+`}`, 1)
	w.mode, w.hca.each, w.hca.tables = conf.RDMAShared, true, tables
	return w
}

// indexes returns the recorded GID indexes of a pod, by rail.
func (w *world) indexes(id string) [][]int {
	w.t.Helper()
	rec, err := record.Store{Dir: w.dir, BootID: w.boot}.Load(conf.Attachment{ContainerID: conf.ContainerID(id), IfName: "net1"})
	must(w.t, err)
	var out [][]int
	for g := range plan.All[plan.GID](rec.Plan.Ops) {
		var at []int
		for _, target := range g.Targets {
			if is := w.hca.tables.of(g.Device).index(target.Addr); target.Index == nil || *target.Index != is {
				w.t.Errorf("%s of %s: recorded at %v, is at %d", target.Addr, id, target.Index, is)
			}
			at = append(at, *target.Index)
		}
		out = append(out, at)
	}
	return out
}

// mustBeEqual checks that the GID indexes of a pod are the same on all rails, and that
// the pod has no filler.
func (w *world) mustBeEqual(id string) []int {
	w.t.Helper()
	all := w.indexes(id)
	if len(all) != 3 || slices.ContainsFunc(all, func(at []int) bool { return !slices.Equal(at, all[0]) }) {
		w.t.Errorf("%s has the indexes %v, want the same on three rails", id, all)
	}
	_, pod, _ := strings.Cut(w.fake.String(), podPath(id)+":\n")
	if pod, _, _ = strings.Cut(pod, "\n/"); pod == "" || strings.Contains(pod, "169.254.") {
		w.t.Errorf("%s has fillers:\n%s", id, pod)
	}
	return all[0]
}

func TestPromisedIndexesAreEqualWhateverTheTablesHave(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := promising(t, `"equal"`, newGIDTables(128, 1+rnd.IntN(2), rnd.IntN(6), rnd.IntN(6), rnd.IntN(6)))
		w.hca.tables.hides = rnd.IntN(2) == 0
		there := map[string]bool{}
		for range 20 {
			id := fmt.Sprintf("c%d", rnd.IntN(5)) // the subnets have six addresses
			if there[id] {
				if err := w.node().Del(ctx, w.del(id, "net1")); err != nil {
					t.Fatalf("seed %d: DEL: %v", seed, err)
				}
				delete(there, id)
				continue
			}
			w.fake.Pod(podPath(id))
			if _, err := w.node().Add(ctx, w.request(id, "net1", "")); err != nil {
				t.Fatalf("seed %d: ADD of %s: %v", seed, id, err)
			}
			there[id] = true
			w.mustBeEqual(id)
			if err := w.node().Check(ctx, w.request(id, "net1", "")); err != nil {
				t.Errorf("seed %d: CHECK of %s: %v", seed, id, err)
			}
		}
		if n := w.hca.open.Load(); n != 0 {
			t.Errorf("%d handles of RDMA and of the kernel are open: rocectl heal would lose more and more", n)
		}
		if t.Failed() {
			t.Fatalf("that was seed %d", seed)
		}
	}
}

func TestIndexesThatDifferWithoutAPromiseAreLogged(t *testing.T) {
	t.Parallel()
	for differ, tables := range map[bool]*gidTables{true: newGIDTables(64, 2, 3, 0, 1), false: newGIDTables(64, 2, 1, 1, 1)} {
		w := promising(t, `"any"`, tables)
		var log strings.Builder
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		w.mustCome("c1")
		if strings.Contains(log.String(), "GID indexes differ between rails") != differ {
			t.Errorf("differ %t: the log says %q", differ, log.String())
		}
	}
}

func TestAPromisedNumberIsTheSameOnNodesWithDifferentHistories(t *testing.T) {
	t.Parallel()
	for _, tables := range []*gidTables{newGIDTables(64, 2, 1, 1, 1), newGIDTables(64, 2, 5, 0, 2), newGIDTables(64, 1, 1, 17, 3)} {
		w := promising(t, "21", tables)
		w.mustCome("c1")
		if at := w.mustBeEqual("c1"); at[0] != 21 {
			t.Errorf("got the index %d, want 21", at[0])
		}
		w.fake.Pod(podPath("c2"))
		forget := w.unreadable("b9")
		_, err := w.node().Add(ctx, w.request("c2", "net1", ""))
		forget()
		if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "want index 21") || !strings.Contains(err.Error(), `of container "c1"`) {
			t.Errorf("the second pod: got %v, want code %d that names c1", err, cnierr.NoGID)
		}
		w.mustLeave("c1")
		if n := tables.fillers(); n > 0 {
			t.Errorf("%d fillers are left", n)
		}
		w.mustBeEmpty("after DEL")
	}
}

// TestFillersOfNoUseAreGivenBack has equal tables, so at each index there is a filler on all
// rails, or on none. A driver may hide what other pods have.
func TestFillersOfNoUseAreGivenBack(t *testing.T) {
	t.Parallel()
	for _, hides := range []bool{false, true} {
		w := promising(t, "21", newGIDTables(64, 1, 2, 2, 2))
		w.hca.tables.hides = hides
		if at, n := w.comeEqual("c1"), w.hca.tables.fillers(); at[0] != 21 || n > 0 {
			t.Errorf("hides %t: index %d with %d fillers, want 21 and none", hides, at[0], n)
		}
	}
}

func TestAPromiseThatCannotBeKeptLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		index  string
		tables *gidTables
		says   string
	}{
		"a NIC's own address has the number": {"1", newGIDTables(64, 1, 3, 1, 1), "at 1 is 10.0.0.2 of interface ens1"},
		"the number is for RoCE v1":          {"6", newGIDTables(64, 2, 1, 1, 1), "RoCE v1, which takes the index before"},
		"the number is behind the end":       {"200", newGIDTables(64, 2, 1, 1, 1), "want index 200, and the table has 64 entries"},
		"the table is nearly full":           {`"equal"`, newGIDTables(10, 2, 4, 0, 0), "table is full"},
		"no index is free on all rails":      {`"equal"`, newGIDTables(10, 1, 9, 1, 1), "table is full"},
	} {
		w := promising(t, c.index, c.tables)
		w.fake.Pod(podPath("c1"))
		_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
		if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want code %d and %q", name, err, cnierr.NoGID, c.says)
		}
		if n := c.tables.fillers(); n > 0 {
			t.Errorf("%s: %d fillers are left", name, n)
		}
		w.mustBeEmpty(name)
	}
}

// comeEqual makes pods, which must have equal indexes, and returns those of the last one.
func (w *world) comeEqual(ids ...string) (at []int) {
	w.t.Helper()
	for _, id := range ids {
		w.mustCome(id)
		at = w.mustBeEqual(id)
	}
	return at
}

func TestEqualTablesNeedNoFillers(t *testing.T) {
	t.Parallel()
	w := promising(t, `"equal"`, newGIDTables(64, 2, 2, 2, 2))
	w.comeEqual("c1")
	if s := w.fake.String(); strings.Contains(s, plan.FillerNetns) {
		t.Errorf("there is a namespace of fillers:\n%s", s)
	}
}

// TestFillersStayForTheNextPod has pods one after another, with and without a setting of the
// node.
func TestFillersStayForTheNextPod(t *testing.T) {
	t.Parallel()
	w := promising(t, `"equal"`, newGIDTables(64, 2, 4, 0, 1))
	w.keep = true
	w.comeEqual("c1")
	first := w.hca.tables.fillers()
	touched := 0
	w.before = func(op plan.Op, _ bool) error {
		for a := range plan.All[plan.Address](plan.Ops{op}) {
			if plan.FillerRange.Contains(a.Prefix.Addr()) {
				touched++
			}
		}
		return nil
	}
	w.comeEqual("c2")
	for _, id := range []string{"c1", "c2"} {
		w.mustLeave(id)
	}
	w.comeEqual("c3")
	if now := w.hca.tables.fillers(); first != 2*(4+3) || now != first || touched > 0 {
		t.Errorf("%d entries of fillers after the first pod, %d after the third, and %d changes; want 14, as many, and none", first, now, touched)
	}
	w.comeEqual("c4")
	w.before, w.keep = nil, false
	w.mustLeave("c3")
	if w.hca.tables.fillers() != first {
		t.Error("fillers that another pod needs are gone")
	}
	w.comeEqual("c5")
	file := w.file("c4", "net1.json")
	content, err := os.ReadFile(file)
	must(t, err)
	write(t, file, "{")
	w.mustLeave("c5")
	if w.hca.tables.fillers() != first {
		t.Error("fillers are gone, which the pod of a record that cannot be read may need")
	}
	write(t, file, string(content))
	w.mustLeave("c4")
	w.mustBeEmpty("after the last DEL")
	if n := w.hca.tables.fillers(); n > 0 {
		t.Errorf("%d entries of fillers are left", n)
	}
}

// TestFillersAreEnoughForLongTables has a rail with far more entries than the others.
func TestFillersAreEnoughForLongTables(t *testing.T) {
	t.Parallel()
	for _, each := range []int{1, 2} {
		w := promising(t, `"equal"`, newGIDTables(2048, each, 700, 1, 1))
		if at := w.comeEqual("c1"); at[0] != 701*each-1 {
			t.Errorf("%d entries for each address: index %d, want %d", each, at[0], 701*each-1)
		}
	}
}

// TestFillersGiveWayToPods has a pod of one rail come and go, which leaves an index free that
// has fillers on the other rails.
func TestFillersGiveWayToPods(t *testing.T) {
	t.Parallel()
	for _, nic := range []conf.LinkName{"ens1", "ens2", "ens3"} {
		w := promising(t, `"equal"`, newGIDTables(64, 1, 1, 1, 1))
		single, tables := holder{podPath("single"), "net1"}, w.hca.tables
		for i := range 30 {
			tables.tables[nic].set(single, netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}))
		}
		if at := w.comeEqual("c1"); at[0] != 31 || tables.fillers() != 60 {
			t.Errorf("index %d beside 30 entries of a pod on %s, with %d fillers, want 31 and 60", at[0], nic, tables.fillers())
		}
		tables.undone(single.netns, plan.Op{})
		if at := w.comeEqual("c2"); at[0] != 1 || tables.fillers() > 2 { // for the link-local address
			t.Errorf("index %d after that pod has gone from %s, with %d fillers, want 1 and 2", at[0], nic, tables.fillers())
		}
	}
}

// TestADDIsMadeAgainIfAPromisedIndexMoves has entries that move when the NIC gets its address
// again, as after a failover of a bond. The probes are undone, too: their sockets belong to
// interfaces that the next attempt makes again.
func TestADDIsMadeAgainIfAPromisedIndexMoves(t *testing.T) {
	t.Parallel()
	for times := range 4 {
		w := newPromisedWorld(t)
		w.fake.Pod(podPath("c1"))
		moves := times
		w.before = func(op plan.Op, _ bool) error {
			for g := range plan.All[plan.GID](plan.Ops{op}) {
				if table := w.hca.tables.of(g.Device); g.Device.Link == "ens1" && moves > 0 {
					at, free := table.index(g.Targets[0].Addr), slices.Index(table.entries, gidEntry{})
					table.entries[at], table.entries[free] = table.entries[free], table.entries[at]
					moves--
				}
			}
			return nil
		}
		_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
		if w.wire.undone < times {
			t.Errorf("moved %d times, and %d questions were undone", times, w.wire.undone)
		}
		if times < 3 {
			if err != nil {
				t.Fatalf("moved %d times: %v", times, err)
			}
			w.mustBeEqual("c1")
			continue
		}
		if cnierr.CodeOf(err) != cnierr.NoGID {
			t.Errorf("got %v, want code %d", err, cnierr.NoGID)
		}
		w.mustBeEmpty("after ADD")
	}
}

func TestADDIsMadeAgainIfAPromisedNumberMoves(t *testing.T) {
	t.Parallel()
	w := promising(t, "21", newGIDTables(64, 1, 3, 0, 1))
	w.fake.Pod(podPath("c1"))
	moves := 3 // one on each rail
	w.before = func(op plan.Op, _ bool) error {
		for g := range plan.All[plan.GID](plan.Ops{op}) {
			if table := w.hca.tables.of(g.Device); moves > 0 {
				at := table.index(g.Targets[0].Addr)
				table.entries[at], table.entries[40] = table.entries[40], table.entries[at]
				moves--
			}
		}
		return nil
	}
	w.mustAdd(w.request("c1", "net1", ""))
	if at := w.mustBeEqual("c1"); at[0] != 21 {
		t.Errorf("got the index %d, want 21", at[0])
	}
}

// TestARailWithFewerAddressesHasAnEqualIndexToo has a rail without IPv6.
func TestARailWithFewerAddressesHasAnEqualIndexToo(t *testing.T) {
	t.Parallel()
	const two = `{"master": "ens1", "subnets": [{"subnet": "172.16.11.0/29"}, {"subnet": "fd00:11::/64"}]}`
	const one = `{"master": "ens2", "subnets": [{"subnet": "172.16.12.0/29"}]}`
	for _, rails := range []string{two + ", " + one, one + ", " + two} {
		w := newPromisedWorld(t)
		w.config = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rails": [` + rails + `],
		"rdma": {"mode": %q, "gidIndex": "equal"}, "ipam": {"type": "roce-ipam"}%s}`
		w.mustCome("c1")
		if at := w.indexes("c1"); len(at) != 2 || len(at[0])+len(at[1]) != 3 || at[0][0] != at[1][0] {
			t.Errorf("%s: got the indexes %v, want two and one, and the first ones equal", rails, at)
		}
	}
}

// TestTwoRailsOfOnePortHaveNoEqualIndex has two VLANs of a NIC.
func TestTwoRailsOfOnePortHaveNoEqualIndex(t *testing.T) {
	t.Parallel()
	for _, index := range []string{`"equal"`, "21", `"any"`} {
		w := promising(t, index, newGIDTables(64, 1, 1))
		table := w.hca.tables.tables["ens1"]
		w.hca.tables.tables["ens1.100"], w.hca.tables.tables["ens1.200"] = table, table
		w.fake.NIC("ens1.100", conf.MAC{0x52, 0x54, 0, 0, 0, 7})
		w.fake.NIC("ens1.200", conf.MAC{0x52, 0x54, 0, 0, 0, 8})
		w.config = strings.Replace(w.config, `{"match": {"ifNames": ["ens*"]}, "count": 3}`, `[{"master": "ens1.100"}, {"master": "ens1.200"}]`, 1)
		w.fake.Pod(podPath("c1"))
		_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
		if index == `"any"` {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "its RDMA port is that of rail 0") {
			t.Errorf("%s: got %v, want code %d", index, err, cnierr.BadConfig)
		}
		w.mustBeEmpty(index)
	}
}

// TestAPodWithAddressesOfFillersDoesNotStopOthers has a pod with CAP_NET_ADMIN give its links the
// names of those with fillers, or take the first address of a filler on an ipvlan, of which a
// NIC has only one with an address.
func TestAPodWithAddressesOfFillersDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	first := netip.PrefixFrom(plan.FillerRange.Addr(), 32)
	t.Run("names", func(t *testing.T) {
		t.Parallel()
		w := promising(t, `"equal"`, newGIDTables(64, 1, 1, 1, 1))
		for _, nic := range []conf.LinkName{"ens2", "ens3"} {
			w.hca.tables.tables[nic].set(holder{podPath("evil"), plan.Child{Parent: nic}.Fillers().Name}, first.Addr())
		}
		w.comeEqual("c1")
	})
	t.Run("ipvlan", func(t *testing.T) {
		t.Parallel()
		w := newPromisedWorld(t)
		w.config = strings.Replace(w.config, `"ipam"`, `"child": "ipvlan", "ipam"`, 1)
		w.fake.Pod(podPath("evil"))
		k, err := w.node().Machine.Open(podPath("evil"))
		must(t, err)
		defer k.Close()
		link := plan.Child{Name: "net1", Parent: "ens2", NIC: plan.NIC{}, Mode: conf.L2, MTU: 1500}
		must(t, k.Do(ctx, plan.InPod(link, plan.Address{Link: "net1", Prefix: first})...))
		w.comeEqual("c1")
	})
}

// TestFillersOfARenamedNICGiveWay has fillers on the link of ens2 from when it had another name.
func TestFillersOfARenamedNICGiveWay(t *testing.T) {
	t.Parallel()
	w := promising(t, `"equal"`, newGIDTables(64, 1, 1, 1, 1))
	w.keep = true
	must(t, w.node().Machine.MakeNetns(plan.FillerNetns))
	k, err := w.node().Machine.Open(plan.FillerNetns)
	must(t, err)
	defer k.Close()
	link := plan.Child{Parent: "ens9"}.Fillers()
	link.Parent = "ens2"
	ops := plan.InPod(link)
	for addr := plan.FillerRange.Addr(); len(ops) < 4; addr = addr.Next() {
		ops = append(ops, plan.InPod(plan.Address{Link: link.Name, Prefix: netip.PrefixFrom(addr, 32)})...)
	}
	for _, op := range ops {
		must(t, k.Do(ctx, op))
	}
	if at := w.comeEqual("c1"); at[0] != 1 || w.hca.tables.fillers() > 1 {
		t.Errorf("the pod is at %d, beside %d fillers", at, w.hca.tables.fillers())
	}
}

// TestAKillBetweenFillersHarmsNoPod kills an ADD before each of its operations. In turn, the
// pod's DEL, its next ADD and GC come next. An ADD of another pod is right beside what the
// kill has left, and the last DEL leaves nothing.
func TestAKillBetweenFillersHarmsNoPod(t *testing.T) {
	t.Parallel()
	ends := map[string]func(w *world) error{
		"DEL": func(w *world) error { return w.node().Del(ctx, w.del("c1", "net1")) },
		"GC": func(w *world) error {
			return w.node().GC(ctx, w.gc("rail", conf.Attachment{ContainerID: "c2", IfName: "net1"}))
		},
		"ADD": func(w *world) error { _, err := w.node().Add(ctx, w.request("c1", "net1", "")); return err },
	}
	step := len(ends)
	if testing.Short() {
		step = 7
	}
	for i, verb := range slices.Sorted(maps.Keys(ends)) {
		killed := 0 // with fillers set
		for at := 1 + i; ; at += step {
			w := newPromisedWorld(t)
			w.fake.Pod(podPath("c1"))
			w.fake.Pod(podPath("c2"))
			w.crash = at
			died := w.run(func(n attach.Node) { _, _ = n.Add(ctx, w.request("c1", "net1", "")) })
			w.crash = 0
			if !died {
				break
			}
			if w.hca.tables.fillers() > 0 {
				killed++
			}
			if _, err := w.node().Add(ctx, w.request("c2", "net1", "")); err != nil {
				t.Fatalf("ADD of another pod after a kill before operation %d: %v", at, err)
			}
			if err := ends[verb](w); err != nil {
				t.Fatalf("%s after a kill before operation %d: %v", verb, at, err)
			}
			w.mustBeEqual("c2")
			if verb == "ADD" {
				w.mustBeEqual("c1")
			}
			for _, id := range []string{"c1", "c2"} {
				w.mustLeave(id)
			}
			w.mustBeEmpty(fmt.Sprintf("after a kill before operation %d", at))
		}
		if killed < 10/step {
			t.Errorf("%s: only %d kills left fillers", verb, killed)
		}
	}
}
