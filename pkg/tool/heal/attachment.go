// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
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
	nsid       int32             // of the pod's namespace
	parents    []string          // its NICs, and other links of the host that it shares
	links      []string          // the links of the host that it has for itself
	nics       map[string]string // the NIC of each of its interfaces
	host, rdma bool              // it has routes or rules of the host, or an RDMA device
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
	said   []string      // the last errors that are not about its NICs alone
	blames []string      // the last errors about its NICs
}

// of returns what concerns the attachment of a record.
func of(rec record.Record) attachment {
	a := attachment{at: rec.Attachment, network: rec.Network, pod: rec.Pod, nics: map[string]string{}, state: state{due: never}}
	for _, op := range rec.Plan.Ops {
		if c, is := op.Kind.(plan.Child); is {
			a.parents = append(a.parents, string(c.Parent))
			a.nics[string(c.Name)] = string(c.Parent)
		}
		switch link := string(op.Link()); {
		case op.Place == plan.Pod || link == "" || op.By() == plan.ByRDMA: // its link is in the pod, wherever the device is
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
	a.pause.Until, a.stuck, a.said, a.blames = until, false, nil, nil
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

// complaint is an error of an attachment that is not said yet. same is what other pods of its
// NIC can complain of too, or "".
type complaint struct {
	of   attachment
	err  error
	same string
}

// complain says an error of a NIC once for all its pods, and keeps the others for say. The
// caller holds the lock.
func (h *Healer) complain(a *attachment, err error) {
	had := a.said
	a.said, a.blames = nil, nil
	for _, e := range cnierr.Each(err) {
		text, c := e.Error(), complaint{of: *a, err: e}
		var moved *rdma.MovedError
		var is *cnierr.Error
		switch {
		case slices.Contains([]cnierr.Code{cnierr.BadParent, cnierr.NoRDMA, cnierr.RDMAHeld}, cnierr.CodeOf(e)):
			a.blames = append(a.blames, text)
			if !h.blamed[text] {
				h.blamed[text] = true
				h.note(calls.Call{Error: text, Code: cnierr.CodeOf(e)})
				h.Log.Warn("pods cannot be healed before their NIC is well", "error", e)
			}
			continue
		case errors.As(e, &moved):
			c.same = moved.Port + ": GID indexes changed, as after a failover of a bond or a reset of the NIC"
			a.blames = append(a.blames, c.same)
		case errors.As(e, &is) && a.nics[is.Subject] != "":
			c.same = fmt.Sprintf("%s: %v", a.nics[is.Subject], is.Err)
		}
		if a.said = append(a.said, text); !slices.Contains(had, text) && !h.blamed[c.same] {
			h.unsaid = append(h.unsaid, c)
		}
	}
}

// say says what several pods of a NIC complain of once, and the rest once for each pod.
func (h *Healer) say() {
	h.mu.Lock()
	defer h.mu.Unlock()
	pods := map[string]map[conf.Attachment]bool{}
	for _, c := range h.unsaid {
		if pods[c.same] == nil {
			pods[c.same] = map[conf.Attachment]bool{}
		}
		pods[c.same][c.of.at] = true
	}
	alone := map[conf.Attachment][]error{}
	for _, c := range h.unsaid {
		switch n := len(pods[c.same]); {
		case c.same == "" || n == 1:
			alone[c.of.at] = append(alone[c.of.at], c.err)
		case !h.blamed[c.same]:
			h.blamed[c.same] = true
			h.note(calls.Call{Error: fmt.Sprintf("%d pods on %s; rocectl check on the node names them", n, c.same), Code: cnierr.CodeOf(c.err)})
			h.Log.Warn("pods of a NIC cannot be healed", "pods", n, "error", c.same)
		}
	}
	for _, c := range h.unsaid {
		if errs := alone[c.of.at]; errs != nil {
			delete(alone, c.of.at)
			text := errors.Join(errs...).Error()
			h.note(calls.Call{Network: c.of.network, Attachment: c.of.at, Pod: c.of.pod.String(), UID: c.of.pod.UID, Error: text, Code: cnierr.CodeOf(errs[0])})
			h.Log.Warn("an attachment cannot be healed", append(c.of.names(), "error", text)...)
		}
	}
	h.unsaid = nil
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
