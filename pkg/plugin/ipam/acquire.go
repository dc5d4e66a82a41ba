// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// expireBatch is how many addresses one Acquire frees from quarantine for each address
// that it leases, so that its cost does not depend on how many are in quarantine.
const expireBatch = 4

// unbounded is a window without end, for when no address is free.
const unbounded = math.MaxInt32

// conflictRest is the shortest quarantine of an address for which another host
// on the network answered, even if the pool's quarantine is shorter: RFC 5227
// section 1.1, RATE_LIMIT_INTERVAL.
const conflictRest = time.Minute

// Acquire leases one address of each subnet to the owner, in the order of the
// subnets. It leases all or none. A repeated Acquire gives the same owner
// the same addresses, as long as they fit the request. It puts addresses that
// do not fit into quarantine and replaces them. It logs a warning if the
// subnets of a group have no common host index that is free.
//
// It returns code 7 for a request that can never be met, or when a plugin before in
// the list has leased as the same owner. It returns 11 when a requested
// address is leased to another owner, and 101 when a subnet has no address
// left. It also reaps leases of namespaces that are gone.
func (b *Book) Acquire(ctx context.Context, ask Ask) ([]Lease, error) {
	s, err := b.session(ctx, ask, b.store.Update)
	if err == nil {
		b.report(ctx, s.work)
	}
	return s.leases, err
}

// Preview returns what Acquire would lease now, or its error. It changes
// nothing. Without a database it answers as for an empty one.
func (b *Book) Preview(ctx context.Context, ask Ask) ([]Lease, error) {
	s, err := b.session(ctx, ask, b.store.Try)
	return s.leases, err
}

// session leases in a transaction. After an error it has no leases.
func (b *Book) session(ctx context.Context, ask Ask, transact func(context.Context, func(*ledger.Ledger) error) error) (session, error) {
	wants, err := ask.wants()
	if err != nil {
		return session{}, err
	}
	s := session{ask: ask, wants: wants}
	if err := transact(ctx, func(l *ledger.Ledger) error { return s.acquire(b.work(l)) }); err != nil {
		return session{}, err
	}
	return s, nil
}

// session is one Acquire.
type session struct {
	work
	ask    Ask
	wants  []want
	leases []Lease // one for each want; the zero Lease: none yet
}

func (s *session) acquire(w work) error {
	s.work = w
	s.leases = make([]Lease, len(s.wants))
	missing, err := s.keep()
	if err != nil || missing == 0 {
		return err
	}
	s.reap(s.ask.Owner.Key(), s.ask.Owner.Netns, reapWindow)
	s.expire(expireBatch * len(s.wants))
	return s.chooseAll()
}

// chooseAll leases what is missing. It leases requested addresses first,
// because another subnet with the same prefix might get one of them without a
// request.
func (s *session) chooseAll() error {
	for i, w := range s.wants {
		if !w.requested.IsValid() {
			continue
		}
		if err := s.chooseOne(i); err != nil {
			return err
		}
	}
	for _, members := range s.groups() {
		if err := s.chooseGroup(members); err != nil {
			return err
		}
	}
	for i := range s.wants {
		if err := s.chooseOne(i); err != nil {
			return err
		}
	}
	return nil
}

// chooseOne leases an address for want number i, unless the want has one.
func (s *session) chooseOne(i int) error {
	if s.leases[i].Prefix.IsValid() {
		return nil
	}
	a, early, err := s.choose(s.wants[i])
	if err == nil {
		s.leases[i] = s.wants[i].lease(a, early)
	}
	return err
}

// choose finds and leases an address for a want.
func (s *session) choose(w want) (a netip.Addr, early bool, err error) {
	if w.requested.IsValid() {
		early, err = s.request(w)
		return w.requested, early, err
	}
	if a, ok := s.recall(w); ok {
		return a, false, nil
	}
	start := preferred(w.usable, s.ask.Owner)
	for _, makeRoom := range []func(){nothing, s.expireAll, s.reapAll} {
		makeRoom()
		if a, ok := Pick(w.usable, start, s.used); ok {
			s.Give(s.ask.Owner, ledger.Spot{Pool: s.ask.Pool, Addr: a})
			return a, false, nil
		}
	}
	return s.oldest(w)
}

