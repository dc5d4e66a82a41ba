// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// scene is a NIC on which a step makes pods of its own, and faults in them.
type scene struct {
	Bench
	v    view
	port nic.Port
	rail int
	pods []*pod
}

// add makes a pod and does ADD and CHECK.
func (s *scene) add(ctx context.Context, rdma map[string]any) (*pod, error) {
	p, err := s.Bench.pod(fmt.Sprintf("%d-s%d", s.rail, len(s.pods)), s.rail, []nic.Port{s.port}, rdma)
	if err != nil {
		return nil, err
	}
	s.pods = append(s.pods, p)
	return p, p.add(ctx)
}

// stage runs a step on a NIC that makes pods of its own, and removes them.
func (b Bench) stage(ctx context.Context, v view, p nic.Port, rail int, step string, run func(*scene, context.Context) []report.Finding) {
	if ctx.Err() != nil {
		return
	}
	s := &scene{Bench: b, v: v, port: p, rail: rail}
	found := run(s, ctx)
	for _, p := range s.pods {
		if err := p.remove(context.WithoutCancel(ctx)); err != nil {
			found = append(found, problem(s.port.String(), err.Error(), aKnownFault))
		}
	}
	b.say(step, found...)
}

// scenarios runs the steps that need pods of their own on a NIC.
func (b Bench) scenarios(ctx context.Context, v view, p nic.Port, rail int) {
	type scenario struct {
		name string
		run  func(*scene, context.Context) error
	}
	steps := []scenario{{"gid-number", (*scene).number}}
	if v.system.Exclusive {
		steps = []scenario{
			{"home-renamed", (*scene).renamed},
			{"home-gone", (*scene).gone},
			{"home-open", (*scene).open},
			{"home-kept", (*scene).kept},
			{"home-late", (*scene).late},
			{"tos", (*scene).tos},
		}
	}
	for _, step := range steps {
		b.stage(ctx, v, p, rail, step.name, func(s *scene, ctx context.Context) []report.Finding {
			err := step.run(s, ctx)
			var missing lack
			switch {
			case errors.As(err, &missing):
				return []report.Finding{cannotTell(p.String(), err.Error(), string(missing))}
			case err != nil:
				return []report.Finding{problem(p.String(), err.Error(), aKnownFault)}
			}
			return []report.Finding{ok(p.String(), "it is as expected")}
		})
	}
	b.stage(ctx, v, p, rail, "gid-events", (*scene).events)
}

// lack is an error that says what a step needs and the node does not have.
type lack string

func (l lack) Error() string { return "it needs " + string(l) }

// atHome returns an error if the host does not have the device of a port under its name.
func (b Bench) atHome(ctx context.Context, p nic.Port) error {
	sys, err := b.Node.rdma(ctx)
	if err != nil {
		return err
	}
	for _, d := range sys.Devices {
		if d.Name == p.Device.Name && d.GUID == p.Device.GUID {
			return nil
		}
	}
	return fmt.Errorf("the host does not have %s", p.Device.Name)
}

// above returns a GID index above all that are used.
func (s *scene) above() (int, error) {
	entries, size, err := gidtable.New(s.Node.Sys, s.port.Device.Name, s.port.Number).Entries()
	if err != nil {
		return 0, err
	}
	index := 9
	if len(entries) > 0 {
		index += entries[len(entries)-1].Index &^ 1 // odd, for RoCE v1 and v2
	}
	if index+leave > size {
		return 0, lack("more free places in the GID table: gid-room")
	}
	return index, nil
}

// number asks for a GID index above all that are used.
func (s *scene) number(ctx context.Context) error {
	index, err := s.above()
	if err != nil {
		return err
	}
	first, err := s.add(ctx, map[string]any{"gidIndex": index})
	if err != nil {
		return err
	}
	for a, at := range first.indexes() {
		if a.Is4() && at != index {
			return fmt.Errorf("%s has index %d, want %d", a, at, index)
		}
	}
	if _, err := s.add(ctx, map[string]any{"gidIndex": index}); cnierr.CodeOf(err) != cnierr.NoGID {
		return fmt.Errorf("a second pod with this index: %w, want error 108", err)
	}
	return nil
}

// renamed gives the device another name in the pod.
func (s *scene) renamed(ctx context.Context) error {
	p, err := s.add(ctx, nil)
	if err != nil {
		return err
	}
	if err := p.within(func() error {
		c, err := nldev.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		sys, err := c.System(ctx)
		if err != nil || len(sys.Devices) == 0 {
			return fmt.Errorf("the pod has %d devices: %w", len(sys.Devices), err)
		}
		return c.Rename(ctx, sys.Devices[0].Index, name)
	}); err != nil {
		return err
	}
	return errors.Join(p.del(ctx), s.atHome(ctx, s.port))
}

