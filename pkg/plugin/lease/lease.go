// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package lease leases addresses for attachments and releases them, from the source
// that the configuration names: the node's own pools, a RailPool with or without
// sticky addresses, another IPAM plugin, or the plugins before roce.
//
// It never touches a link, and never releases what it did not lease. Package attach
// and the program roce-ipam call it; neither knows the source of the addresses. Read
// this file first: Claim takes one attachment from its configuration to its addresses,
// Allocator does what needs no claim. subnets.go finds the subnets of a rail. The
// other files are one for each source, but that of what is there before roce.
package lease

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Allocator has all sources of addresses of a node. A caller may leave the fields of
// sources that it does not use at their zero values.
type Allocator struct {
	// Book has the leases of the node's pools.
	Book *ipam.Book
	// Program is the type of the plugin that leases from Book: conf.PluginType, or the
	// plugin that calls roce-ipam. It has nothing to do with leases of other plugins.
	Program string
	// RefuseQuarantined refuses addresses in quarantine, for a program that cannot ask the wire.
	RefuseQuarantined bool
	// Plugins runs other IPAM plugins.
	Plugins Plugins
	// Agent has what the node's agent says about RailPools.
	Agent Agent
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Table is the path of the table for networks with ipam.table, and NodeName what the
	// table calls the node: its host name.
	Table, NodeName string
	// ReadFile reads the table.
	ReadFile func(path string) ([]byte, error)
	// Log takes why a pod does not get its sticky addresses, and which IPAM plugin cannot
	// check.
	Log *slog.Logger
}

// source leases the addresses of one kind of ipam.type.
type source interface {
	// Acquire returns the rails with the addresses of each. It is idempotent: the
	// same attachment gets the same addresses until they are released or rejected.
	Acquire(ctx context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error)
	// Reject takes addresses away from the attachment because another machine
	// answers for them. It returns true if the next Acquire returns others, false if
	// there are no others.
	Reject(ctx context.Context, req conf.Request, rails []plan.Rail, taken []plan.Target) (bool, error)
	// Release releases everything that a recorded attachment has leased. Having no
	// lease counts as success. If the record is lost, only container, interface and
	// namespace are known.
	Release(ctx context.Context, rec record.Record) error
}

// source returns the source for an ipam.type.
func (a Allocator) source(ipamType string) source {
	switch ipamType {
	case "":
		return previous{}
	case conf.PoolType:
		return a.pools()
	}
	return a.Plugins
}

func (a Allocator) pools() pools { return pools(a) }

// Claim is what one attachment asks for. It is not for concurrent use.
type Claim struct {
	a      Allocator
	source source
	given  conf.Request // as the configuration has it
	req    conf.Request // with the subnets of each rail
	rails  []plan.Rail  // those without fault; without leases
	sticky stickyClaim
}

// Claim returns the claim of an attachment with the subnets of each rail. Rails
// with a fault have no part in it. It leases nothing. The error is that of the
// source of the subnets, or BadConfig.
func (a Allocator) Claim(req conf.Request, facts []plan.RailFacts) (*Claim, error) {
	if err := a.notOfRailPool(req.IPAM); err != nil {
		return nil, err
	}
	c := &Claim{a: a, source: a.source(req.IPAM.Type), given: req}
	var err error
	if c.req, err = c.withSubnets(facts); err != nil {
		return nil, err
	}
	for i, one := range c.req.Rails {
		if facts[i].Fault == nil {
			c.rails = append(c.rails, plan.Rail{Rail: one, Facts: facts[i].Facts})
		}
	}
	return c, nil
}

// notOfRailPool refuses a pool with the name of a RailPool of the node. Its leases would
// not count as those of the RailPool, so two pods could get the same address.
func (a Allocator) notOfRailPool(p conf.IPAM) error {
	if p.Type != conf.PoolType || p.RailPool != nil || a.Agent == nil {
		return nil
	}
	if _, err := a.Agent.Read(p.Pool); err != nil && cnierr.CodeOf(err) != cnierr.Unreadable {
		return nil // there is no such file
	}
	return cnierr.New(cnierr.BadConfig, "lease from pool", p.Pool, "set ipam.pool to another name, or use ipam.railPool",
		"the node has a RailPool of this name")
}

