// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/delegate"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Release releases everything that a recorded attachment has leased. Having no lease
// counts as success. Only the source that leased an address releases it: the
// addresses of an adopted interface belong to the plugin that made the interface.
func (a Allocator) Release(ctx context.Context, rec record.Record) error {
	return a.source(rec.IPAM).Release(ctx, rec)
}

// ReleaseByDEL is Release with facts that only the runtime's DEL has.
func (a Allocator) ReleaseByDEL(ctx context.Context, rec record.Record, d conf.Del) error {
	return a.Release(ctx, asCalled(rec, d))
}

// ReleaseUnfinished is Release after an ADD that did not finish: the attachment may
// have no lease. An IPAM plugin that is not installed is no error, because ADD cannot
// have leased from it.
func (a Allocator) ReleaseUnfinished(ctx context.Context, rec record.Record) error {
	if err := a.Release(ctx, rec); !errors.Is(err, delegate.ErrNotInstalled) {
		return err
	}
	return nil
}

// Held returns the attachments for which the program holds leases of our pools for a
// network. It returns none if the network does not lease from them.
func (a Allocator) Held(ctx context.Context, gc conf.GC) ([]conf.Attachment, error) {
	if gc.IPAM != conf.PoolType {
		return nil, nil
	}
	return a.pools().held(ctx, gc.Network)
}

// ReleaseHeld releases what the program holds of an attachment without record, if the network of a
// GC leases from our pools.
func (a Allocator) ReleaseHeld(ctx context.Context, gc conf.GC, at conf.Attachment) error {
	if gc.IPAM != conf.PoolType {
		return nil
	}
	return a.pools().Release(ctx, record.Record{Network: gc.Network, Attachment: at})
}

// GC forwards a GC to the IPAM plugin of the network, if it has one.
func (a Allocator) GC(ctx context.Context, gc conf.GC) error {
	if !delegate.Is(gc.IPAM) {
		return nil
	}
	return a.Plugins.GC(ctx, gc)
}

// asCalled returns a record as an IPAM plugin sees it. It has the configuration of
// ADD, and from DEL's input the facts that only the runtime has.
func asCalled(rec record.Record, d conf.Del) record.Record {
	if !delegate.Is(rec.IPAM) {
		return rec
	}
	rec.Netns = d.Netns
	var config, call map[string]json.RawMessage
	if json.Unmarshal(rec.Config, &config) != nil || json.Unmarshal([]byte(d.Raw), &call) != nil {
		return rec
	}
	if prev, ok := call["prevResult"]; ok && config != nil {
		config["prevResult"] = prev
		if b, err := json.Marshal(config); err == nil {
			rec.Config = b
		}
	}
	return rec
}
