// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package ledger stores which addresses of a node are leased, to which owner, and
// which are in quarantine. It is one database for all pools, opened for one
// transaction at a time.
//
// It never decides which attachment gets an address, and never writes a part of a
// transaction: package ipam decides. Read this file first for the states of an address,
// then store.go for the files on disk, and file.go for how one is read and written.
package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Ledger has the tables in one transaction, which fails when a method finds damage
// (fail). An address goes from free to leased, to quarantine, and back to free. Each
// step keeps these laws:
//
//   - hold has what each owner has leased;
//   - quarantine has the addresses of each pool that are in quarantine, in the order in
//     which they were released;
//   - lastOwner has the addresses in quarantine by pool and identity of the last owner. It
//     leaves out addresses in conflict, which belong to no pod;
//   - run has, for each pool, the longest runs of addresses that are leased or
//     in quarantine. The key is the last address of a run.
//
// Times are those of Store.Now.
type Ledger struct {
	Now time.Duration

	tx                                     *transaction
	meta, hold, quarantine, lastOwner, run *table
}

// version is the version of the tables. A database of another version is not read.
const version = 3

func tableNames() []string { return []string{"meta", "hold", "quarantine", "lastOwner", "run"} }

// found fills the table meta of a new database, which is the first of tables.
func found(tables []*table, bootID string) {
	tables[0].put([]byte("version"), []byte{version})
	tables[0].put([]byte("boot"), []byte(bootID))
}

// errNewer says that a later version of the programs has written the database. It is not
// damaged.
var errNewer = errors.New("a newer version of roce-cni wrote it")

// open returns the tables of a database. The transaction fails with ErrNone for one of
// another boot, and with errNewer for one of a later version.
func open(tx *transaction, bootID string, now time.Duration) *Ledger {
	names := tableNames()
	meta := tx.table(names[0])
	// A later version may have other tables.
	switch v := meta.get([]byte("version")); {
	case len(v) == 1 && v[0] > version:
		fail(fmt.Errorf("%w: format %d, and this one reads %d", errNewer, v[0], version))
	case !bytes.Equal(v, []byte{version}):
		fail(damagef("the version is %x, this program reads %d", v, version))
	}
	l := &Ledger{Now: now, tx: tx, meta: meta, hold: tx.table(names[1]), quarantine: tx.table(names[2]), lastOwner: tx.table(names[3]), run: tx.table(names[4])}
	if string(meta.get([]byte("boot"))) != bootID {
		fail(ErrNone)
	}
	return l
}

// holdKey hashes the key of an owner: keys stay short (one tree level less) and are spread
// evenly over pages.
func holdKey(k Key) []byte {
	sum := sha256.Sum256(appendStrings(nil, k.ContainerID, k.IfName, k.Network, k.Program))
	return sum[:16]
}

func quarantineKey(s Spot, freed time.Duration) []byte {
	return appendAddr(appendTime(appendString(nil, s.Pool), freed), s.Addr)
}

func lastOwnerKey(pool string, id [sha256.Size]byte) []byte {
	return append(appendString(nil, pool), id[:16]...)
}

func (r Quarantined) lastOwnerKey() []byte {
	return appendAddr(lastOwnerKey(r.Pool, r.Owner.Identity()), r.Addr)
}

// Holding returns what an owner has leased: no places if there is nothing.
func (l *Ledger) Holding(k Key) Holding {
	key := holdKey(k)
	v := l.hold.get(key)
	if v == nil {
		return Holding{}
	}
	return decodeHolding(item{Key: key, Value: v})
}

// Give leases a free address.
func (l *Ledger) Give(o Owner, s Spot) {
	l.addToRun(s)
	l.add(o, Place{s, l.Now, false})
}

// Wake leases an address in quarantine. early says that this is not over: it stays set in
// the lease.
func (l *Ledger) Wake(o Owner, r Quarantined, early bool) {
	l.drop(r)
	l.add(o, Place{r.Spot, l.Now, early})
}

func (l *Ledger) add(o Owner, p Place) {
	l.Save(Holding{o, append(l.Holding(o.Key()).Places, p)})
}

// Save writes a holding after a change of its owner. The owner's key must be the
// same. The transaction fails with BadConfig for names that are too long for the database.
func (l *Ledger) Save(h Holding) {
	h.Owner.mustEncode()
	key := holdKey(h.Owner.Key())
	if len(h.Places) == 0 {
		l.hold.del(key)
	} else {
		l.hold.put(key, h.encode())
	}
}

// Retire ends leases of a holding. For each place, which returns the new state,
// Released or Conflicted, or zero to keep the lease. Retire returns what is left.
func (l *Ledger) Retire(h Holding, which func(Place) State) Holding {
	left := Holding{Owner: h.Owner}
	for _, p := range h.Places {
		state := which(p)
		if state == 0 {
			left.Places = append(left.Places, p)
			continue
		}
		r := Quarantined{p.Spot, state, l.Now, h.Owner}
		l.quarantine.put(quarantineKey(r.Spot, r.Freed), r.encode())
		if state != Conflicted {
			l.lastOwner.put(r.lastOwnerKey(), appendTime(nil, r.Freed))
		}
	}
	if len(left.Places) < len(h.Places) {
		l.Save(left)
	}
	return left
}

