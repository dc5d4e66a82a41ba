// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const (
	poolOfRails = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rails": {"match": {"ifNames": ["ens*"]}, "count": 3},
	"rdma": %q, "ipam": {"type": "roce-ipam", "railPool": "gpu"}%s}`
	poolOfOne = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens2",
	"rdma": %q, "ipam": {"type": "roce-ipam", "railPool": "gpu"}%s}`
)

// newPoolWorld returns a node with networks of three rails with addresses of a
// RailPool, of which it owns nothing yet.
func newPoolWorld(t *testing.T) *world {
	t.Helper()
	w := newRailsWorld(t)
	w.config = poolOfRails
	return w
}

// own writes the file of a node that owns these host parts on so many rails.
func (w *world) own(rails int, hosts ...string) {
	w.t.Helper()
	f := nodefile.File{Pool: "gpu", Quarantine: time.Hour}
	for i := range rails {
		s := pool.Subnet{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i)), Gateway: netip.MustParseAddr(fmt.Sprintf("10.%d.0.254", i))}
		for _, h := range hosts {
			first, last, _ := strings.Cut(h, "-")
			r, err := netrange.Parse(fmt.Sprintf("10.%[1]d.0.%[2]s-10.%[1]d.0.%[3]s", i, first, last))
			must(w.t, err)
			s.Ranges = append(s.Ranges, r)
		}
		f.Rails = append(f.Rails, []pool.Subnet{s})
	}
	must(w.t, w.ranges().Write(f))
}

// ownNothing takes the file away.
func (w *world) ownNothing() {
	w.t.Helper()
	must(w.t, w.ranges().Remove("gpu"))
}

// added adds an attachment of a new pod and returns what it got.
func (w *world) added(id string) []string {
	w.t.Helper()
	res := w.mustCome(id)
	return told(res)
}

// refused adds an attachment of a new pod, which must fail with a code and leave
// nothing, and returns what the runtime is told.
func (w *world) refused(id string, code cnierr.Code) (msg, hint string) {
	w.t.Helper()
	w.fake.Pod(podPath(id))
	before, leased, files := w.fake.String(), w.leases(), w.files()
	_, err := w.node().Add(ctx, w.request(id, "net1", ""))
	if cnierr.CodeOf(err) != code {
		w.t.Fatalf("ADD of %s: got %v, want code %d", id, err, code)
	}
	if diff := cmp.Diff([]any{before, leased, files}, []any{w.fake.String(), w.leases(), w.files()}); diff != "" {
		w.t.Errorf("an ADD that failed has left something (-before +after)\n%s", diff)
	}
	told := cnierr.CNI("roce", err)
	return told.Msg, told.Details
}

func TestWithoutRangesOfThisBootAnADDIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	msg, hint := w.refused("c1", cnierr.TryAgain)
	if !strings.Contains(msg, `"gpu"`) || !strings.Contains(msg, "missing") || !strings.Contains(hint, "runs on this node") {
		t.Errorf("got %s, %s", msg, hint)
	}
	w.own(3, "32-47")
	w.boot = "5f0c2d1e-8a3b-4c6d-9e7f-000000000002"
	if msg, _ := w.refused("c1", cnierr.TryAgain); !strings.Contains(msg, "another boot") {
		t.Errorf("got %s", msg)
	}
	w.own(3, "32-47")
	w.added("c1")
}

func TestARailPoolThatIsExhaustedOnTheNodeGrowsByABlock(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.own(3, "32-32")
	w.added("c1")
	msg, hint := w.refused("c2", cnierr.PoolExhausted)
	if !strings.Contains(msg, "the node's blocks") || !strings.Contains(msg, "all 1 addresses") {
		t.Errorf("got %s, want what is counted within the blocks", msg)
	}
	if !strings.Contains(hint, "another block") || !strings.Contains(hint, "kubectl get railblocks") || strings.Contains(hint, "ipam.subnets") {
		t.Errorf("the hint is %q", hint)
	}
	w.own(3, "32-32", "96-96")
	for i, line := range w.added("c2") {
		if !strings.Contains(line, fmt.Sprintf(" 10.%d.0.96/24 ", i)) {
			t.Errorf("got %s, want the address of the second block", line)
		}
	}
	w.mustBeWhole("c1")
}

