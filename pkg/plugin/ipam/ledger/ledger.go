// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package ledger stores which addresses of a node are leased, to which owner, and
// which are in quarantine. It is one database for all pools, opened for one
// transaction at a time.
//
// It never decides which attachment gets an address, and never writes a part of a
// transaction. It stands between ipam, which decides, and kv, which reads and writes
// the file. Read this file first for the states of an address, then store.go for the
// file on disk.
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
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/kv"
)

// Ledger has the tables in one transaction. An address goes from free to
// leased, to quarantine, and back to free. Each step keeps these
// laws:
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

	tx                                     *kv.Tx
	meta, hold, quarantine, lastOwner, run *kv.Table
}

// version is the version of the tables. A database of another version is not read.
const version = 3

func tableNames() []string { return []string{"meta", "hold", "quarantine", "lastOwner", "run"} }

// found fills the table meta of a new database, which is the first of tables.
func found(tables []*kv.Table, bootID string) error {
	if err := tables[0].Put([]byte("version"), []byte{version}); err != nil {
		return err
	}
	return tables[0].Put([]byte("boot"), []byte(bootID))
}

// errNewer says that a later version of the programs has written the database. It is not
// damaged.
var errNewer = errors.New("a newer version of roce-cni wrote it")

// open returns ErrNone for a database of another boot, and errNewer for one of a later
// version.
func open(tx *kv.Tx, bootID string, now time.Duration) (*Ledger, error) {
	l := &Ledger{Now: now, tx: tx}
	var err error
	if l.meta, err = tx.Table(tableNames()[0]); err != nil {
		return nil, err
	}
	// A later version may have other tables.
	if err := l.checkVersion(); err != nil {
		return nil, err
	}
	for i, t := range []**kv.Table{&l.hold, &l.quarantine, &l.lastOwner, &l.run} {
		if *t, err = tx.Table(tableNames()[1+i]); err != nil {
			return nil, err
		}
	}
	boot, err := l.meta.Get([]byte("boot"))
	if err != nil {
		return nil, err
	}
	if string(boot) != bootID {
		return nil, ErrNone
	}
	return l, nil
}

