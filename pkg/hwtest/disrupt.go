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
	"syscall"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
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
		run  func(*scene, context.Context) []report.Finding
	}{{"gid-full", (*scene).full}, {"failover", (*scene).failover}, {"reload", (*scene).reload}} {
		if slices.Contains(b.Disrupt, step.name) {
			b.stage(ctx, v, p, rail, step.name, step.run)
		}
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
func (s *scene) failover(ctx context.Context) []report.Finding {
	v, dir := s.v, path.Join("class/net", s.port.NIC.Name, "bonding")
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
	if err := s.activate(s.port.NIC.Name, active, others[0]); err != nil {
		return []report.Finding{cannotTell(s.port.String(), err.Error(), "the right to change the bond")}
	}
	found := p.settled(ctx, "after the failover from "+active+" to "+others[0])
	if err := s.restoreSlaves(); err != nil {
		found = append(found, problem(s.port.String(), err.Error(), "echo "+active+" >"+activeFile(s.port.NIC.Name)))
	}
	return found
}

// settled waits until the addresses of the pod have entries, and compares them and CHECK
// with what ADD found.
func (p *pod) settled(ctx context.Context, when string) []report.Finding {
	of := p.ports[0].String()
	s, end, err := p.subsystem()
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the namespace of the pod")}
	}
	defer end()
	was, is := p.indexes(), map[netip.Addr]int{}
	err = p.wait(ctx, func() error {
		clear(is)
		// The table is that of the namespace that has the device.
		for _, side := range []plan.Place{plan.Host, plan.Pod} {
			seen, _, err := s.Table(side, plan.Pod, p.ports[0].Device.Name, p.ports[0].Number)
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

// remake returns the command that makes the device of a port again; nil if there is none.
// Soft-RoCE has no function to reload.
func (s *scene) remake() []string {
	device := s.port.Device.Name
	if function := discover.Function(s.v.Sys, device, ""); function != "" {
		return []string{"devlink", "dev", "reload", "pci/" + function}
	}
	if bus, _ := discover.Hardware(s.v.Sys, device); bus != "" {
		return nil
	}
	return []string{"sh", "-ec", `rdma link delete "$0"; rdma link add "$0" type rxe netdev "$1"`, device, s.port.Own.Name}
}

// reload makes the device again, while pods are there and the table has a hole: the first
// pod is gone.
func (s *scene) reload(ctx context.Context) []report.Finding {
	of, command := s.port.String(), s.remake()
	if len(command) == 0 {
		return []report.Finding{cannotTell(of, "the device has no PCI function", "a NIC")}
	}
	pods := 3
	if s.v.system.Exclusive {
		pods = 1
	}
	for range pods {
		if _, err := s.add(ctx, nil); err != nil {
			return []report.Finding{cannotTell(of, err.Error(), "pods: see pod-add")}
		}
	}
	stay := s.pods[pods-min(2, pods):]
	if pods > len(stay) {
		if err := s.pods[0].del(ctx); err != nil {
			return []report.Finding{problem(of, err.Error(), aKnownFault)}
		}
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...) //nolint:gosec // the words are ours
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}                               // it must end whatever ends us
	if said, err := cmd.CombinedOutput(); err != nil {
		return []report.Finding{cannotTell(of, fmt.Sprintf("%s: %v: %s", strings.Join(command, " "), err, lastLine(string(said))), "the package iproute2, and a driver that can be reloaded by devlink")}
	}
	if err := s.wait(ctx, func() error { return s.there(ctx, s.port) }); err != nil {
		return []report.Finding{problem(of, "after the reload: "+err.Error(), "rdma link; ip link")}
	}
	out := []report.Finding{ok(of, "the device is back under its name and GUID")}
	for i, p := range stay {
		out = append(out, s.reloaded(ctx, p, fmt.Sprintf("pod %d of %d", i+1, len(stay)))...)
		if err := p.del(ctx); err != nil {
			out = append(out, problem(of, "DEL after the reload: "+err.Error(), aKnownFault))
		}
	}
	return out
}

// reloaded says what a pod has when the device was made again. With the NIC's interface, the
// kernel removes that of the pod.
func (s *scene) reloaded(ctx context.Context, p *pod, which string) []report.Finding {
	gone := p.onLink(ctx, func(*rtnl.Conn, int32) error { return nil }) != nil
	if s.v.system.Exclusive || gone {
		return []report.Finding{ok(s.port.String(), "%s: CHECK says: %v", which, p.Attach.Check(ctx, p.req))}
	}
	return p.settled(ctx, which)
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
