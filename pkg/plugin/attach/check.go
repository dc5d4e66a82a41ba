// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Check reports everything about an attachment that is not as ADD made it, and for
// each finding the command that restores it. It changes nothing. It does not report
// what other programs have set: the MTU and the settings of the interface, and its MAC
// unless that differs from the MAC that the runtime knows.
func (n Node) Check(ctx context.Context, req conf.Request) error {
	at := req.Attachment
	return n.standing(ctx, at, req.Netns, func(k *pod, rec record.Record) error {
		damage := examine(ctx, k, rec.Plan, req.MACs).damage
		return errors.Join(append(damage, n.Addresses.Check(ctx, req, rec))...)
	})
}

// CheckRecord is Check from the record alone, without the configuration of the
// network. It does not ask other IPAM plugins, because they need the configuration.
// Without a record, the error contains record.ErrNotExist. changed is what other
// programs have set, and what is no damage.
func (n Node) CheckRecord(ctx context.Context, at conf.Attachment) (changed []error, err error) {
	err = n.standing(ctx, at, "", func(k *pod, rec record.Record) error {
		found := examine(ctx, k, rec.Plan, nil)
		changed = found.changed
		return errors.Join(append(found.damage, n.Addresses.CheckRecord(ctx, rec))...)
	})
	return changed, err
}

// standing runs fn with the record of an attachment that ADD finished. While fn runs,
// the container's lock is held and the namespace is open. netns is the path of the
// namespace now; "" means the recorded path.
func (n Node) standing(ctx context.Context, at conf.Attachment, netns string, fn func(*pod, record.Record) error) error {
	unlock, err := n.Records.Lock(ctx, at.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()

	rec, err := n.Records.Load(at)
	if errors.Is(err, record.ErrNotExist) {
		return notAdded(at, "container %q has %w", at.ContainerID, err)
	}
	if err != nil {
		return err
	}
	if !rec.Committed {
		return notAdded(at, "its record for container %q is unfinished", at.ContainerID)
	}
	k, err := n.openRecorded(netns, rec)
	if err != nil {
		return err
	}
	defer k.Close()
	if k.ID() != rec.NetnsID {
		return cnierr.New(cnierr.Damaged, "check namespace", cmp.Or(netns, rec.Netns), "delete the pod: its namespace was replaced",
			"it is not the one that ADD worked in")
	}
	return fn(k, rec)
}

// openRecorded opens a namespace that the runtime named, or, for "", the
// recorded one.
func (n Node) openRecorded(netns string, rec record.Record) (*pod, error) {
	if netns != "" {
		return n.open(netns)
	}
	k, err := n.open(rec.Netns)
	if errors.Is(err, kernel.ErrNetnsGone) {
		return nil, cnierr.New(cnierr.Damaged, "check namespace", rec.Netns,
			"wait: the pod is gone, and the runtime's DEL or GC removes the rest", "%w", kernel.ErrNetnsGone)
	}
	return k, err
}

func notAdded(at conf.Attachment, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, "check interface", string(at.IfName),
		"delete the pod: its ADD did not finish, or was undone, on this node", format, args...)
}
