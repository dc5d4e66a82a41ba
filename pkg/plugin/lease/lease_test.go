// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// source is one place that addresses come from. A new source gets a row in sources:
// then every test of this file is about it too.
type source struct {
	config string      // members of the network's configuration
	before func(*node) // what the node needs; nil: nothing
	from   string      // where the address of pod-0 is from
	// others says that the source has other addresses when one is taken.
	others bool
	// nothing says that the source leases nothing: others do.
	nothing bool
}

func sources() map[string]source {
	return map[string]source{
		"ranges of the configuration": {
			config: `"master": "ens1", "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.4.0.0/29", "gateway": "10.4.0.6"}]}`,
			from:   "10.4.0.0/29", others: true,
		},
		"the NIC's own subnet": {
			config: `"master": "ens1", "ipam": {"type": "roce-ipam", "fromMaster": true, "gateway": "last"}`,
			from:   "172.16.11.0/24", others: true,
		},
		"a table of the nodes": {
			config: `"master": "ens1", "ipam": {"type": "roce-ipam", "table": true}`,
			from:   "10.5.0.0/29", others: true,
		},
		"a RailPool": {
			config: `"master": "ens1", "ipam": {"type": "roce-ipam", "railPool": "gpu"}`,
			before: func(n *node) { n.own(false) },
			from:   "10.7.0.32/29", others: true,
		},
		"a RailPool with sticky addresses": {
			config: `"master": "ens1", "ipam": {"type": "roce-ipam", "railPool": "gpu"}`,
			before: func(n *node) {
				n.own(true)
				n.answers()
				n.grant("pod-0", "10.7.0.64")
				n.grant("pod-1", "10.7.0.65")
			},
			from: "10.7.0.64/32", others: true,
		},
		"another IPAM plugin": {
			config: `"master": "ens1", "ipam": {"type": "foreign"}`,
			from:   "10.9.0.5/32",
		},
		"the plugins before roce": {
			config: `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/run/netns/pod-0"}],
				"ips": [{"address": "10.6.0.5/24", "interface": 0}]}`,
			from: "10.6.0.5/32", nothing: true,
		},
	}
}

// forEach runs a test on a fresh node for each source.
func forEach(t *testing.T, fn func(t *testing.T, n *node, s source)) {
	t.Helper()
	t.Parallel()
	for name, s := range sources() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, newNode(t, s), s)
		})
	}
}

// holding returns the containers that must have a lease.
func (s source) holding(ids ...string) []string {
	if s.nothing {
		return nil
	}
	return ids
}

func (n *node) mustHold(when string, want []string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.leased()); diff != "" {
		n.t.Errorf("%s, these have leases (-want +got):\n%s", when, diff)
	}
}

func TestAcquireGivesTheSameAddressesUntilTheyAreReleased(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		c := n.claim("pod-0", "")
		rails, err := c.Acquire(t.Context())
		must(t, err)
		first := addrs(rails)
		rails[0].Lease = plan.Lease{}
		if diff := cmp.Diff(c.Rails(), rails, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("beside the lease, the rail has changed (-want +got):\n%s", diff)
		}
		if len(first) != 1 || !netip.MustParsePrefix(s.from).Contains(first[0]) {
			t.Errorf("got %v, want one of %s", first, s.from)
		}
		n.mustHold("acquired", s.holding("pod-0"))
		if again := n.acquire("pod-0", ""); !slices.Equal(first, again) {
			t.Errorf("acquired again: got %v, want %v", again, first)
		}
		n.mustHold("acquired again", s.holding("pod-0"))
	})
}

func TestClaimAndPreviewLeaseNothing(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		if c := n.claim("pod-0", ""); c.LinkFirst() != (s.from == "10.9.0.5/32") {
			t.Errorf("the interface must be there before: %t", c.LinkFirst())
		}
		rails, err := n.claim("pod-0", "").Preview(t.Context())
		must(t, err)
		n.mustHold("after Preview", nil)
		if previewed, got := addrs(rails), n.acquire("pod-0", ""); len(previewed) > 0 && !slices.Equal(previewed, got) {
			t.Errorf("Preview gave %v, Acquire %v", previewed, got)
		}
	})
}

