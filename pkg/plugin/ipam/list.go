// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// Entry is a used address.
type Entry struct {
	Pool  string // "" if it is set aside: then it is of no known pool
	Addr  netip.Addr
	State State
	Early bool          // leased before its quarantine was over
	Age   time.Duration // since it was leased or became free
	Owner Owner         // of an address in quarantine, the last one
}

// Of says whether the entry stops a pool from leasing its address. An address that is
// set aside stops every pool.
func (e Entry) Of(pool string) bool { return e.Pool == pool || e.State == ledger.SetAside }

// InUse says whether an interface has the address, as far as we know.
func (e Entry) InUse() bool { return e.State == ledger.Leased || e.State == ledger.SetAside }

// InQuarantine says whether an address without lease is still in quarantine, in a pool with
// that quarantine.
func (e Entry) InQuarantine(quarantine time.Duration) bool {
	return !e.InUse() && e.Age < quarantineFor(e.State, quarantine)
}

// List returns the used addresses of a pool with what is set aside, or of all pools for "".
// The order is pool, family, address. It makes and changes no file.
func (b *Book) List(ctx context.Context, pool string) ([]Entry, error) {
	var out []Entry
	err := b.store.View(ctx, func(l *ledger.Ledger) error {
		each(l, func(e Entry) {
			if pool == "" || e.Of(pool) {
				out = append(out, e)
			}
		})
		return nil
	})
	if err != nil {
		return nil, ignoreNone(err)
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), a.Addr.Compare(b.Addr))
	})
	return out, nil
}

// each calls fn for every used address, in any order.
func each(l *ledger.Ledger, fn func(Entry)) {
	for h := range l.Holdings() {
		for _, p := range h.Places {
			fn(Entry{p.Pool, p.Addr, ledger.Leased, p.Early, l.Now - p.Since, h.Owner})
		}
	}
	for r := range l.AllQuarantined() {
		fn(Entry{r.Pool, r.Addr, r.State, false, l.Now - r.Freed, r.Owner})
	}
	for a := range l.Asides() {
		fn(Entry{Addr: a.Addr, State: ledger.SetAside, Owner: a.Owner})
	}
}

// Usage is how full a subnet of a pool is. Total is the sum of Leased, Quarantined,
// Free and Unusable. Unusable counts the addresses that are leased only on
// request, or never: those that are excluded, reserved, or outside of the
// ranges.
type Usage struct {
	Prefix                netip.Prefix
	Total, Free, Unusable *big.Int
	Leased, Quarantined   int
	// Refused is how many of Quarantined are in quarantine still: those that
	// Ask.RefuseQuarantined refuses.
	Refused int
}

// String returns the numbers in the form of messages.
func (u Usage) String() string {
	return fmt.Sprintf("%d leased, %d in quarantine, %v excluded or reserved, %v in all", u.Leased, u.Quarantined, u.Unusable, u.Total)
}

// Usage counts for each subnet of an Ask, once for subnets with the same
// prefix. Of the Ask, it uses only Pool, Subnets, Quarantine and Reserved. Its cost grows
// with the number of used addresses.
func (b *Book) Usage(ctx context.Context, ask Ask) ([]Usage, error) {
	ask.Requested = nil
	wants, err := ask.wants()
	if err != nil {
		return nil, err
	}
	wants = byPrefix(wants)
	out := make([]Usage, len(wants))
	for i, w := range wants {
		out[i] = w.usage()
	}
	err = b.store.View(ctx, func(l *ledger.Ledger) error {
		count(l, ask, wants, out)
		return nil
	})
	return out, ignoreNone(err)
}

// byPrefix makes one want of the wants with the same prefix. It may lease every
// address that any of them may lease.
func byPrefix(wants []want) []want {
	var out []want
	for _, w := range wants {
		i := slices.IndexFunc(out, func(o want) bool { return o.Prefix.Masked() == w.Prefix.Masked() })
		if i < 0 {
			out = append(out, w)
			continue
		}
		out[i].usable = netrange.Minus(slices.Concat(out[i].usable, w.usable), nil)
	}
	return out
}

// usage is the usage of a subnet without leases.
func (w want) usage() Usage {
	total, free := netrange.Count([]netrange.Range{netrange.Of(w.Prefix)}), netrange.Count(w.usable)
	return Usage{Prefix: w.Prefix, Total: total, Free: free, Unusable: new(big.Int).Sub(total, free)}
}

// count adds the addresses that are leased or in quarantine.
func count(l *ledger.Ledger, ask Ask, wants []want, usage []Usage) {
	one := big.NewInt(1)
	each(l, func(e Entry) {
		for i := range wants {
			u := &usage[i]
			switch {
			case e.Pool != ask.Pool || !wants[i].has(e.Addr):
				continue
			case e.State == ledger.Leased:
				u.Leased++
			default:
				u.Quarantined++
				if e.InQuarantine(ask.Quarantine) {
					u.Refused++
				}
			}
			u.Free.Sub(u.Free, one)
		}
	})
}