// used tells Pick whether an address of the pool is used: leased, in quarantine, or set
// aside. Runs of the pool and addresses that are set aside may follow one another.
func (s *session) used(a netip.Addr) (last netip.Addr, used bool) {
	for ; a.IsValid(); a = last.Next() {
		r := s.Run(s.ask.Pool, a)
		if !r.Contains(a) {
			if !s.aside(a) {
				return last, used
			}
			r.Last = a
		}
		last, used = r.Last, true
	}
	return last, used
}

// aside says whether an address is set aside: a namespace had it when the
// database was rebuilt, and that namespace may still exist.
func (s *session) aside(a netip.Addr) bool {
	is, found := s.Aside(a)
	present := s.ask.Owner.Netns
	return found && (!s.visible(present) || !s.dead(present, is.Owner.Netns))
}

// recall leases an address in quarantine to the pod that had it last. The
// quarantine is only for other pods.
func (s *session) recall(w want) (netip.Addr, bool) {
	for _, r := range s.Last(s.ask.Pool, s.ask.Owner.Identity()) {
		if w.fits(r.Addr) && !s.aside(r.Addr) {
			s.Wake(s.ask.Owner, r, false)
			return r.Addr, true
		}
	}
	return netip.Addr{}, false
}

func nothing() {}

func (s *session) expireAll() { s.expire(unbounded) }

// reapAll looks at every lease. A reaped address is free at once only without
// quarantine. Otherwise it goes into quarantine behind all others.
func (s *session) reapAll() {
	s.reap(s.ask.Owner.Key(), s.ask.Owner.Netns, unbounded)
	s.expireAll()
}

// expire frees addresses of the pool after their quarantine, oldest first: batch of them,
// or none if there are fewer. A batch costs less than single addresses, and until then
// their last owners can still get them back.
func (s *session) expire(batch int) {
	var due []ledger.Quarantined
	for r := range s.Quarantined(s.ask.Pool) {
		if len(due) == batch || s.Now-r.Freed < s.ask.Quarantine {
			break // all others are younger
		}
		if !s.quarantined(r) {
			due = append(due, r)
		}
	}
	if len(due) < batch && batch != unbounded {
		return
	}
	for _, r := range due {
		s.Free(r)
	}
}

// quarantined says whether an address is still in quarantine.
func (s *session) quarantined(r ledger.Quarantined) bool { return s.quarantineLeft(r) > 0 }

// quarantineLeft returns how much of its quarantine an address still has.
func (s *session) quarantineLeft(r ledger.Quarantined) time.Duration {
	return quarantineFor(r.State, s.ask.Quarantine) - (s.Now - r.Freed)
}

// quarantineFor returns how long the quarantine of an address is.
func quarantineFor(of State, quarantine time.Duration) time.Duration {
	if of == ledger.Conflicted {
		return max(quarantine, conflictRest)
	}
	return quarantine
}

// oldest leases the address that is longest in quarantine, when no other is
// left.
func (s *session) oldest(w want) (a netip.Addr, early bool, err error) {
	for r := range s.Quarantined(s.ask.Pool) {
		if !w.fits(r.Addr) || s.aside(r.Addr) {
			continue
		}
		if s.ask.RefuseQuarantined && s.quarantined(r) {
			return a, false, s.allInQuarantine(w, r)
		}
		s.warn("all free addresses are in quarantine: one is leased before its quarantine ends",
			"pool", r.Pool, "address", r.Addr, "in quarantine", s.Now-r.Freed, "quarantine", s.ask.Quarantine)
		early, err := s.wake(r)
		return r.Addr, early, err
	}
	return a, false, s.exhausted(w)
}

// request leases the requested address of a want.
func (s *session) request(w want) (early bool, err error) {
	spot := ledger.Spot{Pool: s.ask.Pool, Addr: w.requested}
	if s.aside(spot.Addr) {
		is, _ := s.Aside(spot.Addr)
		return false, cnierr.New(cnierr.TryAgain, "lease requested address", spot.Addr.String(),
			"wait until the pod that has it is gone, or request another address; rocectl pool list shows all leases",
			"it is set aside: %v had it when the lease database was rebuilt", is.Owner)
	}
	if _, used := s.used(spot.Addr); !used {
		s.Give(s.ask.Owner, spot)
		return false, nil
	}
	if _, ok := s.recall(w); ok {
		return false, nil
	}
	if err := s.evict(spot); err != nil {
		return false, err
	}
	// The evicted owner may have been the same pod.
	if _, ok := s.recall(w); ok {
		return false, nil
	}
	for r := range s.Quarantined(spot.Pool) {
		if r.Addr == spot.Addr {
			return s.wake(r)
		}
	}
	return false, cnierr.New(cnierr.Bug, "lease requested address", spot.Addr.String(), "", "pool %q counts it as in use, but it is neither leased nor in quarantine", spot.Pool)
}