func TestReleaseReleasesWhatTheAttachmentHasAndNothingElse(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		n.acquire("pod-0", "")
		n.acquire("pod-1", "")
		n.mustHold("two pods", s.holding("pod-0", "pod-1"))
		for _, when := range []string{"released", "released again"} {
			if err := n.allocator().Release(t.Context(), n.record("pod-0")); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			n.mustHold(when, s.holding("pod-1"))
		}
	})
}

// A process is killed after Acquire and before it writes a record: DEL knows only its
// own input.
func TestADELWithoutRecordReleases(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		n.acquire("pod-0", "")
		n.acquire("pod-1", "")
		d := n.del("pod-0")
		rec := record.Record{Network: d.Network, Attachment: d.Attachment, Netns: d.Netns, IPAM: d.IPAM, Config: []byte(d.Raw)}
		if err := n.allocator().ReleaseUnfinished(t.Context(), rec); err != nil {
			t.Error(err)
		}
		n.mustHold("DEL", s.holding("pod-1"))
	})
}

// GC knows the attachments only from the leases. It does not know those of other
// plugins, which get a GC of their own.
func TestGCFindsLeasesWithoutRecordInOurPools(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		n.acquire("pod-0", "")
		n.acquire("pod-1", "")
		gc := conf.GC{Network: "rail", IPAM: n.request("pod-0", "").IPAM.Type}
		held, err := n.allocator().Held(t.Context(), gc)
		must(t, err)
		if gc.IPAM != conf.PoolType {
			if len(held) > 0 {
				t.Errorf("held: %v", held)
			}
			return
		}
		must(t, n.allocator().ReleaseHeld(t.Context(), conf.GC{Network: "rail", IPAM: "foreign"}, held[0]))
		n.mustHold("GC of a network that does not lease from our pools", []string{"pod-0", "pod-1"})
		if err := n.allocator().ReleaseHeld(t.Context(), gc, held[0]); err != nil || len(held) != 2 {
			t.Errorf("held %v, release: %v", held, err)
		}
		n.mustHold("GC", []string{string(held[1].ContainerID)})
		for _, gc := range []conf.GC{{Network: "other", IPAM: gc.IPAM}, {Network: "rail", IPAM: "foreign"}} {
			if other, err := n.allocator().Held(t.Context(), gc); len(other) > 0 || err != nil {
				t.Errorf("%+v: held %v, %v", gc, other, err)
			}
		}
	})
}

func TestRejectedAddressesAreNotGivenAgain(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		c := n.claim("pod-0", "")
		first, err := c.Acquire(t.Context())
		must(t, err)
		again, err := c.Reject(t.Context(), taken(addrs(first)[0]))
		if again != s.others || (err == nil) != (s.others || s.nothing) {
			t.Fatalf("again is %v, error %v, and the source has others: %v", again, err, s.others)
		}
		if !again {
			return
		}
		rails, err := c.Acquire(t.Context())
		if err != nil || slices.Contains(addrs(rails), addrs(first)[0]) {
			t.Errorf("the next addresses are %v, error %v", addrs(rails), err)
		}
		n.mustHold("after two attempts", []string{"pod-0"})
	})
}

// TestNoLockOfAContainerStaysOpen: the next call would wait for it. The test is not parallel,
// because it counts open files.
func TestNoLockOfAContainerStaysOpen(t *testing.T) {
	n := newNode(t, sources()["another IPAM plugin"])
	n.acquire("pod-0", "")
	before := cnitest.OpenFiles(t)
	n.acquire("pod-0", "")
	must(t, n.allocator().Release(t.Context(), n.record("pod-0")))
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

func TestAnAttachmentWithTwoAddressesIsHeldOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1", "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.4.0.0/29"}, {"subnet": "fd00::/64"}]}`})
	n.acquire("pod-0", "")
	held, err := n.allocator().Held(t.Context(), conf.GC{Network: "rail", IPAM: conf.PoolType})
	if want := []conf.Attachment{{ContainerID: "pod-0", IfName: "net1"}}; err != nil || !slices.Equal(held, want) {
		t.Errorf("got %v, %v, want %v", held, err, want)
	}
}

