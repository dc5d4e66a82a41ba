// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
)

// city is a node with pods in namespaces: those whose leases are on record, and
// those whose leases the database alone knows.
type city struct {
	*node
	pods map[string]*resident // by name
}

type resident struct {
	ask      ipam.Ask
	recorded bool
	addrs    []netip.Addr // in the namespace
}

// settle returns a node with pods of both kinds, some of which have come and
// gone: their leases are in pages that the database has given up.
func settle(t *testing.T, r *rand.Rand, pods int) *city {
	t.Helper()
	c := &city{newNode(t), map[string]*resident{}}
	for i := range pods {
		c.enter(fmt.Sprint("pod", i), i, r.IntN(2) == 0)
		if r.IntN(3) > 0 {
			continue
		}
		c.leave(slices.Sorted(maps.Keys(c.pods))[r.IntN(len(c.pods))])
	}
	return c
}

func (c *city) enter(name string, i int, recorded bool) {
	c.t.Helper()
	a := ask(name, subnet("10.0.0.0/24"))
	if i%4 == 0 {
		a.Pool = "storage"
		a.Subnets = []ipam.Subnet{subnet("10.1.0.0/24"), subnet("fd00::/64")}
	}
	a.Owner.Netns.Ino = uint64(1000 + i)
	c.now += time.Second
	leases, err := c.book().Acquire(ctx, a)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &resident{ask: a, recorded: recorded}
	for _, l := range leases {
		p.addrs = append(p.addrs, l.Prefix.Addr())
	}
	c.pods[name] = p
}

func (c *city) leave(name string) {
	c.t.Helper()
	c.now += time.Second
	o := c.pods[name].ask.Owner
	if err := c.book().Release(ctx, o.Attachment(), ipam.Netns{}); err != nil {
		c.t.Fatal(err)
	}
	c.dead[o.Netns.Path] = true
	delete(c.pods, name)
}

// evidence is what the node knows beside the database.
func (c *city) evidence() (ipam.Evidence, error) {
	var e ipam.Evidence
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		p := c.pods[name]
		ns := ipam.Namespace{Netns: p.ask.Owner.Netns, Addrs: []ipam.LinkAddr{{IfName: "lo", Addr: netip.MustParseAddr("127.0.0.1")}}}
		h := ledger.Holding{Owner: p.ask.Owner}
		for _, a := range p.addrs {
			ns.Addrs = append(ns.Addrs, ipam.LinkAddr{IfName: "net1", Addr: a})
			h.Places = append(h.Places, ledger.Place{Spot: ledger.Spot{Pool: p.ask.Pool, Addr: a}, Since: c.now})
		}
		e.Namespaces = append(e.Namespaces, ns)
		if p.recorded {
			e.Recorded = append(e.Recorded, h)
		}
	}
	return e, nil
}

// mustKeepItsAddresses checks that each pod still has its addresses for itself,
// whatever comes now, and that all are free when all have gone.
func (c *city) mustKeepItsAddresses(what string) {
	c.t.Helper()
	has := map[netip.Addr]string{}
	for name, p := range c.pods {
		for _, a := range p.addrs {
			has[a] = name
		}
	}
	book := c.book()
	for i := range 60 {
		a := ask(fmt.Sprint("new", i), subnet("10.0.0.0/24"))
		if i%2 == 0 {
			a.Pool, a.Subnets = "storage", []ipam.Subnet{subnet("10.1.0.0/24"), subnet("fd00::/64")}
		}
		a.Owner.Netns.Ino = uint64(5000 + i)
		leases, err := book.Acquire(ctx, a)
		if err != nil {
			c.t.Fatalf("%s: ADD after the repair: %v", what, err)
		}
		for _, l := range leases {
			if of, taken := has[l.Prefix.Addr()]; taken {
				c.t.Errorf("%s: %v is given to %s in pool %s, and %s has it", what, l.Prefix, a.Owner, a.Pool, of)
			}
		}
		if err := book.Release(ctx, a.Owner.Attachment(), ipam.Netns{}); err != nil {
			c.t.Fatal(err)
		}
	}
	for name, p := range c.pods {
		o := p.ask.Owner
		if err := book.Release(ctx, o.Attachment(), o.Netns); err != nil {
			c.t.Errorf("%s: DEL of %s: %v", what, name, err)
		}
	}
	if left := c.holders(); len(left) > 0 {
		c.t.Errorf("%s: %q are left when all pods are gone", what, left)
	}
}

