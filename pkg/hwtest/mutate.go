// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Run runs the steps that make pods and move devices on each active RoCE NIC, and
// removes everything. Errors: those of Node.Look, and what Clean could not remove.
func (b Bench) Run(ctx context.Context) error {
	v, err := b.Node.open(ctx)
	if err != nil {
		return err
	}
	defer v.route.Close()
	nics := v.usable(ctx)
	if len(nics) == 0 {
		b.say("pod-add", cannotTell("", "the node has no active RoCE port with an interface of its own that ADD takes", "an active port: rdma link; for a VF see vf-trust"))
	}
	b.functions(ctx, v, nics)
	for i, p := range nics {
		if ctx.Err() != nil {
			break
		}
		b.rail(ctx, v, p, i)
		b.scenarios(ctx, v, p, i)
		if !v.system.Exclusive {
			b.stage(ctx, v, p, i, "pod-rdma", (*scene).transfers)
		}
		b.disrupting(ctx, v, p, i)
	}
	if ctx.Err() == nil {
		b.rails(ctx, nics)
		b.notAsked()
	}
	return b.Clean(context.WithoutCancel(ctx))
}

// usable returns the ports on which ADD can work: active, the one of their interface or
// bond, and not on a VF that may not send the frames of children.
func (v view) usable(ctx context.Context) []nic.Port {
	return slices.DeleteFunc(v.roce(), func(p nic.Port) bool {
		vf, is := v.virtual(ctx, p)
		return p.State != nldev.Active || !p.Carries || is && vf.blocked
	})
}

// rail tests the NIC of one port.
func (b Bench) rail(ctx context.Context, v view, p nic.Port, i int) {
	before := files(v, p.Device.Name)
	n := 2
	if v.system.Exclusive {
		n = 1
	}
	var pods []*pod
	for j := range n {
		pod, err := b.pod(fmt.Sprintf("%d-%d", i, j), i, []nic.Port{p}, nil)
		if err != nil {
			b.say("pod-add", cannotTell(p.String(), err.Error(), "root, and a namespace: ip netns add test"))
			continue
		}
		start := time.Now()
		if err := pod.add(ctx); err != nil {
			b.say("pod-add", problem(p.String(), err.Error(), aKnownFault))
		} else {
			b.say("pod-add", ok(p.String(), "pod %d after %s: %s", j+1, time.Since(start).Round(time.Millisecond), at(pod.indexes())))
		}
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		if pod.rec.Committed {
			b.say("pod-views", pod.views(v)...)
			b.say("pod-env", pod.env(ctx)...)
		}
	}
	if len(pods) > 1 && pods[0].rec.Committed && pods[1].rec.Committed {
		b.say("pod-reach", b.reach(ctx, p.String(), pods[0], pods[1])...)
		b.say("check", pods[0].checks(ctx, v, pods[1])...)
	}
	if len(pods) > 0 && pods[0].rec.Committed {
		b.say("gid-query", pods[0].query(ctx, v)...)
		b.say("gid-time", pods[0].times(ctx, v))
		b.say("gid-room", pods[0].room(ctx, v))
		b.say("exclusive", pods[0].exclusive(ctx, v, before)...)
		b.say("nccl", pods[0].nccl(ctx))
	}
	for _, pod := range pods {
		b.say("pod-del", pod.gone(ctx, v, before)...)
	}
}

// at writes indexes for people.
func at(indexes map[netip.Addr]int) string {
	out := ""
	for _, a := range slices.SortedFunc(maps.Keys(indexes), netip.Addr.Compare) {
		out += fmt.Sprintf(", %s at %d", a, indexes[a])
	}
	if out == "" {
		return "no index"
	}
	return out[2:]
}

// files returns the device files of a device.
func files(v view, device string) []string {
	var out []string
	for _, f := range discover.Files(v.Sys) {
		if f.Device == device {
			out = append(out, f.Name)
		}
	}
	return out
}

