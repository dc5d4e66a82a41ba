// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/tool/lldp"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

const (
	// reportAgain is how often a report is sent that has not changed: the reaper sees that the
	// agent lives, and a report that was deleted with its Node comes back with the Node.
	reportAgain = 10 * time.Minute
	// secondLook is how soon the second look comes, so that a node reports some seconds after
	// its agent starts.
	secondLook = 5 * time.Second
	// reportRetry is the longest wait after an error.
	reportRetry = 5 * time.Minute
	// listenEvery is how often the agent listens for switches, and listenFor for how long:
	// four intervals of LLDP, after which what a switch has said before has expired.
	listenEvery, listenFor = 10 * time.Minute, 4*lldp.Interval + 5*time.Second
	// calm is fleet.Flaps'.
	calm = 5 * time.Minute
)

// reporter reports the rails of the node. No pod needs its report, so its errors are logged
// and nothing else.
type reporter struct {
	node    string
	every   time.Duration // between two looks
	unused  []string      // interfaces that no network uses
	publish func(ctx context.Context, node string, r fleet.Report) error
	ports   func(ctx context.Context) ([]nic.Details, error)
	wait    func(ctx context.Context, d time.Duration) error
	now     func() time.Duration
	log     *slog.Logger

	published fleet.Report  // what was sent last
	due       time.Duration // when it is sent again
	retry     time.Duration // no report is sent before, after an error

	flaps fleet.Flaps

	mu     sync.Mutex
	heard  map[string]fleet.Connection
	silent map[string]bool // whether a switch was heard once and is not any more, if one was
	seen   []nic.Details   // at the last look, as is traffic
	faults map[string][]fleet.Fault
	// traffic is not read for the metrics, because each client of the network can ask for these,
	// and drivers ask the firmware of the NIC.
	traffic map[usage.Source]usage.Traffic
}

func newReporter(node string, every time.Duration, unused []string, publish func(context.Context, string, fleet.Report) error, log *slog.Logger) *reporter {
	ports := func(ctx context.Context) ([]nic.Details, error) {
		n, err := nic.Live(ctx)
		if err != nil {
			return nil, err
		}
		return n.Inventory(), nil
	}
	wait := func(ctx context.Context, d time.Duration) error { return cli.Wait(ctx, spread(d)) }
	return &reporter{
		node: node, every: every, unused: unused, publish: publish, ports: ports, wait: wait, now: plugin.BootTime, log: log,
		flaps: fleet.Flaps{Calm: max(calm, 3*every)},
	}
}

// run reports until the context ends: what was the same at two looks, because a port may flap,
// with the faults that are confirmed.
func (r *reporter) run(ctx context.Context) {
	sent := &once{log: r.log, what: "the rails of the node cannot be reported, which only kubectl roce rails needs"}
	looked := &once{log: r.log, what: "the NICs of the node cannot be listed"}
	var last, stable *fleet.Report
	for pause := min(secondLook, r.every); ; pause = r.every {
		ports, err := r.ports(ctx)
		looked.note(err)
		if err == nil {
			faults := r.look(ports)
			now := reportOf(ports, r.connections(), r.published)
			if last != nil && reflect.DeepEqual(now, *last) {
				stable = &now
			}
			if last = &now; stable != nil {
				r.send(ctx, stable.With(faults), sent)
			}
		}
		if r.wait(ctx, pause) != nil {
			return
		}
	}
}

// look notes what a look has found, and returns the faults that are confirmed.
func (r *reporter) look(ports []nic.Details) map[string][]fleet.Fault {
	traffic := usage.Node{Sys: os.DirFS("/sys")}.Traffic(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string][]fleet.Fault{}
	for _, p := range ports {
		if name := clean(string(p.Netdev), 15); p.Rail != nil && !slices.Contains(r.unused, name) {
			found[name] = faultsOf(p, r.silent[string(p.Netdev)])
		}
	}
	r.seen, r.traffic, r.faults = ports, traffic, r.flaps.Look(r.now(), found)
	return r.faults
}

// faultsOf returns why new pods should not get a NIC. A device that a pod has tells nothing.
// The table of a driver that hides entries can be full without a sign.
func faultsOf(p nic.Details, silent bool) (out []fleet.Fault) {
	switch {
	case p.State == nic.Away:
		return nil
	case p.State != "ACTIVE":
		return []fleet.Fault{fleet.Down}
	}
	if p.GIDs.Size > 0 && p.GIDs.Free() < max(1, p.GIDs.Width) {
		out = append(out, fleet.GIDTableFull)
	}
	if silent {
		out = append(out, fleet.NeighbourLost)
	}
	return out
}

// send sends a report that has changed, or was sent a long time ago.
func (r *reporter) send(ctx context.Context, now fleet.Report, says *once) {
	at := r.now()
	if at < r.retry || reflect.DeepEqual(now, r.published) && at < r.due {
		return
	}
	err := r.publish(ctx, r.node, now)
	if ctx.Err() != nil {
		return
	}
	says.note(block.Explain(err))
	if err != nil {
		r.retry = at + r.pause(err)
		return
	}
	r.published, r.due = now, at+spread(reportAgain)
}

