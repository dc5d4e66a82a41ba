// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
)

// damageMeta makes the database unreadable, and leaves all of its leases.
func (n *node) damageMeta() {
	n.t.Helper()
	path := n.dir + "/leases.db"
	file, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	clear(file[:8192])
	if err := os.WriteFile(path, file, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) mustRebuild(namespaces ...ipam.Namespace) {
	n.t.Helper()
	did, err := n.book().Rebuild(ctx, func() (ipam.Evidence, error) { return ipam.Evidence{Namespaces: namespaces}, nil })
	if err != nil || did.Why == nil {
		n.t.Fatalf("got %v, %v", did, err)
	}
}

// The file may say that an address rests because what it said later is lost. If
// a namespace has the address, the pod that had it before does not get it back.
func TestAnAddressThatRestsAndIsInUseIsNotGivenBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/24"))
	addr := netip.MustParsePrefix(n.mustLease(a)[0]).Addr()
	if err := n.book().Release(ctx, a.Owner.Attachment(), ipam.Netns{}); err != nil {
		t.Fatal(err)
	}
	n.damageMeta()
	n.mustRebuild(ipam.Namespace{Netns: ipam.Netns{Path: "/run/netns/x", Dev: 4, Ino: 7}, Addrs: []ipam.LinkAddr{{IfName: "net1", Addr: addr}}})
	if got := n.mustLease(a); got[0] == addr.String()+"/24" {
		t.Errorf("got %v back, which a namespace has", got)
	}
}

// The same when the record says so: the pod has lost its address, and somebody
// else has it.
func TestAnAddressThatIsOnRecordAndInUseElsewhereIsNotGivenBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/30"))
	addr := netip.MustParsePrefix(n.mustLease(a)[0]).Addr()
	n.damageMeta()
	_, err := n.book().Rebuild(ctx, func() (ipam.Evidence, error) {
		return ipam.Evidence{
			Recorded:   []ledger.Holding{{Owner: a.Owner, Places: []ledger.Place{{Spot: ledger.Spot{Pool: "rail", Addr: addr}, Since: n.now}}}},
			Namespaces: []ipam.Namespace{{Netns: ipam.Netns{Path: "/run/netns/x", Dev: 4, Ino: 7}, Addrs: []ipam.LinkAddr{{IfName: "net1", Addr: addr}}}},
		}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.book().Release(ctx, a.Owner.Attachment(), ipam.Netns{}); err != nil {
			t.Fatal(err)
		}
		if got := n.mustLease(a); got[0] == addr.String()+"/30" {
			t.Errorf("got %v back, which a namespace has", got)
		}
		b := ask("b", subnet("10.0.0.0/30")) // and nobody gets it who comes last
		if got, err := n.lease(b); err == nil {
			t.Errorf("b got %v of a full pool", got)
		}
	}
}

// A lease whose namespace is gone comes to rest, if another one is where it was;
// if none is, nobody can tell.
func TestTheLeaseOfANamespaceThatIsGoneRests(t *testing.T) {
	t.Parallel()
	for folder, want := range map[string]int{"/run/netns": 0, "/elsewhere": 1} {
		n := newNode(t)
		n.mustLease(ask("a", subnet("10.0.0.0/24")))
		n.dead["/run/netns/a"] = true
		n.damageMeta()
		n.mustRebuild(ipam.Namespace{Netns: ipam.Netns{Path: folder + "/x", Dev: 4, Ino: 7}})
		entries, err := n.book().List(ctx, "")
		if err != nil || len(entries) != 1 || len(n.holders()) != want {
			t.Errorf("with a namespace in %s: %v, %v, want %d leased", folder, entries, err, want)
		}
	}
}

func TestAnAddressOfTwoNamespacesIsKeptWhenOneGoes(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("10.0.0.9")
	var two [2]ipam.Namespace
	for i, path := range []string{"/run/netns/one", "/run/netns/two"} {
		two[i] = ipam.Namespace{Netns: ipam.Netns{Path: path, Dev: 4, Ino: uint64(i + 1)}, Addrs: []ipam.LinkAddr{{IfName: "net1", Addr: addr}}}
	}
	for _, goes := range two {
		n := newNode(t)
		n.mustLease(ask("a", subnet("10.0.0.8/32")))
		n.damageMeta()
		n.mustRebuild(two[:]...)
		n.dead[goes.Path] = true
		if err := n.book().Release(ctx, conf.Attachment{ContainerID: "c", IfName: "net1"}, goes.Netns); err != nil {
			t.Fatal(err)
		}
		n.now += time.Hour
		_, err := n.lease(ask("b", subnet("10.0.0.9/32")))
		wantCode(t, err, cnierr.PoolExhausted)
		if err := n.book().ReleaseAddress(ctx, ledger.AnyPool, addr); err != nil {
			t.Error(err)
		}
	}
}
