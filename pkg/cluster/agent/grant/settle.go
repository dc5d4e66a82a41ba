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
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// uses has the slots of a pool that a node uses.
type uses struct {
	slots   block.Slots
	of      map[int]nodefile.Key // by slot, the owner: slots that are leased or granted
	granted map[nodefile.Key]bool
	leased  bool // some address of the pool is leased
}

// look does what is due.
func (c *Controller) look(ctx context.Context) {
	now := c.Now()
	maps.DeleteFunc(c.requests, func(_ nodefile.Key, r *request) bool { return now-r.last >= forgotten })
	due := c.settling.Over(now) || c.settling.Wait == 0 && c.idle() // not after an error
	if !due || c.hushed() {
		return
	}
	err := c.noteBusy(c.settle(ctx))
	if ctx.Err() != nil {
		return
	}
	c.Trouble("sticky addresses", err)
	if err != nil {
		c.settling.Fail(c.Clock)
	}
}

// idle says whether the node holds a slot that no pod used at the last read of the
// leases.
func (c *Controller) idle() bool {
	c.end()
	entries, _, known := c.Seen()
	slots, _ := c.Terms()
	u := c.usesOf(slots, entries)
	for _, slot := range c.mine {
		if _, used := u.of[slot]; known && !used {
			return true
		}
	}
	return false
}

// unanswered says that other requests would get no answer now either.
func unanswered(err error) bool {
	return errors.Is(err, block.ErrUnknown) || errors.As(err, new(*block.BusyError))
}

// settle releases the leases that the node holds and no pod uses, at the start and when a pod is
// gone, and confirms the others from time to time.
func (c *Controller) settle(ctx context.Context) error {
	held, err := c.Claimer.Held(ctx, c.Pool)
	if err != nil {
		return err
	}
	u, err := c.uses(ctx)
	if err != nil {
		return err
	}
	young := false
	var faults []error
	keep := map[string]sticky.Lease{}
	for _, l := range held {
		if u.has(l) {
			keep[l.Name] = l
			continue
		}
		if c.Now() < c.began+Time { // the controller before may have granted it
			young = true
			continue
		}
		err := c.release(ctx, l)
		faults = append(faults, err)
		if unanswered(err) {
			break
		}
	}
	if c.affirming.Over(c.Now()) && errors.Join(faults...) == nil {
		faults = append(faults, c.affirmAll(ctx, u, keep))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	c.settling = c.affirming
	if young {
		c.settling.Until = c.began + Time
	}
	return nil
}

// release releases a lease. After an error the node may still be the holder, or not.
func (c *Controller) release(ctx context.Context, l sticky.Lease) error {
	maps.DeleteFunc(c.mine, func(_ nodefile.Key, slot int) bool { return slot == l.Spec.Slot })
	err := c.Claimer.Release(ctx, l)
	if err == nil {
		c.Log.Info("released a sticky host index: no pod uses it", "pool", c.Pool, "lease", l.Name, "pod", l.Spec.Pod)
	}
	return err
}

// uses reads the leases of pods, after the grants that have ended are forgotten: what an ADD has
// leased before the end of its grant is among them.
func (c *Controller) uses(ctx context.Context) (uses, error) {
	c.end()
	entries, err := c.Leases.List(ctx, "")
	slots, _ := c.Terms()
	return c.usesOf(slots, entries), err
}

// end forgets the grants that have ended.
func (c *Controller) end() {
	now := c.Now()
	maps.DeleteFunc(c.grants, func(_ int, g grant) bool { return now >= g.until })
}

func (c *Controller) usesOf(slots block.Slots, entries []ipam.Entry) uses {
	u := uses{slots: slots, of: map[int]nodefile.Key{}, granted: map[nodefile.Key]bool{}}
	for _, e := range entries {
		if !e.Of(pool.OfRailPool(c.Pool)) || !e.InUse() {
			continue
		}
		u.leased = true
		if slot, ok := slots.Find(e.Addr); ok {
			u.of[slot] = nodefile.Key{Namespace: e.Owner.PodNamespace, Pod: e.Owner.PodName, Interface: e.Owner.IfName}
		}
	}
	for slot, g := range c.grants {
		u.of[slot], u.granted[g.key] = g.key, true
	}
	return u
}

// has says whether the node uses a lease. It goes by the slot, because in a restored etcd the
// lease may be reserved for another pod. A slot that the pool does not have any more has unknown
// addresses: it counts as used while any of the pool is leased, or its pod has a grant.
func (u uses) has(l sticky.Lease) bool {
	if l.Spec.Rack != u.slots.Rack || !u.slots.Has(l.Spec.Slot) {
		return u.leased || u.granted[l.Spec.Key()]
	}
	_, used := u.of[l.Spec.Slot]
	return used
}

// affirmAll affirms the leases that the node holds, as the server says, and those that it uses.
// ADDs need not wait for all.
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
		got, err := c.Claimer.Affirm(ctx, all[name])
		if held := new(block.HeldError); errors.As(err, &held) {
			missing[name] = true
			c.lose(all[name], held)
		} else if err == nil && got.Spec.Rack == u.slots.Rack && u.of[got.Spec.Slot] == got.Spec.Key() {
			c.mine[got.Spec.Key()] = got.Spec.Slot
		} else {
			faults = append(faults, err)
		}
		if unanswered(err) {
			break
		}
		c.unlock()
		c.turn <- struct{}{}
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

// lose grants a slot no more that another node holds.
func (c *Controller) lose(l sticky.Lease, held *block.HeldError) {
	maps.DeleteFunc(c.mine, func(_ nodefile.Key, slot int) bool { return slot == l.Spec.Slot })
	delete(c.grants, l.Spec.Slot)
	if !c.missing[l.Name] {
		c.missing[l.Name] = true
		c.Lost()
		c.Log.Error("a sticky host index of a pod of this node now belongs to another node", "pool", c.Pool, "lease", l.Name, "pod", l.Spec.Pod, "holder", held.Owner.NodeName)
	}
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
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return cnierr.New(cnierr.Limited, "confirm sticky addresses", fmt.Sprint(names), "delete the pods of this node that have these addresses: kubectl get railleases", "another node has them now")
}