func TestALeaseNamesItsPod(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["ranges of the configuration"])
	claim := n.claim("pod-0", "")
	_, err := claim.Acquire(t.Context())
	must(t, err)
	entries, err := n.book().List(t.Context(), "rail")
	must(t, err)
	want := ipam.Owner{
		ContainerID: "pod-0", IfName: "net1", Network: "rail", Program: conf.PluginType, PodNamespace: "train", PodName: "pod-0", PodUID: "uid-pod-0",
		Netns: netns.Ref{Path: "/run/netns/pod-0", ID: claim.Rails()[0].Facts.Pod.Netns},
	}
	if len(entries) != 1 || entries[0].Owner != want {
		t.Errorf("got %+v, want %+v", entries, want)
	}
}

// TestStatusIsThatOfThePool: a pool with addresses in quarantine can serve those who can ask
// the network.
func TestStatusIsThatOfThePool(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["ranges of the configuration"])
	status := func(when, more string, want bool) {
		t.Helper()
		err := n.claim("pod-9", more).Status(t.Context())
		if (err == nil) != want || err != nil && cnierr.CodeOf(err) != cnierr.NotAvailable {
			t.Errorf("%s: got %v", when, err)
		}
	}
	const off = `, "status": {"pool": "off"}`
	status("an empty pool", "", true)
	for i := range 5 {
		n.acquire(fmt.Sprintf("pod-%d", i), "")
	}
	status("all are leased", "", false)
	const full = `roce[101] lease address "rail": no address of 10.4.0.0/29 is left: 5 leased, 0 in quarantine, 3 excluded or reserved, 8 in all`
	if _, err := n.claim("pod-9", "").Acquire(t.Context()); err == nil || cnierr.CNI("roce", err).Msg != full {
		t.Errorf("got %v, want %s", err, full)
	}
	status("all are leased, which is not asked", off, true)
	for i := range 5 {
		must(t, n.allocator().Release(t.Context(), n.record(fmt.Sprintf("pod-%d", i))))
	}
	status("all are in quarantine", "", true)
	n.refuse = true
	status("all are in quarantine, which is refused", "", false)
	n.now += time.Hour
	status("the quarantine is over", "", true)
	n.write(filepath.Join(n.dir, "leases.db"), "no database", 0o600)
	status("a damaged database", "", false)
	status("a damaged database, and the pool is not asked", off, false)
	n.config = sources()["the plugins before roce"].config
	status("a damaged database, and addresses of other plugins", "", true)
}

// A node gets its first block only when a pod asks for it.
func TestStatusFailsForANodeWithoutBlocksUnlessThePoolIsNotAsked(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: sources()["a RailPool"].config})
	none := cnierr.New(cnierr.TryAgain, "read", "gpu", "", "no block yet")
	other := cnierr.New(cnierr.Unreadable, "read", "gpu", "", "torn")
	const off = `, "status": {"pool": "off"}`
	for _, c := range []struct {
		more string
		err  error
		want cnierr.Code // 0: no error
	}{{"", none, cnierr.NotAvailable}, {off, none, 0}, {off, other, cnierr.NotAvailable}, {off, nil, 0}} {
		got := lease.StatusError(n.request("pod-0", c.more), c.err)
		if (got == nil) != (c.want == 0) || got != nil && (cnierr.CodeOf(got) != c.want || !errors.Is(got, c.err)) {
			t.Errorf("%s and %v: got %v, want code %d", c.more, c.err, got, c.want)
		}
	}
	n.config = sources()["ranges of the configuration"].config
	if got := lease.StatusError(n.request("pod-0", off), none); cnierr.CodeOf(got) != cnierr.NotAvailable {
		t.Errorf("without a RailPool: got %v", got)
	}
}