// Rails returns the rails without leases.
func (c *Claim) Rails() []plan.Rail { return c.rails }

// LinkFirst says that the interface must be there, up, before Acquire.
func (c *Claim) LinkFirst() bool { return Is(c.req.IPAM.Type) }

// Acquire returns the rails with the addresses of each. It is idempotent: the same
// attachment gets the same addresses until they are released or rejected. After an
// error of our pools there is no new lease. It returns TryAgain when the agent does
// not answer in time which sticky addresses the pod has.
func (c *Claim) Acquire(ctx context.Context) ([]plan.Rail, error) {
	if err := c.askSticky(); err != nil {
		return nil, err
	}
	rails, err := c.source.Acquire(ctx, c.req, c.rails)
	if err != nil {
		return nil, c.stickyError(err)
	}
	if err := c.confirmSticky(); err != nil {
		return nil, errors.Join(err, c.source.Release(ctx, record.Record{
			Network: c.req.Network, Attachment: c.req.Attachment,
			Netns: c.req.Netns, NetnsID: c.rails[0].Facts.Pod.Netns,
		}))
	}
	return rails, nil
}

// Reject takes addresses away from the attachment because another machine answers
// for them, and returns whether the next Acquire returns others. If one of them is a
// sticky address, the next Acquire returns ordinary addresses for all rails, and the
// agent is not asked again.
func (c *Claim) Reject(ctx context.Context, taken []plan.Target) (again bool, err error) {
	again, err = c.source.Reject(ctx, c.req, c.rails, taken)
	if c.withoutSticky() {
		again = true
	}
	return again, err
}

// Preview returns what Acquire would return now, and leases nothing. Other IPAM
// plugins are not asked: the rails are then without addresses.
func (c *Claim) Preview(ctx context.Context) ([]plan.Rail, error) {
	if err := c.askSticky(); err != nil {
		return nil, err
	}
	switch from := c.source.(type) {
	case previous:
		return from.Acquire(ctx, c.req, c.rails)
	case pools:
		return from.Preview(ctx, c.req, c.rails)
	}
	return c.rails, nil
}

// Status returns an error if the source has no address left or cannot be asked. Its
// code is cnierr.NotAvailable or cnierr.Limited.
func (c *Claim) Status(ctx context.Context) error {
	switch from := c.source.(type) {
	case previous:
		return nil
	case pools:
		return cnierr.Unavailable(from.Status(ctx, c.req, c.rails))
	}
	return c.a.Plugins.Status(ctx, c.req)
}

// StatusError returns the error of STATUS for an error of Claim. It is nil if the
// node has no addresses of a RailPool yet and the network does not want STATUS to
// fail for lack of addresses.
func StatusError(req conf.Request, err error) error {
	if req.IPAM.RailPool != nil && req.Status.Pool == conf.Off && cnierr.CodeOf(err) == cnierr.TryAgain {
		return nil
	}
	return cnierr.Unavailable(err)
}

// Check says which addresses of a record are not leased to its attachment any more,
// as the source of the addresses knows it. That an IPAM plugin cannot check is only
// logged.
func (a Allocator) Check(ctx context.Context, req conf.Request, rec record.Record) error {
	if rec.IPAM == "" || rec.IPAM == conf.PoolType {
		return a.CheckRecord(ctx, rec)
	}
	err := a.Plugins.Check(ctx, req)
	if errors.Is(err, ErrNoCheck) {
		a.Log.Warn("CHECK is only about what roce made", "ipam", req.IPAM.Type, "error", err)
		return nil
	}
	return err
}

// CheckRecord is Check from the record alone. It does not ask other IPAM plugins,
// which want the configuration of the network.
func (a Allocator) CheckRecord(ctx context.Context, rec record.Record) error {
	if rec.IPAM != conf.PoolType {
		return nil
	}
	return a.pools().check(ctx, rec)
}

