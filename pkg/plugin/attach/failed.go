// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// reject puts the addresses of rec that other machines have into quarantine, and returns
// whether another attempt can succeed: with other addresses in their place, or with the same
// ones, because promised GID indexes moved. It cannot if something of ours is left in the
// kernel, or with another IPAM plugin: the protocol has no second ADD without a DEL. The
// error is cause, with what else went wrong.
func (n Node) reject(ctx context.Context, req conf.Request, claim *lease.Claim, heard answers, rec record.Record, cause error) (again bool, err error) {
	taken := inUse(req, rec.Plan, cause)
	if all := n.answersAll(heard, taken); all != nil {
		return false, errors.Join(all, cause)
	}
	if len(taken) == 0 || undoFailed(cause) {
		return errors.Is(cause, errIndexesMoved) && !undoFailed(cause) && !claim.LinkFirst(), cause
	}
	targets := make([]plan.Target, 0, len(taken))
	for _, t := range taken {
		n.Log.Warn("address is in use", "address", t.Addr, "by", t.By, "interface", t.Link, "what", t.What)
		targets = append(targets, t.Target)
	}
	again, err = claim.Reject(ctx, targets)
	return again && err == nil, errors.Join(cause, err)
}

// answers has the MACs that answered in the attempts of an ADD, each with the address
// that it answered for.
type answers map[conf.MAC]netip.Addr

// answersAll notes who answered in an attempt. It returns an error if one of them has
// answered for another address in an earlier attempt: a pod with CAP_NET_RAW can answer for
// every address, and empty the pool so. The error names the pod if it is on this node.
func (n Node) answersAll(heard answers, taken []probe.Taken) error {
	taken = slices.DeleteFunc(slices.Clone(taken), func(t probe.Taken) bool { return t.By.IsZero() }) // no host answered
	for _, t := range taken {
		if before, ok := heard[t.By]; ok && before != t.Addr {
			return cnierr.New(cnierr.AddressTaken, "claim address", t.Addr.String(),
				"find the machine with this MAC; if it is a pod, which can answer for any address with CAP_NET_RAW, delete it and drop NET_RAW from its containers",
				"%s answers for it, and answered for %s before: %s", t.By, before, cmp.Or(n.podWith(t.By), "no pod of this node has this MAC"))
		}
	}
	for _, t := range taken {
		heard[t.By] = t.Addr
	}
	return nil
}

// podWith names the pod of this node that has a MAC, "" if there is none.
func (n Node) podWith(mac conf.MAC) string {
	found := ""
	for rec, err := range n.Records.All() {
		if err != nil {
			continue
		}
		for m := range plan.All[plan.Child](rec.Plan.Ops) {
			if m.MAC == mac && !m.Mode.SharesMAC() {
				found = "it is " + rec.Who()
			}
		}
	}
	return found
}

// inUse returns the addresses that an ADD found to be in use. Another host answered for
// them, another ipvlan of the NIC has them, or another child of the NIC has the MAC that is
// made from them. A link that was moved out of a namespace before its DEL is such a child.
func inUse(req conf.Request, p plan.Plan, cause error) []probe.Taken {
	var taken *probe.TakenError
	var has *kernel.AddressInUseError
	var busy *kernel.MACInUseError
	switch {
	case errors.As(cause, &taken):
		return taken.Taken
	case errors.As(cause, &has):
	case errors.As(cause, &busy) && plan.MACFromAddress(req):
	default:
		return nil
	}
	for _, i := range p.Interfaces {
		for _, a := range i.Addresses { // without those that are not leased, such as link-local ones
			t := plan.Target{Link: i.Name, MAC: i.MAC, Addr: a.Prefix.Addr()}
			switch {
			case has != nil && has.Addr == t.Addr:
				return []probe.Taken{{Target: t, What: has.Error()}}
			case has == nil && busy.Link == i.Name:
				return []probe.Taken{{Target: t, By: i.MAC, What: busy.Error()}}
			}
		}
	}
	return nil
}

// undoTime is how long a failed ADD may undo what it did, and as long again release its leases,
// when its deadline is near or over. If that takes longer, the DEL that follows does the rest.
const undoTime = 6 * time.Second

// undoing returns the context in which a failed ADD undoes what it did.
func undoing(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	if least := time.Now().Add(undoTime); end.Before(least) {
		end = least
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}

// abandon releases the lease of a failed ADD, undoes what make left, and deletes the
// record. If something of ours stays in the kernel, lease and record stay for DEL. If
// addresses could not be released, the record stays too, with the link that their IPAM
// plugin needs. A plan without addresses needs no record, because DEL calls the IPAM plugin
// without one too: then the link goes first, because that plugin may never answer.
func (n Node) abandon(ctx context.Context, pod *Pod, rec record.Record, cause error) error {
	ctx, cancel := undoing(ctx)
	defer cancel()
	leased := len(rec.Plan.Addresses()) > 0
	if leased && undoFailed(cause) {
		return nil
	}
	if leased {
		if err := n.Addresses.ReleaseUnfinished(ctx, rec); err != nil {
			return err
		}
	}
	_, after := n.teardown(rec)
	err := pod.undo(context.WithoutCancel(ctx), after)
	if undoFailed(cause) {
		return err
	}
	if !leased {
		err = errors.Join(err, n.Addresses.ReleaseUnfinished(ctx, rec))
	}
	if undoFailed(err) {
		return err
	}
	return errors.Join(err, n.drop(ctx, rec))
}

// undoFailed says whether the undoing that followed a failure failed too.
func undoFailed(cause error) bool {
	var undo *plan.UndoError
	return errors.As(cause, &undo)
}
