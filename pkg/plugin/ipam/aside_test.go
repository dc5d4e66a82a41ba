// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// setAside does what a repair does with an address that only a namespace knows.
func (n *node) setAside(addr netip.Addr, owner ledger.Owner) {
	n.t.Helper()
	store := ledger.Store{Dir: n.dir, BootID: n.boot, Now: func() time.Duration { return n.now }}
	err := store.Update(ctx, func(l *ledger.Ledger) error {
		l.SetAside(ledger.Aside{Addr: addr, Owner: owner})
		return nil
	})
	must(n.t, err)
}

func inNamespace(name string) ledger.Owner {
	return ledger.Owner{IfName: "net1", Netns: netns.Ref{Path: "/run/netns/" + name, ID: netns.ID{Dev: 4, Ino: 77}}}
}

// No pool leases an address that is set aside, until its namespace goes: with its DEL, or
// without.
func TestAnAddressThatIsSetAsideIsFreeWhenItsNamespaceGoes(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("10.0.0.9")
	for _, del := range []bool{true, false} {
		n := newNode(t)
		n.setAside(addr, inNamespace("old"))
		_, err := n.lease(ask("next", subnet("10.0.0.9/32")))
		wantCode(t, err, cnierr.PoolExhausted)
		requests := ask("next", subnet("10.0.0.0/24"))
		requests.Pool, requests.Requested = "any", []netip.Addr{addr}
		_, err = n.lease(requests)
		wantCode(t, err, cnierr.TryAgain, "namespace /run/netns/old")
		entries, err := n.book().List(ctx, "any") // no pool may lease it
		if err != nil || len(entries) != 1 || !entries[0].Of("rail") || !entries[0].Of("any") || !entries[0].InUse() || entries[0].InQuarantine(0) {
			t.Errorf("listed as %v, %v", entries, err)
		}
		other := ipam.Key{ContainerID: "c", IfName: "net2"}
		must(t, n.book().Release(ctx, other, inNamespace("old").Netns))
		_, err = n.lease(requests) // that was another interface
		wantCode(t, err, cnierr.TryAgain)
		if del {
			must(t, n.book().Release(ctx, ipam.Key{ContainerID: "c", IfName: "net1"}, inNamespace("old").Netns))
		} else {
			n.dead["/run/netns/old"], n.dead["/run/netns/next"] = true, true
			_, err = n.lease(requests) // a call that does not see its own namespace trusts no other look
			wantCode(t, err, cnierr.TryAgain)
			delete(n.dead, "/run/netns/next")
		}
		if got := n.mustLease(requests); got[0] != addr.String()+"/24" {
			t.Errorf("got %q, want %v", got, addr)
		}
		if got := n.holders(); !slices.Equal(got, []string{"next"}) {
			t.Errorf("held by %q", got)
		}
	}
}

// Addresses that are leased and set aside may stand side by side in any order. All of them
// are passed over, wherever the search begins.
func TestAddressesThatAreSetAsideSideBySideAreNotLeased(t *testing.T) {
	t.Parallel()
	for _, used := range []string{"aaaa", "aala", "alal", "llaa", "laal", "aall"} {
		for pod := range 8 { // the search of each begins elsewhere
			n := newNode(t)
			for i, state := range used {
				addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
				if state == 'a' {
					n.setAside(addr, inNamespace("old"))
					continue
				}
				a := ask(fmt.Sprint("other-", i), subnet("10.0.0.0/29"))
				a.Requested = []netip.Addr{addr}
				n.mustLease(a)
			}
			for i := range 2 {
				got := netip.MustParsePrefix(n.mustLease(ask(fmt.Sprint("pod-", pod, "-", i), subnet("10.0.0.0/29", "10.0.0.1-10.0.0.6")))[0]).Addr()
				if got.As4()[3] <= 4 {
					t.Errorf("with %q used, pod %d got %s", used, pod, got)
				}
			}
		}
	}
}

// A pod may have the address, so the search must not take it for a free one.
func TestAnAddressThatIsSetAsideIsNotLeasedIfItsEntryIsDamaged(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setAside(netip.MustParseAddr("10.0.0.9"), inNamespace("old"))
	path := filepath.Join(n.dir, "leases.db")
	file, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, bytes.ReplaceAll(file, []byte("netns/old"), []byte("netns/new")), 0))
	_, err = n.lease(ask("next", subnet("10.0.0.9/32")))
	wantCode(t, err, cnierr.Unreadable)
}

// The record says that a pod has an address, and another namespace has it too. When the
// pod releases it, no pod gets it.
func TestAnAddressThatIsOnRecordAndInUseElsewhereIsNotGivenBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/30"))
	addr := netip.MustParsePrefix(n.mustLease(a)[0]).Addr()
	n.setAside(addr, inNamespace("x"))
	for range 2 {
		must(t, n.book().Release(ctx, a.Owner.Key(), netns.Ref{}))
		if got := n.mustLease(a); got[0] == addr.String()+"/30" {
			t.Errorf("got %v back, which a namespace has", got)
		}
		b := ask("b", subnet("10.0.0.0/30")) // the address that is longest in quarantine is this one
		if got, err := n.lease(b); err == nil {
			t.Errorf("b got %v of a full pool", got)
		}
	}
}

// After a rebuild, roce's DEL makes no address free that is on an interface of the plugin
// before it, and the other way round.
func TestAnAddressThatIsSetAsideIsFreedByThePluginThatMadeItsInterface(t *testing.T) {
	t.Parallel()
	for _, made := range []string{conf.PluginType, "macvlan"} {
		n := newNode(t)
		owner := inNamespace("old")
		if made == conf.PluginType {
			owner.Program = made
		}
		for _, addr := range []string{"10.0.0.9", "10.0.0.10"} {
			n.setAside(netip.MustParseAddr(addr), owner)
		}
		for _, program := range []string{"macvlan", conf.PluginType} {
			if program == made {
				continue
			}
			k := ipam.Key{ContainerID: "c", IfName: "net1", Network: "net", Program: program}
			must(t, n.book().Release(ctx, k, owner.Netns))
			n.wantEntries(" 10.0.0.9 set-aside  0s", " 10.0.0.10 set-aside  0s")
		}
		must(t, n.book().Release(ctx, ipam.Key{ContainerID: "c", IfName: "net1", Network: "net", Program: made}, owner.Netns))
		n.wantEntries()
	}
}

func TestAnAddressOfSeveralNamespacesIsFreeWhenAnOperatorSaysSo(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("10.0.0.9")
	n := newNode(t)
	n.setAside(addr, ledger.Owner{})
	must(t, n.book().Release(ctx, ipam.Key{ContainerID: "c", IfName: ""}, netns.Ref{}))
	b := ask("b", subnet("10.0.0.9/32"))
	_, err := n.lease(b)
	wantCode(t, err, cnierr.PoolExhausted)
	must(t, n.book().ReleaseAddress(ctx, "-", addr))
	n.mustLease(b)
}
