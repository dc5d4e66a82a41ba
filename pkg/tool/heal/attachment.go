// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// attachment is what is known of one attachment: from its record what concerns it, and
// what was done.
type attachment struct {
	at         conf.Attachment
	network    string
	pod        conf.Pod
	nsid       int32    // of the pod's namespace
	parents    []string // its NICs, and other links of the host that it shares
	links      []string // the links of the host that it has for itself
	host, rdma bool     // it has routes or rules of the host, or an RDMA device
	state
}

// never is when an attachment is looked at that nothing is known of.
const never = time.Duration(-1)

// state is what was done with an attachment.
type state struct {
	due    time.Duration // when it is looked at, or never
	pause  pace.Pause    // it is not looked at before
	looked time.Duration // when it was last looked at
	healed time.Duration // when it was last healed, 0: never
	stuck  bool          // it could not be made whole
	said   string        // the last error
	blames []string      // the last errors about its NICs
}

// of returns what concerns the attachment of a record.
func of(rec record.Record) attachment {
	a := attachment{at: rec.Attachment, network: rec.Network, pod: rec.Pod, state: state{due: never}}
	for _, op := range rec.Plan.Ops {
		if c, is := op.Kind.(plan.Child); is {
			a.parents = append(a.parents, string(c.Parent))
		}
		switch link := string(op.Link()); {
		case op.Place == plan.Pod || link == "":
		case op.Shared:
			a.parents = append(a.parents, link)
		default:
			a.links = append(a.links, link)
		}
		a.host = a.host || op.Place == plan.Host && op.Routing()
		a.rdma = a.rdma || op.By() == plan.ByRDMA
	}
	return a
}

// concerns says whether a change can be damage of the attachment, or the end of it. NICs
// change each time that a pod comes or goes. If one goes, the kernel tells it in the pods.
func (a *attachment) concerns(e Event) bool {
	switch {
	case e.RDMA:
		return a.rdma
	case e.NSID != own:
		return e.NSID == a.nsid
	case e.Link != "":
		return slices.Contains(a.links, e.Link) || a.stuck && slices.Contains(a.parents, e.Link)
	}
	return a.host && e.Gone
}

// copy returns a copy, nil for nil.
func (a *attachment) copy() *attachment {
	if a == nil {
		return nil
	}
	return new(*a)
}

// set changes what is known of an attachment, if it is still followed.
func (h *Healer) set(a *attachment, change func(*attachment)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if is := h.attachments[a.at]; is != nil {
		change(is)
	}
}

// intact notes that nothing is missing. The attachment is not looked at before a time.
func (a *attachment) intact(until time.Duration) {
	a.pause.Until, a.stuck, a.said, a.blames = until, false, "", nil
	if a.due != never {
		a.due = max(a.due, until)
	}
}

// done notes the end of a repair. Each time that an attachment does not hold, or cannot be
// made whole, the next look is later.
func (h *Healer) done(a *attachment, did plan.Ops, err error) {
	now := h.Clock.Now()
	h.set(a, func(is *attachment) {
		if is.healed != 0 && now-is.healed > holds && !is.stuck {
			is.pause.Wait = 0
		}
		if len(did) > 0 {
			is.healed = now
		}
		is.stuck = err != nil
		is.pause.Fail(h.Clock)
		is.due = is.pause.Until
		if err != nil {
			h.complain(is, err)
		}
	})
}

// complain says an error once: of a NIC for all its pods, and otherwise for the pod.
// The caller holds the lock.
func (h *Healer) complain(a *attachment, err error) {
	a.blames = nil
	var mine []error
	for _, e := range cnierr.Each(err) {
		if !ofNIC(e) {
			mine = append(mine, e)
			continue
		}
		a.blames = append(a.blames, e.Error())
		if !h.blamed[e.Error()] {
			h.blamed[e.Error()] = true
			h.note(calls.Call{Error: e.Error(), Code: cnierr.CodeOf(e)})
			h.Log.Warn("pods cannot be healed before their NIC is well", "error", e)
		}
	}
	text := ""
	if len(mine) > 0 {
		text = errors.Join(mine...).Error()
	}
	if text == a.said {
		return
	}
	if a.said = text; text != "" {
		h.note(calls.Call{Network: a.network, Attachment: a.at, Pod: a.pod.String(), UID: a.pod.UID, Error: text, Code: cnierr.CodeOf(mine[0])})
		h.Log.Warn("an attachment cannot be healed", append(a.names(), "error", text)...)
	}
}

// forgive forgets the errors of NICs that no attachment has any more. The caller holds the
// lock.
func (h *Healer) forgive() {
	clear(h.blamed)
	for _, a := range h.attachments {
		for _, text := range a.blames {
			h.blamed[text] = true
		}
	}
}

// ofNIC says whether an error is about a NIC or an RDMA port, and so the same for all pods on
// it.
func ofNIC(err error) bool {
	return errors.As(err, new(*rdma.MovedError)) ||
		slices.Contains([]cnierr.Code{cnierr.BadParent, cnierr.NoRDMA, cnierr.RDMAHeld}, cnierr.CodeOf(err))
}

func (h *Healer) tell(a *attachment, did plan.Ops, took time.Duration) {
	if len(did) == 0 {
		return
	}
	c := calls.Call{Network: a.network, Attachment: a.at, Pod: a.pod.String(), UID: a.pod.UID, Took: took}
	var names []string
	for _, op := range did {
		if name := op.Name(); op.By() != plan.ByWire {
			names = append(names, name)
			c.Steps = append(c.Steps, calls.Step{Name: name})
		}
	}
	h.note(c)
	h.Log.Info("healed", append(a.names(), slog.Any("made", names), slog.Duration("took", took))...)
}

func (a *attachment) names() []any {
	return []any{"pod", a.pod.String(), "container", a.at.ContainerID, "interface", a.at.IfName, "network", a.network}
}

// note writes a call, which is for people: nothing depends on it.
func (h *Healer) note(c calls.Call) {
	c.At, c.Verb = time.Now().UTC(), calls.Heal
	if err := h.Calls.Append(c); err != nil {
		h.Log.Warn("what was healed cannot be noted", "error", err)
	}
}
