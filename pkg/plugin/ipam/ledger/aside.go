// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"iter"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/kv"
)

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