// within runs fn in the namespace of the pod.
func (p *pod) within(fn func() error) error {
	k, err := kernel.Open(p.path, p.Node.Sys)
	if err != nil {
		return err
	}
	defer k.Close()
	return k.Enter(fn)
}

// del calls DEL.
func (p *pod) del(ctx context.Context) error { return p.Attach.Del(ctx, conf.DelOf(p.req)) }

// gone ends the namespace before DEL.
func (s *scene) gone(ctx context.Context) error {
	p, err := s.add(ctx, nil)
	if err != nil {
		return err
	}
	return errors.Join(netns.Remove(p.path), p.del(ctx), s.atHome(ctx, s.port))
}

// open has the device file open in DEL.
func (s *scene) open(ctx context.Context) error {
	own := files(s.v, s.port.Device.Name)
	if len(own) == 0 {
		return lack("a device file: modprobe ib_uverbs")
	}
	p, err := s.add(ctx, nil)
	if err != nil {
		return err
	}
	var file *os.File
	if err := p.within(func() (err error) {
		file, err = os.OpenFile(path.Join("/dev/infiniband", own[0]), os.O_RDWR, 0)
		return err
	}); err != nil {
		return errors.Join(lack("a device file that root can open"), err)
	}
	err = errors.Join(p.del(ctx), s.atHome(ctx, s.port))
	_ = file.Close() // it is dead
	return err
}

// keeper is a program that keeps a namespace.
const keeper = "sleep"

// kept has a process in the namespace when that ends.
func (s *scene) kept(ctx context.Context) error {
	if _, err := exec.LookPath(keeper); err != nil {
		return lack("the program " + keeper)
	}
	p, err := s.add(ctx, nil)
	if err != nil {
		return err
	}
	k, err := kernel.Open(p.path, p.Node.Sys)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, keeper, "1000")
	wait, err := k.Start(cmd)
	k.Close()
	if err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = wait()             // it was killed
	}()
	if err := netns.Remove(p.path); err != nil {
		return err
	}
	if err := p.del(ctx); err != nil {
		return fmt.Errorf("DEL while process %d keeps the namespace: %w", cmd.Process.Pid, err)
	}
	return s.atHome(ctx, s.port)
}

// late calls DEL when the next pod has the device.
func (s *scene) late(ctx context.Context) error {
	first, err := s.add(ctx, nil)
	if err != nil {
		return err
	}
	if err := netns.Remove(first.path); err != nil {
		return err
	}
	if err := s.wait(ctx, func() error { return s.atHome(ctx, s.port) }); err != nil {
		return err
	}
	second, err := s.add(ctx, nil)
	if err != nil {
		return err
	}
	if err := first.del(ctx); err != nil {
		return fmt.Errorf("DEL of the first pod: %w", err)
	}
	return second.Attach.Check(ctx, second.req)
}