// ruins are ways in which a file can be damaged so that it cannot be read.
var ruins = map[string]func(r *rand.Rand, file []byte) []byte{
	"empty":                func(*rand.Rand, []byte) []byte { return nil },
	"a line":               func(*rand.Rand, []byte) []byte { return []byte("this is no database\n") },
	"cut off":              func(r *rand.Rand, b []byte) []byte { return b[:r.IntN(len(b))] },
	"zeroes":               func(_ *rand.Rand, b []byte) []byte { clear(b); return b },
	"noise":                func(r *rand.Rand, b []byte) []byte { return noise(r, b) },
	"meta pages of zeroes": func(_ *rand.Rand, b []byte) []byte { clear(b[:8192]); return b },
	"a bit of a meta page": func(r *rand.Rand, b []byte) []byte {
		b[4096*r.IntN(2)+16+r.IntN(64)] ^= 1 << r.IntN(8)
		return b
	},
	"noise from somewhere on": func(r *rand.Rand, b []byte) []byte { noise(r, b[r.IntN(len(b)):]); return b },
	"bits everywhere": func(r *rand.Rand, b []byte) []byte {
		for range 1 + r.IntN(200) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		return b
	},
	"a page in the place of another": func(r *rand.Rand, b []byte) []byte {
		n := len(b) / 4096
		copy(b[r.IntN(n)*4096:][:4096], b[r.IntN(n)*4096:][:4096])
		return b
	},
}

func noise(r *rand.Rand, b []byte) []byte {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestNoAddressOfAPodIsGivenAgainAfterARebuild(t *testing.T) {
	t.Parallel()
	for name, ruin := range ruins {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unreadable := 0
			for seed := range uint64(4) {
				r := rand.New(rand.NewPCG(seed, 7))
				c := settle(t, r, 5+int(seed)*20)
				path := c.dir + "/leases.db"
				file, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				file = ruin(r, file)
				if err := os.WriteFile(path, file, 0o600); err != nil {
					t.Fatal(err)
				}
				plan, err := c.book().PlanRebuild(ctx, c.evidence)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(path); err != nil || string(got) != string(file) {
					t.Fatalf("planning has changed the file (%v)", err)
				}
				did, err := c.book().Rebuild(ctx, c.evidence)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(plan, did, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateErrors(), cmpopts.IgnoreFields(ipam.Rebuilt{}, "Why")); diff != "" {
					t.Errorf("it did something else than planned (-planned +did):\n%s", diff)
				}
				if did.Why == nil {
					continue
				}
				unreadable++
				if kept, err := os.ReadFile(did.Kept); err != nil || string(kept) != string(file) {
					t.Errorf("the damaged file is not kept (%v)", err)
				}
				if again, err := c.book().Rebuild(ctx, c.evidence); err != nil || again.Why != nil {
					t.Errorf("the rebuilt database: %v, %v", again.Why, err)
				}
				c.mustKeepItsAddresses(fmt.Sprint("seed ", seed))
			}
			if unreadable == 0 {
				t.Error("nothing was damaged")
			}
		})
	}
}

func TestAWholeDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := settle(t, rand.New(rand.NewPCG(1, 1)), 40)
	path := c.dir + "/leases.db"
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.book().Rebuild(ctx, func() (ipam.Evidence, error) { return ipam.Evidence{}, errors.New("nobody should ask") })
	if err != nil || got.Why != nil || len(got.Entries) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("the file has changed (%v)", err)
	}
	none := newNode(t)
	if got, err := none.book().Rebuild(ctx, c.evidence); err != nil || got.Why != nil {
		t.Errorf("without a database: got %v, %v", got, err)
	}
	if _, err := os.Stat(none.dir); err == nil {
		t.Error("a folder was made")
	}
}

