// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// uses has the slots of a pool that a node uses.
type uses struct {
	slots    block.Slots
	of       map[int]nodefile.Key // by slot, the owner: slots that are leased or granted
	promised map[nodefile.Key]bool
	leased   bool // some address of the pool is leased
}

// settle releases the leases that the node holds and no pod uses. From time to time
// it confirms the others. It is due at the start, and after an answer was removed.
func (c *Controller) settle(ctx context.Context) {
	err := c.noteBusy(c.balance(ctx))
	if ctx.Err() != nil {
		return
	}
	c.Trouble("sticky addresses", err)
	if err != nil {
		c.settling.Fail(c.Clock)
		return
	}
	c.settling = c.affirming
}

// unanswered says that other requests would get no answer now either.
func unanswered(err error) bool {
	return errors.Is(err, block.ErrUnknown) || errors.As(err, new(*block.BusyError))
}

func (c *Controller) balance(ctx context.Context) error {
	held, err := c.Claimer.Held(ctx, c.Pool)
	if err != nil {
		return err
	}
	u, err := c.uses(ctx)
	if err != nil {
		return err
	}
	var faults []error
	keep := map[string]sticky.Lease{}
	for _, l := range held {
		if u.has(l) || c.asked(l.Spec.Key()) { // the next request takes that one again
			keep[l.Name] = l
			continue
		}
		err := c.Claimer.Release(ctx, l)
		if err == nil {
			c.Log.Info("released a sticky host index: no pod uses it", "pool", c.Pool, "lease", l.Name, "pod", l.Spec.Pod)
		}
		faults = append(faults, err)
		if unanswered(err) {
			break
		}
	}
	if c.affirming.Over(c.Clock.Now()) && errors.Join(faults...) == nil {
		faults = append(faults, c.affirmAll(ctx, u, keep))
	}
	return errors.Join(faults...)
}

// uses reads the leases of pods after the answers. Only the controller writes
// answers, so they cannot change meanwhile.
func (c *Controller) uses(ctx context.Context) (uses, error) {
	answers, err := c.Ranges.Answers(c.Pool)
	if err != nil {
		return uses{}, err
	}
	entries, err := c.Leases.List(ctx, "")
	if err != nil {
		return uses{}, err
	}
	slots, _ := c.Terms()
	u := uses{slots: slots, of: map[int]nodefile.Key{}, promised: map[nodefile.Key]bool{}}
	for _, e := range entries {
		if !e.Of(pool.OfRailPool(c.Pool)) || !e.InUse() {
			continue
		}
		u.leased = true
		if slot, ok := slots.Find(e.Addr); ok {
			u.of[slot] = nodefile.Key{Namespace: e.Owner.PodNamespace, Pod: e.Owner.PodName, Interface: e.Owner.IfName}
		}
	}
	for _, a := range answers {
		u.promised[a.Key] = a.Granted()
		if slot := slotOf(slots, a); slot >= 0 {
			u.of[slot] = a.Key
		}
	}
	return u, nil
}

// has says whether the node uses a lease. It goes by the slot, because in a restored
// etcd the lease may be reserved for another pod. If the pool does not have the slot
// any more, the addresses of the slot are unknown. Then the slot counts as used while
// any address of the pool is leased, or while its pod has a grant.
func (u uses) has(l sticky.Lease) bool {
	if l.Spec.Rack != u.slots.Rack || !u.slots.Has(l.Spec.Slot) {
		return u.leased || u.promised[l.Spec.Key()]
	}
	_, used := u.of[l.Spec.Slot]
	return used
}

// affirmAll affirms the leases that the node holds. It also affirms the leases that
// the node uses but does not hold, as the server says.
func (c *Controller) affirmAll(ctx context.Context, u uses, held map[string]sticky.Lease) error {
	all := maps.Clone(held)
	for slot, key := range u.of {
		if name := u.slots.Name(slot); all[name].Name == "" {
			all[name] = sticky.Lease{Name: name, Spec: sticky.Spec{
				Pool: u.slots.Pool, Rack: u.slots.Rack, Slot: slot, Namespace: key.Namespace, Pod: key.Pod, Interface: key.Interface,
			}}
		}
	}
	var faults []error
	missing := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		_, err := c.Claimer.Affirm(ctx, all[name])
		if held := new(sticky.HeldError); errors.As(err, &held) {
			missing[name] = true
			faults = append(faults, c.lose(all[name], held))
			continue
		}
		faults = append(faults, err)
		if unanswered(err) {
			break
		}
	}
	err := errors.Join(faults...)
	if err != nil {
		return err
	}
	c.missing = missing
	c.affirming.OK(c.Clock, affirmEvery)
	c.Trouble("lost sticky addresses", c.inUse(ctx, missing))
	return nil
}

// lose removes the answer that grants a lease that another node holds.
func (c *Controller) lose(l sticky.Lease, held *sticky.HeldError) error {
	answers, err := c.Ranges.Answers(c.Pool)
	slots, _ := c.Terms()
	for _, a := range answers {
		if slotOf(slots, a) == l.Spec.Slot {
			err = errors.Join(err, c.Ranges.RemoveAnswer(c.Pool, a.Key))
		}
	}
	if !c.missing[l.Name] {
		c.missing[l.Name] = true
		c.Lost()
		c.Log.Error("a sticky host index of a pod of this node now belongs to another node", "pool", c.Pool, "lease", l.Name, "pod", l.Spec.Pod, "holder", held.Lease.Spec.Holder.NodeName)
	}
	return err
}

// inUse returns an error that names those of some leases that pods have addresses of.
func (c *Controller) inUse(ctx context.Context, missing map[string]bool) error {
	if len(missing) == 0 {
		return nil
	}
	u, err := c.uses(ctx)
	if err != nil {
		return err
	}
	var names []string
	for slot := range u.of {
		if name := u.slots.Name(slot); missing[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return taken(names)
}

// taken is the error that pods use addresses that another node holds.
func taken(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return cnierr.New(cnierr.Limited, "confirm sticky addresses", fmt.Sprint(names), "delete the pods of this node that have these addresses: kubectl get railleases", "another node has them now")
}