func TestALostBlockLeasesNothingAndItsLeasesStay(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.own(3, "32-33")
	w.added("c1")
	// A pod that comes back under its name gets its addresses back, but not
	// when they are another node's now.
	pod := conf.Pod{Namespace: "train", Name: "job-0"}
	named := func(id string) conf.Request {
		r := w.request(id, "net1", "")
		r.Pod = pod
		return r
	}
	w.fake.Pod(podPath("c2"))
	w.mustAdd(named("c2"))
	w.mustLeave("c2")
	w.own(3, "96-97")
	w.mustBeWhole("c1")
	w.fake.Pod(podPath("c3"))
	back := w.mustAdd(named("c3"))
	for _, line := range append(told(back), w.added("c4")...) {
		if !strings.Contains(line, ".0.96/") && !strings.Contains(line, ".0.97/") {
			t.Errorf("got %s, which is not the node's any more", line)
		}
	}
	w.refused("c5", cnierr.PoolExhausted)
	for _, id := range []string{"c1", "c3", "c4"} {
		w.mustLeave(id)
	}
	w.mustBeEmpty("after DEL")
}

func TestNothingButAnADDNeedsTheRanges(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.own(3, "32-47")
	first := w.added("c1")
	for _, id := range []string{"c2", "c3"} {
		w.added(id)
	}
	w.ownNothing()
	w.mustBeWhole("c1")
	res := w.mustAdd(w.request("c1", "net1", ""))
	if diff := cmp.Diff(first, told(res)); diff != "" {
		t.Errorf("the second ADD (-first +second)\n%s", diff)
	}
	w.mustLeave("c1")
	w.mustGC("rail", conf.Attachment{ContainerID: "c2", IfName: "net1"})
	if l := w.leases(); len(l) != 3 || !strings.HasSuffix(l[0], " c2/net1") {
		t.Errorf("leased %v, want those of c2", l)
	}
	w.mustGC("rail")
	w.mustBeEmpty("after GC")
}

func TestQuarantineOfARailPoolIsThatOfTheNodeFile(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.own(3, "32-32") // an hour
	early := func(id string) bool {
		w.t.Helper()
		w.added(id)
		entries, err := w.book().List(ctx, "rail:gpu")
		if err != nil || len(entries) != 3 {
			t.Fatalf("%v, error %v", entries, err)
		}
		w.mustLeave(id)
		return entries[0].Early
	}
	if early("c1") {
		t.Error("the first lease of an address is early")
	}
	w.now += 59 * time.Minute
	if !early("c2") {
		t.Error("after 59 minutes an address does not rest any more")
	}
	w.now += 61 * time.Minute
	if early("c3") {
		t.Error("after 61 minutes an address is still in quarantine")
	}
}