// What the file still tells is as it was, to the second: who rests for how long,
// and who it was.
func TestWhatCanBeReadIsAsItWas(t *testing.T) {
	t.Parallel()
	c := settle(t, rand.New(rand.NewPCG(2, 2)), 60)
	before, err := c.book().List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	c.damageMeta()
	if _, err := c.book().Rebuild(ctx, func() (ipam.Evidence, error) {
		e, err := c.evidence()
		e.Recorded = nil // and so their times
		return e, err
	}); err != nil {
		t.Fatal(err)
	}
	after, err := c.book().List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// A namespace whose address nobody knows the pool of has it to itself, and gives
// it back when it goes: with its DEL, or without.
func TestAnAddressOfAnUnknownPoolIsKeptFromAll(t *testing.T) {
	t.Parallel()
	for _, del := range []bool{true, false} {
		c := &city{newNode(t), map[string]*resident{}}
		c.enter("old", 1, false)
		old := c.pods["old"].ask
		lost := func() {
			t.Helper()
			if err := os.WriteFile(c.dir+"/leases.db", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := c.book().Rebuild(ctx, c.evidence); err != nil {
				t.Fatal(err)
			}
		}
		lost()
		addr := c.pods["old"].addrs[0]
		next := ask("next")
		next.Subnets = []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}
		next.Pool, next.Requested = "any", []netip.Addr{addr}
		_, err := c.lease(next)
		wantCode(t, err, cnierr.TryAgain, "namespace /run/netns/old")
		lost() // also what was learned from a namespace is learned again
		if del {
			if err := c.book().Release(ctx, conf.Attachment{ContainerID: conf.ContainerID(old.Owner.ContainerID), IfName: "net1"}, old.Owner.Netns); err != nil {
				t.Fatal(err)
			}
		} else {
			c.dead["/run/netns/old"] = true
		}
		if got := c.mustLease(next); got[0] != addr.String()+"/24 early" {
			t.Errorf("got %q, want %v early", got, addr)
		}
		if got := c.holders(); !slices.Equal(got, []string{"next"}) {
			t.Errorf("held by %q", got)
		}
	}
}

func TestTheLaterOfTwoHasTheAddress(t *testing.T) {
	t.Parallel()
	c := &city{newNode(t), map[string]*resident{}}
	c.enter("old", 1, true)
	c.enter("new", 2, true)
	c.pods["new"].addrs = c.pods["old"].addrs // the DEL of old gave it back, and was killed before it forgot it
	e, err := c.evidence()
	if err != nil {
		t.Fatal(err)
	}
	e.Namespaces = e.Namespaces[:1] // of new
	e.Recorded[1].Places[0].Since -= time.Minute
	if err := os.WriteFile(c.dir+"/leases.db", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.book().Rebuild(ctx, func() (ipam.Evidence, error) { return e, nil }); err != nil {
		t.Fatal(err)
	}
	if got := c.holders(); !slices.Equal(got, []string{"new"}) {
		t.Errorf("held by %q, want new", got)
	}
}

func TestAFailedLookChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(ask("a", subnet("10.0.0.0/24")))
	if err := os.WriteFile(n.dir+"/leases.db", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	if _, err := n.book().Rebuild(ctx, func() (ipam.Evidence, error) { return ipam.Evidence{}, mine }); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(n.dir + "/leases.db"); err != nil || string(b) != "x" {
		t.Errorf("the file is %q, %v", b, err)
	}
	_, err := n.lease(ask("b", subnet("10.0.0.0/24")))
	wantCode(t, err, cnierr.Unreadable, "leases.db")
}

// The damaged file and the leases of a boot end with it.
func TestTheDamagedFileEndsWithTheBoot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(ask("a", subnet("10.0.0.0/24")))
	if err := os.WriteFile(n.dir+"/leases.db", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	did, err := n.book().Rebuild(ctx, func() (ipam.Evidence, error) { return ipam.Evidence{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	n.boot = boot2
	n.mustLease(ask("b", subnet("10.0.0.0/24")))
	if _, err := os.Stat(did.Kept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want no file", err)
	}
}