// wait waits until fn returns no error, for as long as an entry may take.
func (Bench) wait(ctx context.Context, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// tos gives the pod a type of service that is not that of the host.
func (s *scene) tos(ctx context.Context) error {
	own := func() (*uint8, error) {
		l, err := s.v.chosen(ctx, conf.Parent{Name: conf.LinkName(s.port.NIC.Name)})
		if err != nil {
			return nil, err
		}
		f, err := s.v.facts(ctx, conf.RDMAAuto, l)
		return f.TOS, err
	}
	before, err := own()
	if err != nil {
		return err
	}
	if before == nil {
		return lack("the module rdma_cm, and configfs")
	}
	p, err := s.add(ctx, map[string]any{"mode": "exclusive", "tos": int(*before ^ 0x60)}) // CHECK compares it
	if err != nil {
		return err
	}
	if err := p.del(ctx); err != nil {
		return err
	}
	after, err := own()
	if err != nil || after == nil || *after != *before {
		return fmt.Errorf("the host had the type of service %d before, and another one after DEL (%w)", *before, err)
	}
	return nil
}

// How far a table is filled: the step gid-room leaves some entries for the host, and
// stops at a number of addresses. gid-full stops at another number.
const (
	leave    = 8
	mostRoom = 256
	mostFull = 1100
	batch    = 16
)

// filling is what the addresses of a pod did to a table.
type filling struct {
	set    int    // addresses
	free   int    // entries
	width  int    // entries of an address
	table  string // its fill, for people
	room   string // how many more pods fit
	hidden bool   // there can be entries of others that cannot be seen
}

// fill gives the interface of the pod addresses until only a number of entries is free.
// Each must have its entry in time. The addresses go with the pod.
func (p *pod) fill(ctx context.Context, leave, most int) (f filling, err error) {
	s, end, err := p.subsystem()
	if err != nil {
		return f, err
	}
	defer end()
	d := p.rail().Device
	for {
		if err := f.look(s, d); err != nil {
			return f, err
		}
		n := min(batch, (f.free-leave)/f.width, most-f.set)
		if n <= 0 {
			return f, nil
		}
		var addrs []netip.Addr
		for range n {
			a := netip.AddrFrom4([4]byte{198, 18, byte(200 + f.set/250), byte(1 + f.set%250)})
			if err := p.change(ctx, rtnl.AddAddress, alone(a)); err != nil {
				return f, err
			}
			addrs = append(addrs, a)
			f.set++
		}
		p.more = append(p.more, addrs...)
		if _, err := s.Place(ctx, p.rail(), addrs, nil); err != nil {
			return f, errors.Join(err, f.look(s, d))
		}
	}
}

// entries returns the entries that host and pod see together.
func entries(s *rdma.Subsystem, d plan.RDMADevice) (all []gidtable.Entry, size int, hidden bool, err error) {
	var seen [2][]gidtable.Entry
	for _, reader := range []plan.Place{plan.Host, plan.Pod} {
		if seen[reader], size, err = s.Table(plan.Host, reader, d.Name, d.Port); err != nil {
			return nil, 0, false, err
		}
	}
	all, hidden = gidtable.Merge(seen[plan.Host], seen[plan.Pod])
	return all, size, hidden, nil
}

func (f *filling) look(s *rdma.Subsystem, d plan.RDMADevice) error {
	all, size, hidden, err := entries(s, d)
	if err != nil {
		return err
	}
	f.free, f.width, f.hidden, f.table = size-len(all), gidtable.Width(all), hidden, gidtable.Fill(all, size, nil)
	f.room = gidtable.Room(f.free, f.width)
	return nil
}

const sharedOnly = "it is tested in shared mode only"

// room asks how many entries the table takes.
func (p *pod) room(ctx context.Context, v view) report.Finding {
	of := p.ports[0].String()
	if v.system.Exclusive {
		return cannotTell(of, sharedOnly, "rdma system set netns shared")
	}
	start := time.Now()
	f, err := p.fill(ctx, leave, mostRoom)
	found := fmt.Sprintf("%d more addresses have entries after %s: %s; %s", f.set, time.Since(start).Round(time.Millisecond), f.table, f.room)
	switch {
	case err != nil && f.hidden && cnierr.CodeOf(err) == cnierr.NoGID:
		return cannotTell(of, "with hidden entries of others: "+err.Error(), "a node without pods")
	case cnierr.CodeOf(err) == cnierr.NoGID:
		return problem(of, fmt.Sprintf("the table has free places and takes no more: %s: %v", f.table, err), aKnownFault)
	case err != nil:
		return cannotTell(of, err.Error(), "the right to set addresses")
	}
	return ok(of, "%s", found)
}

// full fills the table with the addresses of one pod, and asks for another pod.
func (s *scene) full(ctx context.Context) []report.Finding {
	of := s.port.String()
	if s.v.system.Exclusive {
		return []report.Finding{cannotTell(of, sharedOnly, "rdma system set netns shared")}
	}
	first, err := s.add(ctx, nil)
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "a pod: see pod-add")}
	}
	f, err := first.fill(ctx, 0, mostFull)
	if err == nil && f.set == mostFull {
		return []report.Finding{cannotTell(of, fmt.Sprintf("after %d addresses it is not full: %s", f.set, f.table), "a smaller table")}
	}
	if err != nil && !f.hidden { // with hidden entries the end is not seen before
		return []report.Finding{problem(of, err.Error(), aKnownFault)}
	}
	second, err := s.add(ctx, map[string]any{"gidWait": "1s"})
	says := fmt.Sprint(err)
	switch {
	case err == nil:
		return []report.Finding{problem(of, "a pod was added although the table is full: "+f.table, aKnownFault)}
	case cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(says, "full"):
		return []report.Finding{problem(of, "ADD does not say that the table is full: "+says, aKnownFault)}
	}
	if _, left := s.Attach.Records.Load(second.req.Attachment); !errors.Is(left, record.ErrNotExist) {
		return []report.Finding{problem(of, fmt.Sprintf("the ADD that failed has left a record (%v)", left), aKnownFault)}
	}
	return []report.Finding{ok(of, "after %d addresses ADD says: %s", f.set, says)}
}