func (l *Ledger) checkVersion() error {
	v, err := l.meta.Get([]byte("version"))
	switch {
	case err != nil:
		return err
	case len(v) == 1 && v[0] > version:
		return fmt.Errorf("%w: format %d, and this one reads %d", errNewer, v[0], version)
	case !bytes.Equal(v, []byte{version}):
		return kv.Damagef("the version is %x, this program reads %d", v, version)
	}
	return nil
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

// Holding returns what an owner has leased, and whether there is anything.
func (l *Ledger) Holding(k Key) (Holding, bool, error) {
	v, err := l.hold.Get(holdKey(k))
	if err != nil || v == nil {
		return Holding{}, false, err
	}
	h, err := decodeHolding(kv.Item{Key: holdKey(k), Value: v})
	return h, true, err
}

// Give leases a free address.
func (l *Ledger) Give(o Owner, s Spot) error {
	if err := l.addToRun(s); err != nil {
		return err
	}
	return l.add(o, Place{s, l.Now, false})
}

// Wake leases an address in quarantine.
func (l *Ledger) Wake(o Owner, r Quarantined) error { return l.wake(o, r, false) }

// WakeEarly leases an address before its quarantine is over. Early stays set in
// the lease.
func (l *Ledger) WakeEarly(o Owner, r Quarantined) error { return l.wake(o, r, true) }

func (l *Ledger) wake(o Owner, r Quarantined, early bool) error {
	if err := l.drop(r); err != nil {
		return err
	}
	return l.add(o, Place{r.Spot, l.Now, early})
}

func (l *Ledger) add(o Owner, p Place) error {
	h, _, err := l.Holding(o.Key())
	if err != nil {
		return err
	}
	return l.Save(Holding{o, append(h.Places, p)})
}

// Save writes a holding after a change of its owner. The owner's key must be the
// same. It returns BadConfig for names that are too long for the database.
func (l *Ledger) Save(h Holding) error {
	if err := h.Owner.encodable(); err != nil {
		return err
	}
	key := holdKey(h.Owner.Key())
	if len(h.Places) == 0 {
		return l.hold.Del(key)
	}
	return l.hold.Put(key, h.encode())
}

// Retire ends leases of a holding. For each place, which returns the new state,
// Released or Conflicted, or zero to keep the lease. Retire returns what is left.
func (l *Ledger) Retire(h Holding, which func(Place) State) (Holding, error) {
	left := Holding{Owner: h.Owner}
	for _, p := range h.Places {
		state := which(p)
		if state == 0 {
			left.Places = append(left.Places, p)
			continue
		}
		if err := l.fileQuarantined(Quarantined{p.Spot, state, l.Now, h.Owner}); err != nil {
			return h, err
		}
	}
	if len(left.Places) == len(h.Places) {
		return h, nil
	}
	return left, l.Save(left)
}

func (l *Ledger) fileQuarantined(r Quarantined) error {
	if err := l.quarantine.Put(quarantineKey(r.Spot, r.Freed), r.encode()); err != nil || r.State == Conflicted {
		return err
	}
	return l.lastOwner.Put(appendAddr(lastOwnerKey(r.Pool, r.Owner.Identity()), r.Addr), appendTime(nil, r.Freed))
}

// Free ends the quarantine of an address.
func (l *Ledger) Free(r Quarantined) error {
	if err := l.drop(r); err != nil {
		return err
	}
	return l.takeFromRun(r.Spot)
}

func (l *Ledger) drop(r Quarantined) error {
	if err := l.quarantine.Del(quarantineKey(r.Spot, r.Freed)); err != nil || r.State == Conflicted {
		return err
	}
	return l.lastOwner.Del(appendAddr(lastOwnerKey(r.Pool, r.Owner.Identity()), r.Addr))
}

// Quarantined yields the addresses of a pool that are in quarantine, in the order
// of their release. They may be leased and freed during the loop.
func (l *Ledger) Quarantined(pool string) iter.Seq2[Quarantined, error] {
	return decoded(l.quarantine.In(kv.Prefix(appendString(nil, pool))), decodeQuarantined)
}

// AllQuarantined yields the addresses in quarantine of all pools.
func (l *Ledger) AllQuarantined() iter.Seq2[Quarantined, error] {
	return decoded(l.quarantine.In(kv.Span{}), decodeQuarantined)
}

// Holdings yields all holdings. They may be retired during the loop.
func (l *Ledger) Holdings() iter.Seq2[Holding, error] {
	return decoded(l.hold.In(kv.Span{}), decodeHolding)
}

// decoded yields the items of a table, decoded.
func decoded[T any](items iter.Seq2[kv.Item, error], decode func(kv.Item) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for it, err := range items {
			var v T
			if err == nil {
				v, err = decode(it)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// Last returns the addresses of a pool that are in quarantine and that an owner
// with this identity had last.
func (l *Ledger) Last(pool string, id [sha256.Size]byte) ([]Quarantined, error) {
	var out []Quarantined
	prefix := lastOwnerKey(pool, id)
	for it, err := range l.lastOwner.In(kv.Prefix(prefix)) {
		if err != nil {
			return nil, err
		}
		k, v := reader{b: it.Key[len(prefix):]}, reader{b: it.Value}
		spot, freed := Spot{pool, k.addr()}, v.time()
		key := quarantineKey(spot, freed)
		value, err := l.quarantine.Get(key)
		if err != nil {
			return nil, err
		}
		r, err := decodeQuarantined(kv.Item{Key: key, Value: value}) // it refuses a value that is not there
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Holder returns the holding that has leased an address. It is for messages
// only: its cost grows with the number of leases. Other code finds an address
// by its owner.
func (l *Ledger) Holder(s Spot) (Holding, bool, error) {
	for h, err := range l.Holdings() {
		if err != nil {
			return Holding{}, false, err
		}
		if slices.ContainsFunc(h.Places, func(p Place) bool { return p.Spot == s }) {
			return h, true, nil
		}
	}
	return Holding{}, false, nil
}

// Neighbour is a holding of which only the namespace has been read.
type Neighbour struct {
	Netns netns.Ref
	item  kv.Item
}

// Holding reads the rest.
func (n Neighbour) Holding() (Holding, error) { return decodeHolding(n.item) }

// Neighbours yields all holdings. It begins after the position that an
// owner has, or would have, among them. This position is random. So calls
// that look at the first few holdings in each transaction see all holdings over
// time. They read no more pages than the owner itself needs.
func (l *Ledger) Neighbours(k Key) iter.Seq2[Neighbour, error] {
	start := append(holdKey(k), 0)
	return decoded(l.hold.Ring(kv.Span{}, start), func(it kv.Item) (Neighbour, error) {
		n, err := netnsOf(it)
		return Neighbour{n, it}, err
	})
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
func (l *Ledger) SetAside(a Aside) error {
	return l.meta.Put(asideKey(a.Addr), appendOwner([]byte{valueVersion}, a.Owner))
}

// Aside returns what is set aside for an address, and whether there is
// anything.
func (l *Ledger) Aside(a netip.Addr) (Aside, bool, error) {
	v, err := l.meta.Get(asideKey(a))
	if err != nil || v == nil {
		return Aside{}, false, err
	}
	out, err := decodeAside(kv.Item{Key: asideKey(a), Value: v})
	return out, true, err
}

// Asides yields all addresses that are set aside. They may be dropped during
// the loop.
func (l *Ledger) Asides() iter.Seq2[Aside, error] {
	return decoded(l.meta.In(kv.Prefix([]byte(asidePrefix))), decodeAside)
}

// DropAside makes an address that is set aside a normal one.
func (l *Ledger) DropAside(a netip.Addr) error { return l.meta.Del(asideKey(a)) }

func decodeAside(it kv.Item) (Aside, error) {
	k, v := reader{b: it.Key[len(asidePrefix):]}, reader{b: it.Value}
	if n := v.byte(); n != valueVersion {
		return Aside{}, kv.Damagef("an address that is set aside has version %d", n)
	}
	out := Aside{k.addr(), v.owner()}
	v.short = v.short || k.short
	return out, v.done("address that is set aside", it.Key)
}