// An ADD that is repeated gets what is there only if all is as it was.
func TestARepeatedADDIsCheckedByTheRecordAndByThePluginsBefore(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["the plugins before roce"])
	check := func(rec record.Record) error {
		return n.allocator().CheckRepeated(t.Context(), n.request("pod-0", ""), rec)
	}
	is := func(text string) record.Record {
		rec := n.record("pod-0")
		rec.Plan.Interfaces[0].Addresses = []plan.LeasedAddress{{Prefix: netip.MustParsePrefix(text)}}
		return rec
	}
	if err := check(is("10.6.0.5/24")); err != nil {
		t.Errorf("the same address: %v", err)
	}
	if err := check(is("10.6.0.6/24")); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "before roce give others") {
		t.Errorf("another address: %v", err)
	}
	n.config = strings.Replace(n.config, "10.6.0.5/24", "127.0.0.1/8", 1)
	if err := check(n.record("pod-0")); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("a loopback address: %v", err)
	}
	n.config = sources()["ranges of the configuration"].config
	if err := check(n.record("pod-0", netip.MustParseAddr("10.4.0.1"))); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("an address that is not leased: %v", err)
	}
	if err := check(n.record("pod-0", n.acquire("pod-0", "")...)); err != nil {
		t.Errorf("a lease: %v", err)
	}
}

func TestARequestedAddressHasNoSubstitute(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["ranges of the configuration"])
	const asked = `, "runtimeConfig": {"ips": ["10.4.0.4"]}`
	c := n.claim("pod-0", asked)
	if rails, err := c.Acquire(t.Context()); err != nil || addrs(rails)[0] != netip.MustParseAddr("10.4.0.4") {
		t.Fatalf("got %v, %v", addrs(rails), err)
	}
	var e *cnierr.Error // the pod has no sticky addresses, so the error is about the address
	if _, err := n.claim("pod-1", asked).Acquire(t.Context()); !errors.As(err, &e) || e.Subject != "10.4.0.4" {
		t.Errorf("of another pod: %v", err)
	}
	// That another rail has a taken address, too, which was not asked for, changes nothing.
	both := append(taken(netip.MustParseAddr("10.4.0.4")), taken(netip.MustParseAddr("10.4.1.4"))...)
	for _, addrs := range [][]plan.Target{both[:1], both} {
		if again, err := c.Reject(t.Context(), addrs); again || err != nil {
			t.Errorf("%v: again is %v, error %v", addrs, again, err)
		}
	}
}

// A macvlan does not hear its own NIC, so a conflict probe would not find such an address.
func TestTheNodesOwnAddressesAreNotLeased(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["the NIC's own subnet"])
	rails, err := n.claim("pod-0", `, "runtimeConfig": {"ips": ["172.16.11.3"]}`).Acquire(t.Context())
	if cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("got %v, %v", addrs(rails), err)
	}
}

// roce adopts the interface of a plugin that has its address from roce-ipam: both
// leases have the same name.
func TestRoceNeverReleasesTheAddressOfThePluginBefore(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["ranges of the configuration"])
	n.acquire("pod-0", "")
	n.config = sources()["the plugins before roce"].config
	n.acquire("pod-0", "")
	for what, release := range map[string]func() error{
		"with record":    func() error { return n.allocator().Release(t.Context(), n.record("pod-0")) },
		"failed ADD":     func() error { return n.allocator().ReleaseUnfinished(t.Context(), n.record("pod-0")) },
		"DEL":            func() error { return n.allocator().ReleaseByDEL(t.Context(), n.record("pod-0"), n.del("pod-0")) },
		"without record": func() error { return n.allocator().ReleaseUnfinished(t.Context(), n.record("pod-0")) },
	} {
		if err := release(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		n.mustHold(what, []string{"pod-0"})
	}
}