// CheckRepeated is CheckRecord for an ADD that is repeated. It also fails if prevResult
// now has other addresses.
func (a Allocator) CheckRepeated(ctx context.Context, req conf.Request, rec record.Record) error {
	if req.Prev != nil {
		given, err := plan.PreviousLease(*req.Prev)
		if err != nil || !slices.Equal(given.Addresses, rec.Plan.Addresses()) {
			return cnierr.New(cnierr.Damaged, "check addresses of", string(rec.IfName), "", "the plugins before roce give others")
		}
	}
	return a.CheckRecord(ctx, rec)
}

// CheckHeld is CHECK of roce-ipam, which has no record: it says that an attachment holds no
// lease of our pools for its network.
func (a Allocator) CheckHeld(ctx context.Context, req conf.Request, netns netns.ID) error {
	entries, err := a.Book.List(ctx, "")
	owner := a.pools().key(req.Network, req.Attachment)
	held := slices.ContainsFunc(entries, func(e ipam.Entry) bool {
		if e.State == ledger.SetAside { // since a rebuild of the database: go by the namespace
			return ledger.Aside{Addr: e.Addr, Owner: e.Owner}.Of(owner, netns)
		}
		return e.State == ledger.Leased && e.Owner.Key() == owner
	})
	if err != nil || held {
		return err
	}
	return cnierr.New(cnierr.Damaged, "check leases of container", string(req.ContainerID),
		"delete the pod: its address may be given to another one; rocectl pool list shows who has it",
		"network %q has none for interface %q", req.Network, req.IfName)
}

// Release releases everything that a recorded attachment has leased. Having no lease
// counts as success. The addresses of an adopted interface belong to the plugin that made it.
func (a Allocator) Release(ctx context.Context, rec record.Record) error {
	return a.source(rec.IPAM).Release(ctx, rec)
}

// ReleaseByDEL is Release with facts that only the runtime's DEL has.
func (a Allocator) ReleaseByDEL(ctx context.Context, rec record.Record, d conf.Del) error {
	return a.Release(ctx, asCalled(rec, d))
}

// ReleaseUnfinished is Release after an ADD that did not finish. An IPAM plugin that is not
// installed is no error, because ADD cannot have leased from it.
func (a Allocator) ReleaseUnfinished(ctx context.Context, rec record.Record) error {
	if err := a.Release(ctx, rec); !errors.Is(err, ErrNotInstalled) {
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
	entries, err := a.Book.List(ctx, "")
	var out []conf.Attachment
	for _, e := range entries {
		at := e.Owner.Attachment()
		if e.State == ledger.Leased && e.Owner.Key() == a.pools().key(gc.Network, at) && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out, err
}

// ReleaseHeld releases what Held says of an attachment.
func (a Allocator) ReleaseHeld(ctx context.Context, gc conf.GC, at conf.Attachment) error {
	if gc.IPAM != conf.PoolType {
		return nil
	}
	return a.pools().Release(ctx, record.Record{Network: gc.Network, Attachment: at})
}

// GC forwards a GC to the IPAM plugin of the network, if it has one.
func (a Allocator) GC(ctx context.Context, gc conf.GC) error {
	if !Is(gc.IPAM) {
		return nil
	}
	return a.Plugins.GC(ctx, gc)
}

// asCalled returns a record as an IPAM plugin sees it. It has the configuration of
// ADD, and from DEL's input the facts that only the runtime has.
func asCalled(rec record.Record, d conf.Del) record.Record {
	if !Is(rec.IPAM) {
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

// previous leases nothing: there is no address, or the plugins before roce have leased it.
type previous struct{}

// Acquire implements source.
func (previous) Acquire(_ context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error) {
	if req.Prev == nil {
		return rails, nil
	}
	given, err := plan.PreviousLease(*req.Prev)
	return []plan.Rail{{Rail: rails[0].Rail, Facts: rails[0].Facts, Lease: given}}, err
}

// Reject implements source: only the plugin that leased an address has others.
func (previous) Reject(context.Context, conf.Request, []plan.Rail, []plan.Target) (bool, error) {
	return false, nil
}

// Release implements source: only the plugin that leased an address releases it.
func (previous) Release(context.Context, record.Record) error { return nil }