func TestASkippedRailLeavesItsNumberOfTheRailPool(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.config = strings.Replace(poolOfRails, `"rdma"`, `"minRails": 2, "rdma"`, 1)
	w.own(3, "32-32")
	w.fake.Host().IP("link set ens2 down")
	want := []string{"net1 10.0.0.32/24 via 10.0.0.254", "net1-2 10.2.0.32/24 via 10.2.0.254"}
	if diff := cmp.Diff(want, w.added("c1")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestOneInterfaceIsOnTheRailOfItsNIC(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rails       int
		addr, extra string // of the NIC, of ipam
		want        string // an address, or what is wrong
	}{
		"by its address":                   {3, "10.1.0.7/24", ``, "10.1.0.32"},
		"by its address, with another one": {3, "192.0.2.7/24 10.2.0.7/24", ``, "10.2.0.32"},
		"by number":                        {3, "10.1.0.7/24", `, "rail": 2`, "10.2.0.32"},
		"the only one":                     {1, "192.0.2.7/24", ``, "10.0.0.32"},
		"the only one by number":           {1, "", `, "rail": 0`, "10.0.0.32"},
		"no address":                       {3, "", ``, "it has 3 rails, and the NIC's own addresses"},
		"no address of the pool":           {3, "192.0.2.7/24", ``, "the NIC's own addresses [192.0.2.7/24] are on none of them"},
		"two addresses of the pool":        {3, "10.0.0.7/24 10.2.0.7/24", ``, "on several of them: [0 2]"},
		"a number that is too high":        {3, "10.1.0.7/24", `, "rail": 3`, "it has 3 rails, but ipam.rail is 3"},
		"another number of the only one":   {1, "10.0.0.7/24", `, "rail": 1`, "it has 1 rails, but ipam.rail is 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.config = strings.Replace(poolOfOne, `"gpu"`, `"gpu"`+c.extra, 1)
			w.own(c.rails, "32-32")
			for _, a := range strings.Fields(c.addr) {
				w.fake.Host().IP("addr add " + a + " dev ens2")
			}
			if strings.Contains(c.want, " ") {
				msg, hint := w.refused("c1", cnierr.BadConfig)
				if !strings.Contains(msg, c.want) || !strings.Contains(hint, "ipam.rail") {
					t.Errorf("got %s, %s, want %s", msg, hint, c.want)
				}
				return
			}
			if got := w.added("c1"); len(got) != 1 || !strings.HasPrefix(got[0], "net1 "+c.want+"/24 ") {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

func TestARailPoolOfAnotherNumberOfRailsIsRefused(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.own(2, "32-32")
	msg, _ := w.refused("c1", cnierr.BadConfig)
	if !strings.Contains(msg, "RailPool gpu has subnets for 2 rails, the configuration has 3") {
		t.Errorf("got %s", msg)
	}
}

func TestAddressesOfOtherNodesAreNotToBeHadByName(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	w.own(3, "32-47")
	w.fake.Pod(podPath("c1"))
	ask := func(addr string) error {
		_, err := w.node().Add(ctx, w.request("c1", "net1", `, "runtimeConfig": {"ips": ["`+addr+`"]}`))
		return err
	}
	for addr, want := range map[string]string{
		"10.1.0.48":  `lease requested address "10.1.0.48": it is an address of RailPool gpu, but not of this node`,
		"10.1.0.254": `but not of this node`,
		"192.0.2.1":  "192.0.2.1 is in none of the pool's subnets",
	} {
		if err := ask(addr); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want code %d and %s", addr, err, cnierr.BadConfig, want)
		}
	}
	w.mustBeEmpty("after ADDs that failed")
	if err := ask("10.1.0.40"); err != nil {
		t.Errorf("the node's own: %v", err)
	}
	if l := w.leases(); !slices.Contains(l, "10.1.0.40 c1/net1") || !slices.Contains(l, "10.2.0.40 c1/net1") {
		t.Errorf("leased %v, want .40 on all rails", l)
	}
}

func TestStatusOfANodeWithoutRanges(t *testing.T) {
	t.Parallel()
	w := newPoolWorld(t)
	status := func(extra string) error { return w.node().Status(ctx, w.request("c9", "net1", extra)) }
	err := status("")
	if cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(err.Error(), "the node has no addresses of the pool yet") {
		t.Errorf("got %v, want code %d", err, cnierr.NotAvailable)
	}
	if hint := cnierr.CNI("roce", err).Details; !strings.Contains(hint, "runs on this node") {
		t.Errorf("the hint is %q", hint)
	}
	if err := status(`, "status": {"pool": "off"}`); err != nil {
		t.Errorf("status.pool is off: %v", err)
	}
	w.own(2, "32-32")
	if err := status(`, "status": {"pool": "off"}`); cnierr.CodeOf(err) != cnierr.NotAvailable {
		t.Errorf("status.pool is off, and the pool has other rails: got %v, want code %d", err, cnierr.NotAvailable)
	}
	w.own(3, "32-32")
	if err := status(""); err != nil {
		t.Errorf("with ranges: %v", err)
	}
	w.added("c1")
	err = status("")
	if cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(cnierr.CNI("roce", err).Details, "another block") ||
		!strings.Contains(err.Error(), "all 1 addresses of the node's blocks in 10.0.0.0/24 are leased") {
		t.Errorf("exhausted: got %v", err)
	}
	w.fake.Host().IP("link set ens2 down")
	if err := status(`, "status": {"rails": "require"}`); cnierr.CodeOf(err) != cnierr.Limited {
		t.Errorf("with a NIC down: got %v, want code %d", err, cnierr.Limited)
	}
}

// Which rail an interface inside of a pod is on follows from its address there.
func TestStatusCannotKnowTheAddressesOfANICInAPod(t *testing.T) {
	t.Parallel()
	for _, ipam := range []string{`"railPool": "gpu"`, `"fromMaster": true, "gateway": "last"`} {
		w := newWorld(t)
		w.config = strings.Replace(poolOfOne, `"railPool": "gpu"`, ipam, 1)
		w.own(3, "32-32")
		if err := w.node().Status(ctx, w.request("c9", "net1", `, "linkInContainer": true`)); err != nil {
			t.Errorf("%s: %v", ipam, err)
		}
	}
}