func TestReleaseGoesByTheRecordNotByTheConfiguration(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["another IPAM plugin"])
	n.acquire("pod-0", "")
	rec := n.record("pod-0")
	n.config = sources()["ranges of the configuration"].config // the network has changed since ADD
	n.acquire("pod-1", "")
	if err := n.allocator().ReleaseByDEL(t.Context(), rec, n.del("pod-0")); err != nil {
		t.Error(err)
	}
	n.mustHold("after DEL", []string{"pod-1"})
}

func TestCheckSaysWhatIsNotLeasedAnyMore(t *testing.T) {
	forEach(t, func(t *testing.T, n *node, s source) {
		rec := n.record("pod-0", n.acquire("pod-0", "")...)
		if err := n.allocator().Check(t.Context(), n.request("pod-0", ""), rec); err != nil {
			t.Errorf("while it is leased: %v", err)
		}
		must(t, n.allocator().Release(t.Context(), rec))
		if err := n.allocator().Check(t.Context(), n.request("pod-0", ""), rec); (err == nil) != s.nothing {
			t.Errorf("after it is released, with the configuration: %v", err)
		}
		if n.acquire("pod-1", ""); rec.IPAM == conf.PoolType {
			n.acquire("pod-0", "")
			mine, other := n.record("pod-0", netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")), n.record("pod-0", n.acquire("pod-1", "")...)
			for _, rec := range []record.Record{mine, other} {
				err := n.allocator().CheckRecord(t.Context(), rec)
				for _, a := range rec.Plan.Addresses() {
					if cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), a.Prefix.Addr().String()) {
						t.Errorf("of addresses that another pod has, or none: %v", err)
					}
				}
			}
			must(t, n.allocator().Release(t.Context(), rec))
		}
		err := n.allocator().CheckRecord(t.Context(), rec)
		if ours := rec.IPAM == conf.PoolType; (cnierr.CodeOf(err) == cnierr.Damaged) != ours || (err == nil) == ours {
			t.Errorf("after it is released: %v", err)
		}
		if rec.IPAM != conf.PoolType {
			return
		}
		n.write(n.dir+"/leases.db", "torn", 0o600)
		if err := n.allocator().CheckRecord(t.Context(), rec); err == nil || strings.Contains(err.Error(), "is not leased") {
			t.Errorf("of a database that cannot be read: %v", err)
		}
	})
}

// Its leases would not count as those of the RailPool: two pods could get one address.
func TestNoPoolHasTheNameOfARailPoolOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{
		config: `"master": "ens1", "ipam": {"type": "roce-ipam", "pool": "gpu", "subnets": [{"subnet": "10.7.0.0/24"}]}`,
		before: func(n *node) { n.own(false) },
	})
	claim := func() error {
		_, err := n.allocator().Claim(n.request("pod-0", ""), []plan.RailFacts{{}})
		return err
	}
	for _, file := range []string{"as it is written", "torn"} {
		if file == "torn" {
			n.write(n.dir+"/pools/gpu/ranges", "{", 0o600)
		}
		if err := claim(); cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%s: got %v, want code %d", file, err, cnierr.BadConfig)
		}
	}
	a := n.allocator()
	a.Agent = nil
	if _, err := a.Claim(n.request("pod-0", ""), []plan.RailFacts{{}}); err != nil {
		t.Errorf("of a program that has nothing to do with RailPools: %v", err)
	}
	must(t, n.files().Remove("gpu"))
	if err := claim(); err != nil {
		t.Errorf("without the RailPool: %v", err)
	}
}