// wake leases an address in quarantine. It says whether the quarantine was not
// over.
func (s *session) wake(r ledger.Quarantined) (early bool, err error) {
	early = s.quarantined(r)
	if early && s.ask.RefuseQuarantined {
		return false, cnierr.New(cnierr.TryAgain, "lease requested address", r.Addr.String(), quarantineHint,
			"it is in quarantine for %v more: its last user may still have it, and this program cannot probe for conflicts", s.quarantineLeft(r).Round(time.Second))
	}
	s.Wake(s.ask.Owner, r, early)
	return early, nil
}

// evict puts a leased address into quarantine if the namespace of its holder is
// gone. Otherwise its error names the holder.
func (s *session) evict(spot ledger.Spot) error {
	h := s.Holder(spot)
	if len(h.Places) == 0 {
		return nil
	}
	if present := s.ask.Owner.Netns; s.visible(present) && s.dead(present, h.Owner.Netns) {
		s.Retire(h, allPlaces)
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "lease requested address", spot.Addr.String(),
		"wait until the holder is gone, or request another address; rocectl pool list shows all leases",
		"pool %q has leased it to %v (container %s, interface %s)", spot.Pool, h.Owner, h.Owner.ContainerID, h.Owner.IfName)
}

func allPlaces(ledger.Place) State { return ledger.Released }

// exhausted returns the error for a subnet without addresses left.
func (s *session) exhausted(w want) error {
	return cnierr.New(cnierr.PoolExhausted, "lease address", s.ask.Pool,
		"widen ipam.subnets[].ranges, or look for leaks with rocectl pool list", "no address of %v is left: %v", w.Prefix, s.usageOf(w))
}

// usageOf returns how full the subnet of a want is.
func (s *session) usageOf(w want) Usage {
	usage := []Usage{w.usage()}
	count(s.Ledger, s.ask, []want{w}, usage)
	return usage[0]
}

// keep decides about the addresses that the owner already has in the pool. An address
// that fits the request is its lease again, any other goes into quarantine. keep returns
// how many wants are left. It refuses a request when a plugin before in the list has
// leased as this owner: the address is on that plugin's interface.
func (s *session) keep() (missing int, err error) {
	h := s.Holding(s.ask.Owner.Key())
	for _, p := range h.Places {
		if slices.Contains(s.ask.Earlier, p.Addr) {
			return 0, cnierr.New(cnierr.BadConfig, "lease address for", s.ask.Owner.IfName, "list each plugin that leases addresses only once",
				"another plugin of type %q in the list of network %q has leased %s", s.ask.Owner.Program, s.ask.Owner.Network, p.Addr)
		}
	}
	missing = len(s.wants)
	left := s.Retire(h, func(p ledger.Place) State {
		if p.Pool != s.ask.Pool {
			return 0
		}
		i := s.fitting(p.Addr)
		if i < 0 {
			return ledger.Released
		}
		s.leases[i] = s.wants[i].lease(p.Addr, p.Early)
		missing--
		return 0
	})
	if len(left.Places) > 0 && left.Owner != s.ask.Owner {
		// The runtime repeated the ADD, maybe with a new namespace.
		s.Save(ledger.Holding{Owner: s.ask.Owner, Places: left.Places})
	}
	return missing, nil
}

// fitting returns a want without a lease that an address fits, or -1.
func (s *session) fitting(a netip.Addr) int {
	for i, w := range s.wants {
		if !s.leases[i].Prefix.IsValid() && w.fits(a) {
			return i
		}
	}
	return -1
}

const quarantineHint = "wait until the quarantine is over, widen ipam.subnets[].ranges, or shorten ipam.quarantine"

// allInQuarantine returns the error for a subnet in which all addresses that are left are in
// quarantine. r is longest in quarantine.
func (s *session) allInQuarantine(w want, r ledger.Quarantined) error {
	return cnierr.New(cnierr.PoolExhausted, "lease address", s.ask.Pool, quarantineHint,
		"all free addresses of %v are in quarantine, the next one (%v) for %v more, and this program cannot probe for conflicts: %v",
		w.Prefix, r.Addr, s.quarantineLeft(r).Round(time.Second), s.usageOf(w))
}
