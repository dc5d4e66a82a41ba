// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// disrupting runs the steps of Disrupting that the user has asked for on a NIC.
func (b Bench) disrupting(ctx context.Context, v view, p nic.Port, rail int) {
	for _, step := range []struct {
		name string
		run  func(Bench, context.Context, view, *scene) []report.Finding
	}{{"gid-full", Bench.full}, {"failover", Bench.failover}, {"reload", Bench.reload}} {
		if ctx.Err() != nil || !slices.Contains(b.Disrupt, step.name) {
			continue
		}
		s := &scene{Bench: b, v: v, port: p, rail: rail}
		found := step.run(b, ctx, v, s)
		if err := s.end(context.WithoutCancel(ctx)); err != nil {
			found = append(found, problem(p.String(), err.Error(), aKnownFault))
		}
		b.say(step.name, found...)
	}
}

// notAsked says which steps of Disrupting did not run.
func (b Bench) notAsked() {
	for _, s := range Disrupting() {
		if !slices.Contains(b.Disrupt, s.Name) {
			b.say(s.Name, cannotTell("", "it was not run, because programs that use the NIC are disturbed", "--disrupt "+s.Name+", on a node without jobs"))
		}
	}
}

// failover makes another slave of a bond the active one, and then the first one again.
func (b Bench) failover(ctx context.Context, v view, s *scene) []report.Finding {
	dir := path.Join("class/net", s.port.NIC.Name, "bonding")
	mode, slaves, active := v.text(dir+"/mode"), strings.Fields(v.text(dir+"/slaves")), v.text(dir+"/active_slave")
	others := slices.DeleteFunc(slices.Clone(slaves), func(n string) bool {
		return n == active || v.text("class/net/"+n+"/operstate") != "up"
	})
	switch {
	case mode == "":
		return nil // no bond
	case !strings.HasPrefix(mode, "active-backup") || len(others) == 0:
		return []report.Finding{cannotTell(s.port.String(), fmt.Sprintf("%s has the mode %q, and the slaves %s", s.port.NIC.Name, mode, strings.Join(slaves, ", ")), "the mode active-backup, with two slaves that are up")}
	}
	p, err := s.add(ctx, nil)
	if err != nil {
		return []report.Finding{cannotTell(s.port.String(), err.Error(), "a pod: see pod-add")}
	}
	if err := b.activate(s.port.NIC.Name, active, others[0]); err != nil {
		return []report.Finding{cannotTell(s.port.String(), err.Error(), "the right to change the bond")}
	}
	found := p.settled(ctx, "after the failover from "+active+" to "+others[0])
	if err := b.restoreSlaves(); err != nil {
		found = append(found, problem(s.port.String(), err.Error(), "echo "+active+" >"+activeFile(s.port.NIC.Name)))
	}
	return found
}

// settled waits until the addresses of the pod have entries, and compares them and CHECK
// with what ADD found.
func (p *pod) settled(ctx context.Context, when string) []report.Finding {
	of := p.ports[0].String()
	s, _, end, err := p.subsystem()
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the namespace of the pod")}
	}
	defer end()
	was, is := p.indexes(), map[netip.Addr]int{}
	err = p.wait(ctx, func() error {
		clear(is)
		// The table is that of the namespace that has the device.
		for _, side := range []rdma.Side{rdma.Host, rdma.Pod} {
			seen, _, err := s.Table(side, rdma.Pod, p.ports[0].Device.Name, p.ports[0].Number)
			if err != nil {
				continue
			}
			for a := range was {
				for _, e := range gidtable.Of(seen, a) {
					is[a] = e.Index
				}
			}
		}
		if len(is) < len(was) {
			return fmt.Errorf("%d of %d addresses have an entry", len(is), len(was))
		}
		return nil
	})
	if err != nil {
		return []report.Finding{problem(of, when+": "+err.Error(), "rocectl gids")}
	}
	changed := !maps.Equal(was, is)
	err = p.Attach.Check(ctx, p.req)
	found := fmt.Sprintf("%s: indexes were %s, and are %s", when, at(was), at(is))
	var moved *rdma.MovedError
	if changed != errors.As(err, &moved) {
		return []report.Finding{problem(of, fmt.Sprintf("%s; CHECK says: %v", found, err), aKnownFault)}
	}
	return []report.Finding{ok(of, "%s", found)}
}