// CHECK of roce-ipam has no record. What is set aside since a rebuild of the database has no
// container.
func TestCheckHeldGoesByTheLeaseOrByTheNamespaceOfWhatIsSetAside(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["ranges of the configuration"])
	ns := netns.ID{Dev: 4, Ino: 7}
	check := func(when string, want cnierr.Code) {
		t.Helper()
		err := n.allocator().CheckHeld(t.Context(), n.request("pod-0", ""), ns)
		if (err == nil) != (want == 0) || err != nil && cnierr.CodeOf(err) != want {
			t.Errorf("%s: got %v, want code %d", when, err, want)
		}
	}
	setAside := func(in netns.ID) {
		s := ledger.Store{Dir: n.dir, BootID: boot, Now: func() time.Duration { return n.now }}
		owner := ledger.Owner{IfName: "net1", Program: conf.PluginType, Netns: netns.Ref{ID: in}}
		must(t, s.Update(t.Context(), func(l *ledger.Ledger) error {
			l.SetAside(ledger.Aside{Addr: netip.MustParseAddr("10.4.0.5"), Owner: owner})
			return nil
		}))
	}
	n.acquire("pod-1", "")
	check("another pod has a lease", cnierr.Damaged)
	n.acquire("pod-0", "")
	check("leased", 0)
	must(t, n.allocator().Release(t.Context(), n.record("pod-0")))
	check("released", cnierr.Damaged)
	setAside(netns.ID{Dev: 4, Ino: 8})
	check("set aside for another namespace", cnierr.Damaged)
	setAside(ns)
	check("set aside for this namespace", 0)
	here := n.record("pod-0")
	here.NetnsID = ns
	must(t, n.allocator().Release(t.Context(), here))
	check("set aside, and released", cnierr.Damaged)
	n.write(n.dir+"/leases.db", "torn", 0o600)
	check("the database cannot be read", cnierr.Unreadable)
	a, rec, gc := n.allocator(), n.record("pod-0"), conf.GC{Network: "rail", IPAM: conf.PoolType}
	_, held := a.Held(t.Context(), gc)
	_, reject := n.claim("pod-0", "").Reject(t.Context(), taken(netip.MustParseAddr("10.4.0.5")))
	_, preview := n.claim("pod-0", "").Preview(t.Context())
	for what, err := range map[string]error{
		"ReleaseUnfinished": a.ReleaseUnfinished(t.Context(), rec), "ReleaseByDEL": a.ReleaseByDEL(t.Context(), rec, n.del("pod-0")),
		"ReleaseHeld": a.ReleaseHeld(t.Context(), gc, rec.Attachment), "Held": held, "Reject": reject, "Preview": preview,
	} {
		if cnierr.CodeOf(err) != cnierr.Unreadable {
			t.Errorf("%s with a database that cannot be read: %v", what, err)
		}
	}
}

func TestAPluginThatIsNotInstalledHasNoLease(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1", "ipam": {"type": "nosuch"}`})
	if err := n.allocator().Plugins.Installed("nosuch"); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("Installed: %v", err)
	}
	if err := n.allocator().ReleaseUnfinished(t.Context(), n.record("pod-0")); err != nil {
		t.Errorf("of an ADD that did not finish: %v", err)
	}
	if err := n.allocator().Release(t.Context(), n.record("pod-0")); err == nil {
		t.Error("a finished ADD has leased from it, and DEL says nothing")
	}
}

// The kernel starts no program that another one has open to write it.
func TestAPluginThatIsBeingInstalledIsRunWhenItIsThere(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["another IPAM plugin"])
	f, err := os.OpenFile(n.plugins+"/foreign", os.O_WRONLY, 0)
	must(t, err)
	time.AfterFunc(200*time.Millisecond, func() { f.Close() })
	n.acquire("pod-0", "")
	n.mustHold("installed", []string{"pod-0"})
}

func TestATableThatOthersCanChangeIsNotCalledMissing(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["a table of the nodes"])
	for err, want := range map[error]string{
		trusted.ErrOthers: "chown root",
		fs.ErrNotExist:    "put the table on every node",
	} {
		a := n.allocator()
		a.ReadFile = func(string) ([]byte, error) { return nil, err }
		_, got := a.Claim(n.request("pod-0", ""), []plan.RailFacts{{}})
		var e *cnierr.Error
		if !errors.As(got, &e) || e.Code != cnierr.BadConfig || !errors.Is(got, err) || !strings.Contains(e.Hint, want) {
			t.Errorf("%v: got %v, want code 7 with the hint %q", err, got, want)
		}
	}
}