// side returns the namespace that has the device of a pod.
func (v view) side() plan.Place {
	if v.system.Exclusive {
		return plan.Pod
	}
	return plan.Host
}

// views compares what pod and host see of the table.
func (p *pod) views(v view) []report.Finding {
	of := p.ports[0].String()
	s, end, err := p.subsystem()
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the namespace of the pod")}
	}
	defer end()
	var seen [2][]gidtable.Entry
	for _, reader := range []plan.Place{plan.Host, plan.Pod} {
		if seen[reader], _, err = s.Table(v.side(), reader, p.ports[0].Device.Name, p.ports[0].Number); err != nil {
			return []report.Finding{cannotTell(of, err.Error(), "the GID table")}
		}
	}
	shown := 0
	var faults []fault
	for a, index := range p.indexes() {
		own := gidtable.Of(seen[plan.Pod], a)
		if len(own) != 1 || own[0].Index != index {
			faults = append(faults, fault{fmt.Sprintf("the pod sees %d entries of its %s, want one, at %d", len(own), a, index), aKnownFault})
		}
		if len(gidtable.Of(seen[plan.Host], a)) == 1 {
			shown++
		}
	}
	says := fmt.Sprintf("the host sees %d of the pod's %d entries", shown, len(p.indexes()))
	if hides := shown == 0; hides != (v.Stack.OFED != "") {
		faults = append(faults, fault{says + ", and NVIDIA's own driver is " + map[bool]string{true: "not ", false: ""}[hides] + "loaded", aKnownFault})
	}
	return judge(of, says, faults)
}

// env compares what rocectl env finds with the record.
func (p *pod) env(ctx context.Context) []report.Finding {
	of := p.ports[0].String()
	ns, err := gids.Node{Sys: p.Node.Sys, Records: []record.Record{p.rec}}.At(ctx, p.path, "")
	if err != nil {
		return []report.Finding{problem(of, err.Error(), aKnownFault)}
	}
	var faults []fault
	for _, r := range ns.Rails {
		if want := p.indexes()[r.Addr]; r.Index != want || r.Port.Device.Name != p.ports[0].Device.Name || r.Port.Number != p.ports[0].Number {
			faults = append(faults, fault{fmt.Sprintf("it prints index %d of %s for %s, and ADD found %d", r.Index, r.Port, r.Addr, want), aKnownFault})
		}
	}
	if len(ns.Rails) != 1 {
		faults = append(faults, fault{fmt.Sprintf("it finds %d rails, want 1", len(ns.Rails)), aKnownFault})
	}
	return judge(of, "it prints the index of ADD", faults)
}

// wait is how long an entry may take: rdma.gidWait, as it is by default.
const wait = 10 * time.Second

// alone is an address with the longest prefix.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// rail returns the interface of the pod with its port, for addresses that no other
// interface has.
func (p *pod) rail() plan.AlignRail {
	return plan.AlignRail{Link: podLink, Device: plan.RDMADevice{Name: p.ports[0].Device.Name, Port: p.ports[0].Number}, Wait: wait}
}

// onLink calls fn in the namespace of the pod, with a connection to it and the index of the
// pod's interface.
func (p *pod) onLink(ctx context.Context, fn func(c *rtnl.Conn, link int32) error) error {
	return p.within(func() error {
		c, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		l, err := c.LinkByName(ctx, podLink)
		if err != nil {
			return err
		}
		return fn(c, l.Index)
	})
}

// change adds an address to the interface of the pod, or removes it.
func (p *pod) change(ctx context.Context, how func(int32, netip.Prefix) rtnl.Change, a netip.Prefix) error {
	return p.onLink(ctx, func(c *rtnl.Conn, link int32) error { return c.Do(ctx, how(link, a)) })
}