// pause returns how long to wait after an error.
func (r *reporter) pause(err error) time.Duration {
	if busy, is := errors.AsType[*block.BusyError](err); is {
		return spread(max(busy.After, r.every))
	}
	return spread(max(reportRetry, r.every))
}

// rails returns the rails at the last look, for the metrics. A device that a pod has counts as
// up, because it does not tell its state.
func (r *reporter) rails() []agent.Rail {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []agent.Rail
	for _, p := range r.seen {
		if p.Rail != nil && *p.Rail < fleet.MaxRails {
			t := r.traffic[usage.Source{Device: p.Device, Port: p.Number}]
			out = append(out, agent.Rail{
				Number: *p.Rail, Netdev: clean(string(p.Netdev), 15), Device: clean(p.Device, 63), Up: p.State == "ACTIVE" || p.State == nic.Away, GIDs: p.GIDs.Used, GIDTable: p.GIDs.Size,
				Ready: len(r.faults[clean(string(p.Netdev), 15)]) == 0, Sent: t.Sent, Received: t.Received, Unit: t.Unit,
			})
		}
	}
	return out
}

func (r *reporter) connections() map[string]fleet.Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard
}

// listen keeps what the switches say until the context ends. A switch that was not heard is
// not known.
func (r *reporter) listen(ctx context.Context) {
	says := &once{log: r.log, what: "the switches cannot be heard by LLDP"}
	for {
		ports, err := r.ports(ctx)
		if err == nil {
			err = r.hear(ctx, ports)
		}
		says.note(err)
		if r.wait(ctx, listenEvery) != nil {
			return
		}
	}
}

func (r *reporter) hear(ctx context.Context, ports []nic.Details) error {
	var links []string
	for _, p := range ports {
		if p.Rail != nil {
			links = append(links, p.Cables()...)
		}
	}
	ctx, stop := context.WithTimeout(ctx, listenFor)
	defer stop()
	neighbours, err := lldp.Listen(ctx, links)
	heard := map[string]fleet.Connection{}
	for _, p := range ports {
		if n := lldp.Behind(p.Cables(), neighbours); n != nil {
			heard[string(p.Netdev)] = fleet.Connection{Switch: n.Switch, Port: n.Port}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	silent := map[string]bool{}
	for _, p := range ports {
		name := string(p.Netdev)
		_, hears := heard[name]
		_, known := r.silent[name]
		if hears || known { // a port that is down hears nothing
			silent[name] = !hears && (r.silent[name] || err == nil && p.State == "ACTIVE")
		}
	}
	r.heard, r.silent = heard, silent
	return err
}

// reportOf returns the report about the ports that are rails. A device that a pod has does not
// tell its state: it is reported as before.
func reportOf(ports []nic.Details, connections map[string]fleet.Connection, before fleet.Report) fleet.Report {
	out := fleet.Report{Rails: []fleet.Rail{}}
	for _, p := range ports {
		if p.Rail == nil || *p.Rail >= fleet.MaxRails {
			continue
		}
		r := railOf(p, connections[string(p.Netdev)])
		if i := slices.IndexFunc(before.Rails, func(b fleet.Rail) bool { return b.Rail == r.Rail && b.PCI == r.PCI }); i >= 0 && p.State == nic.Away {
			r = before.Rails[i]
			r.Faults = nil
		}
		out.Rails = append(out.Rails, r)
	}
	return out
}

func railOf(p nic.Details, c fleet.Connection) fleet.Rail {
	r := fleet.Rail{
		Rail: *p.Rail, Netdev: clean(string(p.Netdev), 15), PCI: clean(p.PCI, 32), Device: clean(p.Device, 63), Port: int(p.Number),
		State: clean(p.State, 16), Speed: p.Speed, MTU: p.MTU, Vendor: clean(p.VendorID, 4), DeviceID: clean(p.DeviceID, 4),
		Driver: clean(strings.TrimSpace(p.Name+" "+p.Version), 64), Firmware: clean(p.Firmware, 32), GIDs: p.GIDs.Size,
		GIDWidth: p.GIDs.Width, QoS: clean(p.QoS, 128),
		Switch: clean(c.Switch, 64), SwitchPort: clean(c.Port, 64),
	}
	for _, g := range p.GPUs[:min(len(p.GPUs), fleet.MaxGPUs)] {
		r.GPUs, r.Distance = append(r.GPUs, clean(g.Name, 16)), clean(string(g.Distance), 8)
	}
	return r
}

// clean returns at most so many characters of ASCII. The CustomResourceDefinition has the
// same limits.
func clean(s string, limit int) string {
	var out []byte
	for _, r := range s {
		if len(out) == limit {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		out = append(out, byte(r))
	}
	return string(out)
}