// Free ends the quarantine of an address.
func (l *Ledger) Free(r Quarantined) {
	l.drop(r)
	l.takeFromRun(r.Spot)
}

func (l *Ledger) drop(r Quarantined) {
	l.quarantine.del(quarantineKey(r.Spot, r.Freed))
	if r.State != Conflicted {
		l.lastOwner.del(r.lastOwnerKey())
	}
}

// Quarantined yields the addresses of a pool that are in quarantine, in the order
// of their release. They may be leased and freed during the loop.
func (l *Ledger) Quarantined(pool string) iter.Seq[Quarantined] {
	return decoded(l.quarantine.in(appendString(nil, pool)), decodeQuarantined)
}

// AllQuarantined yields the addresses in quarantine of all pools.
func (l *Ledger) AllQuarantined() iter.Seq[Quarantined] {
	return decoded(l.quarantine.in(nil), decodeQuarantined)
}

// Holdings yields all holdings. They may be retired during the loop.
func (l *Ledger) Holdings() iter.Seq[Holding] { return decoded(l.hold.in(nil), decodeHolding) }

// decoded yields the items of a table, decoded.
func decoded[T any](items iter.Seq[item], decode func(item) T) iter.Seq[T] {
	return func(yield func(T) bool) {
		items(func(it item) bool { return yield(decode(it)) })
	}
}

// Last returns the addresses of a pool that are in quarantine and that an owner
// with this identity had last.
func (l *Ledger) Last(pool string, id [sha256.Size]byte) []Quarantined {
	var out []Quarantined
	prefix := lastOwnerKey(pool, id)
	for it := range l.lastOwner.in(prefix) {
		k, v := reader{b: it.Key[len(prefix):]}, reader{b: it.Value}
		key := quarantineKey(Spot{pool, k.addr()}, v.time())
		out = append(out, decodeQuarantined(item{Key: key, Value: l.quarantine.get(key)})) // which refuses a value that is not there
	}
	return out
}

// Holder returns the holding that has leased an address: no places if none has. It is for
// messages only: its cost grows with the number of leases. Other code finds an address
// by its owner.
func (l *Ledger) Holder(s Spot) Holding {
	for h := range l.Holdings() {
		if slices.ContainsFunc(h.Places, func(p Place) bool { return p.Spot == s }) {
			return h
		}
	}
	return Holding{}
}

// Neighbour is a holding of which only the namespace has been read.
type Neighbour struct {
	Netns netns.Ref
	item  item
}

// Holding reads the rest.
func (n Neighbour) Holding() Holding { return decodeHolding(n.item) }

// Neighbours yields all holdings. It begins after the position that an
// owner has, or would have, among them. This position is random. So calls
// that look at the first few holdings in each transaction see all holdings over
// time. They read no more pages than the owner itself needs.
func (l *Ledger) Neighbours(k Key) iter.Seq[Neighbour] {
	return decoded(l.hold.ring(append(holdKey(k), 0)), func(it item) Neighbour { return Neighbour{netnsOf(it), it} })
}

// Aside is an address that a namespace had when the database was rebuilt, and that no
// record explains. Its pool is not known, so no pool may lease it.
type Aside struct {
	Addr netip.Addr
	// Owner has only the namespace and the interface, and conf.PluginType as its program
	// if roce made the interface. A zero Netns means that several namespaces had the
	// address.
	Owner Owner
}

// Of says whether the address may be an owner's in a namespace: it was on the owner's
// interface, and only one plugin can have made that.
func (a Aside) Of(k Key, ns netns.ID) bool {
	return ns.Ino != 0 && a.Owner.Netns.ID == ns && a.Owner.IfName == k.IfName &&
		(a.Owner.Program == conf.PluginType) == (k.Program == conf.PluginType)
}

const asidePrefix = "aside"

func asideKey(a netip.Addr) []byte { return appendAddr([]byte(asidePrefix), a) }

// SetAside stores an address that no pool may lease.
func (l *Ledger) SetAside(a Aside) {
	l.meta.put(asideKey(a.Addr), appendOwner([]byte{valueVersion}, a.Owner))
}

// Aside returns what is set aside for an address, and whether there is
// anything.
func (l *Ledger) Aside(a netip.Addr) (Aside, bool) {
	v := l.meta.get(asideKey(a))
	if v == nil {
		return Aside{}, false
	}
	return decodeAside(item{Key: asideKey(a), Value: v}), true
}

// Asides yields all addresses that are set aside. They may be dropped during
// the loop.
func (l *Ledger) Asides() iter.Seq[Aside] {
	return decoded(l.meta.in([]byte(asidePrefix)), decodeAside)
}

// DropAside makes an address that is set aside a normal one.
func (l *Ledger) DropAside(a netip.Addr) { l.meta.del(asideKey(a)) }

func decodeAside(it item) Aside {
	v := versioned("address that is set aside", it)
	k := reader{b: it.Key[len(asidePrefix):]}
	out := Aside{k.addr(), v.owner()}
	v.done("address that is set aside", it, k)
	return out
}