// exclusive looks where the device is while the pod has it.
func (p *pod) exclusive(ctx context.Context, v view, before []string) []report.Finding {
	of, device := p.ports[0].String(), p.ports[0].Device
	if !v.system.Exclusive {
		return []report.Finding{cannotTell(of, "the node is in shared mode", "rdma system set netns exclusive, while the node has no pods, and a second run")}
	}
	s, end, err := p.subsystem()
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the namespace of the pod")}
	}
	defer end()
	var faults []fault
	for side, want := range map[plan.Place]bool{plan.Host: false, plan.Pod: true} {
		sys, err := s.System(ctx, side)
		has := slices.ContainsFunc(sys.Devices, func(d nldev.Device) bool { return d.Name == device.Name })
		if err != nil || has != want {
			faults = append(faults, fault{fmt.Sprintf("in the namespace of %s the device is there: %t, want %t (%v)", side, has, want, err), aKnownFault})
		}
	}
	if after := files(v, device.Name); !slices.Equal(before, after) {
		faults = append(faults, fault{fmt.Sprintf("its device files were %v, and are %v in the pod", before, after), "# a device plugin gives the container another file: rdma.uverbs in docs/configuration.md"})
	}
	return judge(of, "the pod alone has the device, with the same device file", faults)
}

// gone removes the pod and looks what is left.
func (p *pod) gone(ctx context.Context, v view, before []string) []report.Finding {
	ctx = context.WithoutCancel(ctx)
	of := p.ports[0].String()
	addrs := slices.AppendSeq(slices.Clone(p.more), maps.Keys(p.indexes()))
	if err := p.remove(ctx); err != nil {
		return []report.Finding{problem(of, err.Error(), "roce-hwtest --mutate  # a second run removes what is left")}
	}
	var faults []fault
	if err := p.atHome(ctx, p.ports[0]); err != nil {
		faults = append(faults, fault{err.Error(), "rdma dev"})
	}
	if after := files(v, p.ports[0].Device.Name); !slices.Equal(before, after) {
		faults = append(faults, fault{fmt.Sprintf("its device files were %v, and are %v", before, after), "ls /sys/class/infiniband_verbs"})
	}
	if left := p.left(ctx, v, addrs); len(left) > 0 {
		faults = append(faults, fault{fmt.Sprintf("after 10 s the table still has entries of %v", left), "rocectl gids"})
	}
	return judge(of, "nothing is left", faults)
}

// left returns the addresses that still have entries when the kernel has had time to
// remove them.
func (p *pod) left(ctx context.Context, v view, addrs []netip.Addr) (left []netip.Addr) {
	_ = p.wait(ctx, func() error {
		entries, _, err := gidtable.New(v.Sys, p.ports[0].Device.Name, p.ports[0].Number).Entries()
		left = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
			return err == nil && !slices.ContainsFunc(entries, func(e gidtable.Entry) bool { return e.GID == a })
		})
		if len(left) > 0 {
			return errors.New("there are entries")
		}
		return nil
	})
	return left
}

// rails tests one pod on all NICs.
func (b Bench) rails(ctx context.Context, nics []nic.Port) {
	if len(nics) < 2 {
		b.say("rails", cannotTell("", fmt.Sprintf("the node has %d usable RoCE NICs", len(nics)), "two NICs"))
		return
	}
	p, err := b.pod("all", 0, nics, map[string]any{"gidIndex": "equal"})
	if err != nil {
		b.say("rails", cannotTell("", err.Error(), "root, and a namespace: ip netns add test"))
		return
	}
	if err := p.add(ctx); err != nil {
		b.say("rails", problem("", err.Error(), aKnownFault))
	} else {
		found := slices.Collect(maps.Values(p.indexes()))
		slices.Sort(found)
		says := fmt.Sprintf("%d rails: %s", len(nics), at(p.indexes()))
		if found[0] != found[len(found)-1] {
			b.say("rails", problem("", says, aKnownFault))
		} else {
			b.say("rails", ok("", "%s", says))
		}
	}
	if err := p.remove(context.WithoutCancel(ctx)); err != nil {
		b.say("pod-del", problem("all rails", err.Error(), "roce-hwtest --mutate  # a second run removes what is left"))
	}
}
