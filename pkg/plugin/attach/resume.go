// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// resume deals with what an earlier ADD of the same attachment left. If that finished
// in this namespace and all of it is in place, resume returns its result, or refuses a
// second roce that adopts, which looks like a repeated ADD. Anything else is taken away
// with its lease, and the result is nil: this ADD starts from nothing.
func (n Node) resume(ctx context.Context, pod *Pod, req conf.Request) (*current.Result, error) {
	rec, err := n.Records.Load(req.Attachment)
	if errors.Is(err, record.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	here := rec.NetnsID == pod.ID()
	if here {
		if err := fits(rec, req); err != nil {
			return nil, err
		}
	}
	if here && rec.Committed && whole(Examine(ctx, pod, rec.Plan, nil)) && n.Addresses.CheckRepeated(ctx, req, rec) == nil {
		if req.Prev != nil { // the plugin that made the interface would have refused a repeated ADD
			return nil, twice(req)
		}
		return rec.Plan.Result(req), nil
	}
	n.Log.Info("remove what an earlier ADD left", "container", req.ContainerID, "interface", req.IfName)
	return nil, n.Remove(ctx, rec, req.Netns, n.Addresses.ReleaseUnfinished)
}

// fits refuses a request for an interface that another network of the pod, or
// another roce of the same list, has made.
func fits(rec record.Record, req conf.Request) error {
	if rec.Network != req.Network {
		return cnierr.New(cnierr.BadEnv, adding, string(req.IfName), "choose another interface name in the pod's networks annotation",
			"the pod has an interface of this name on the network %q", rec.Network)
	}
	if second(rec, req) {
		return twice(req)
	}
	return nil
}

const adding = "add interface"

// twice refuses a second roce of a list.
func twice(req conf.Request) error {
	return cnierr.New(cnierr.BadConfig, adding, string(req.IfName),
		"list roce only once: with rails, it makes several interfaces. If the network has changed since the pod started, delete the pod",
		"another roce in the list of network %q, or another version of it, has made this attachment", req.Network)
}

// second says whether the record is that of another roce before in the list, and not
// that of an earlier ADD of the same.
func second(rec record.Record, req conf.Request) bool {
	switch {
	case req.Before == nil:
		return false
	case req.Prev != nil && len(rec.Plan.Ops.Links()) > 0:
		return true
	case rec.Committed && rec.Digest != req.Digest:
		return true
	}
	return req.Prev == nil && slices.ContainsFunc(req.Before.Interfaces, func(l *current.Interface) bool {
		return l.Sandbox != "" && slices.ContainsFunc(rec.Plan.Interfaces, func(i plan.Interface) bool { return string(i.Name) == l.Name })
	})
}

// whole says that nothing is damaged that another ADD could make again. A NIC that is
// down, and what another program routes, are no reason to take the link away from the pod.
func whole(f Findings) bool {
	return !slices.ContainsFunc(f.Damage, func(err error) bool {
		return !errors.Is(err, kernel.ErrParentDown) && !errors.Is(err, kernel.ErrOutranked)
	})
}