// reload reloads the driver while a pod is there.
func (b Bench) reload(ctx context.Context, v view, s *scene) []report.Finding {
	of := s.port.String()
	const program = "devlink"
	function := discover.Function(v.Sys, s.port.Device.Name, "")
	if _, err := exec.LookPath(program); err != nil || function == "" {
		return []report.Finding{cannotTell(of, "the device has no PCI function, or there is no program devlink", "a NIC, and the package iproute2")}
	}
	p, err := s.add(ctx, nil)
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "a pod: see pod-add")}
	}
	said, err := exec.CommandContext(ctx, program, "dev", "reload", "pci/"+function).CombinedOutput() //nolint:gosec // a PCI address
	if err != nil {
		return []report.Finding{cannotTell(of, fmt.Sprintf("devlink dev reload pci/%s: %v: %s", function, err, lastLine(string(said))), "a driver that can be reloaded by devlink")}
	}
	if err := b.wait(ctx, func() error { return b.there(ctx, s.port) }); err != nil {
		return []report.Finding{problem(of, "after the reload: "+err.Error(), "rdma link; ip link")}
	}
	found := "the device is back under its name and GUID"
	err = p.Attach.Check(ctx, p.req)
	var out []report.Finding
	switch err {
	case nil:
		found += ", and the pod has all that it had"
	default:
		found += fmt.Sprintf("; CHECK says: %v", err)
	}
	if err := p.del(ctx); err != nil {
		out = append(out, problem(of, "DEL after the reload: "+err.Error(), aKnownFault))
	}
	return append(out, ok(of, "%s", found))
}

// there returns an error if the host does not have the device of a port, with the port
// active on its interface.
func (b Bench) there(ctx context.Context, p nic.Port) error {
	v, err := b.Node.open(ctx)
	if err != nil {
		return err
	}
	defer v.route.Close()
	for _, o := range v.roce() {
		if o.String() == p.String() && o.Device.GUID == p.Device.GUID && o.State == nldev.Active && o.NIC.Name == p.NIC.Name {
			return nil
		}
	}
	return fmt.Errorf("the host does not have %s on %s, active", p, p.NIC.Name)
}

// slaves is the folder that has, for each bond that the step failover has changed, the
// slave that was active: Clean makes it active again.
func (b Bench) slaves() string { return b.StateDir + ".bonds" }

// activeFile is the file of sysfs that has the active slave of a bond.
func activeFile(bond string) string {
	return filepath.Join("/sys/class/net", bond, "bonding/active_slave")
}

// activate makes a slave of a bond the active one. What is active now is on record first.
func (b Bench) activate(bond, now, next string) error {
	if err := trusted.MakeFolder(b.slaves(), 0o700); err != nil {
		return err
	}
	if err := trusted.Replace(filepath.Join(b.slaves(), bond), []byte(now), 0o600); err != nil {
		return err
	}
	return write(activeFile(bond), next)
}

// restoreSlaves makes the slaves active again that were it before a failover.
func (b Bench) restoreSlaves() error {
	bonds, err := os.ReadDir(b.slaves())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, f := range bonds {
		record := filepath.Join(b.slaves(), f.Name())
		slave, err := os.ReadFile(record)
		if err == nil {
			err = write(activeFile(f.Name()), string(slave))
		}
		if errors.Is(err, fs.ErrNotExist) { // the bond is gone, or the record was not complete
			err = nil
		}
		if err != nil {
			errs = append(errs, cnierr.New(cnierr.IO, "make the slave active that was it before the failover of", f.Name(),
				"choose one yourself, then remove "+record, "%q: %w", slave, err))
			continue
		}
		errs = append(errs, os.Remove(record))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(b.slaves())
}

// write writes to a file that is there.
func write(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
