// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
	"github.com/roce-cni/roce-cni/pkg/tool/netconf"
)

type planFlags struct {
	node    *nodeFlags
	ifName  string
	netns   string
	args    string
	offline bool
	format  cli.Format

	nodeName string
	table    string
	nicAddrs []string
	rack     string
	services string

	namespace string // the pod's
	settings  string // the path of the settings; "": those of the node, or none offline

	pools []block.Pool // the RailPools in the file
}

// planCommand plans for this machine, and as a plugin of kubectl for none.
func planCommand(node *nodeFlags, offline bool) *cobra.Command {
	f := planFlags{node: node}
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Show what an ADD would do, as commands, and change nothing",
		Args:  cobra.ExactArgs(1),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if f.offline {
				return nil
			}
			return node.mustExist(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			nets, pools, err := netconf.Read(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			f.pools = pools
			return f.run(cmd, nets)
		},
	}
	cmd.Flags().StringVar(&f.ifName, "ifname", "", "the interface name in the pod (default net1, net2 and so on)")
	cmd.Flags().StringVar(&f.netns, "netns", "pod", "the pod's namespace in the printed commands")
	cmd.Flags().StringVar(&f.args, "args", "", "CNI_ARGS, such as K8S_POD_NAME=trainer-0;K8S_POD_NAMESPACE=ml")
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "the pod's `NAMESPACE`, to which the node's policy applies")
	cmd.Flags().StringVar(&f.settings, "settings", "", "a `FILE` with settings of a node, in place of this node's (default "+conf.SettingsFile+"; none with --offline)")
	cmd.Flags().BoolVar(&f.offline, "offline", offline, "do not read this machine: assume that the named master exists with an MTU of 1500, and that pools are empty")
	cmd.Flags().StringVar(&f.nodeName, "node", "", "the node's `NAME` in the table of ipam.table (default this host's name)")
	cmd.Flags().StringVar(&f.table, "table", "", "a `FILE` to read instead of the table of the node, for ipam.table")
	cmd.Flags().StringSliceVar(&f.nicAddrs, "nic-addrs", nil, "offline, the NICs' own `ADDRESSES` for ipam.fromMaster and ipam.railPool, such as 172.16.11.5/24: one for each rail")
	cmd.Flags().StringVar(&f.rack, "rack", "", "offline, the node's `RACK`, for a RailPool with different subnets for each rack")
	cmd.Flags().StringVar(&f.services, cluster.ServiceRange, "10.96.0.0/12", `offline, the `+"`CIDRS`"+` of the cluster's Services, for hostLink.routes "auto"`)
	f.format.Register(cmd)
	return cmd
}

type planned struct {
	Network string    `json:"network"`
	Plan    plan.Plan `json:"plan"`

	before   string   // see netconf.Config
	after    []string // see netconf.Config
	ipam     string   // see netconf.Config.Parse
	kept     string   // the text about sticky addresses of the pod
	isolated string   // see plan.Plan.Isolated
}

// behind is what plugins do that a list should not have behind roce.
func behind(plugin string) string {
	switch plugin {
	case "sbr":
		return "sbr adds a rule for each address that wins over those of roce, and moves the route to the subnet out of the main table: programs that bind no address cannot reach the rail; roce has tables and rules of its own, so take sbr out of the list"
	case "bandwidth":
		return "bandwidth fails, because it limits veth interfaces only: take it out of the list"
	}
	return ""
}

func (f planFlags) run(cmd *cobra.Command, nets []netconf.Config) error {
	if f.nodeName == "" {
		var err error
		if _, f.nodeName, err = plugin.NodeID(); err != nil {
			return err
		}
	}
	args := f.args
	if f.namespace != "" {
		args = strings.TrimPrefix(args+";K8S_POD_NAMESPACE="+f.namespace, ";")
	}
	// What the pod has after the networks before this one are added.
	var pod plan.PodFacts
	var used []planned
	for i, c := range nets {
		ifName, netns := cmp.Or(f.ifName, fmt.Sprintf("net%d", i+1)), f.netns
		if netns != "" {
			netns = "/run/netns/" + netns
		}
		req, other, err := c.Parse(ifName, netns, args)
		if err != nil {
			return err
		}
		u, err := f.plan(cmd.Context(), cmd.ErrOrStderr(), req, pod, used)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Origin, err)
		}
		u.before, u.after, u.ipam = c.Before, c.After, other
		used = append(used, u)
		pod.Tables = append(pod.Tables, tablesOf(u.Plan)...)
	}
	return f.format.Print(cmd.OutOrStdout(), used, func(w io.Writer) error {
		for _, u := range used {
			f.print(w, u)
		}
		for _, p := range f.pools {
			room, err := p.Room()
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "# RailPool %s: %s\n", p.Name, room)
		}
		return nil
	})
}

// plan makes the plan of one network, for a pod that already has the other networks.
func (f planFlags) plan(ctx context.Context, log io.Writer, req conf.Request, pod plan.PodFacts, others []planned) (planned, error) {
	if err := f.checkAddrs(req); err != nil {
		return planned{}, err
	}
	s, err := f.ofNode()
	if err != nil {
		return planned{}, err
	}
	allowed, err := f.allowed(s, req)
	if err != nil {
		return planned{}, err
	}
	facts, err := f.facts(ctx, req)
	if err != nil {
		return planned{}, err
	}
	for i := range facts {
		if facts[i].Fault == nil && !req.LinkInContainer && facts[i].Adopted == nil {
			facts[i].Fault = allowed(facts[i].Parent)
		}
		facts[i].Pod.Tables = pod.Tables
		for _, o := range others {
			for _, a := range o.Plan.Addresses() {
				facts[i].HostAddrs = append(facts[i].HostAddrs, a.Prefix.Addr())
			}
		}
	}
	in, remove, err := f.folder()
	if err != nil {
		return planned{}, err
	}
	defer remove()
	agent := &offlinePool{planFlags: f, files: in.files}
	n := attach.Node{
		Addresses: lease.Allocator{
			Book: in.book, Program: conf.PluginType, Agent: agent, Table: cmp.Or(f.table, s.Table), NodeName: f.nodeName, ReadFile: os.ReadFile,
			Log: slog.New(slog.DiscardHandler), // its text is in agent.said
		},
		Services: agent.services,
		Log:      slog.New(slog.NewTextHandler(log, nil)),
	}
	p, err := n.Preview(ctx, req, facts)
	if req.IPAM.Table && cnierr.CodeOf(err) == cnierr.BadConfig {
		err = cnierr.New(cnierr.BadConfig, "", "", hint(err)+"; for another table or another node: --table FILE, --node NAME", "%w", err)
	}
	return planned{Network: req.Network, Plan: p, kept: agent.said, isolated: p.Isolated(req)}, err
}

// ofNode returns the settings of the node, or those that the user gives instead. Offline
// they are the defaults.
func (f planFlags) ofNode() (settings.Node, error) {
	switch {
	case f.settings != "":
		b, err := os.ReadFile(f.settings)
		if err != nil {
			return settings.Node{}, cnierr.New(cnierr.IO, "read settings", f.settings, "name a file that can be read: --settings", "%w", err)
		}
		return settings.Parse(f.settings, b)
	case f.offline:
		return settings.Default(conf.SettingsFile), nil
	}
	return settings.Load(settingsFile)
}

// allowed returns an error if the settings forbid the request, and the function that
// says whether a NIC of the host may be the parent. Offline the NIC is unknown.
func (f planFlags) allowed(s settings.Node, req conf.Request) (parent func(plan.Link) error, err error) {
	all := func(plan.Link) error { return nil }
	if f.offline && f.settings == "" {
		return all, nil
	}
	parent, err = plugin.Allowed(s, req)
	if f.offline {
		parent = all
	}
	return parent, err
}

// folder opens the node's state folder. Offline, it makes an empty one, and remove deletes it.
func (f planFlags) folder() (in folder, remove func(), err error) {
	if !f.offline {
		in, err = f.node.folder()
		return in, func() {}, err
	}
	empty, err := os.MkdirTemp("", "rocectl")
	if err != nil {
		return in, nil, cnierr.New(cnierr.IO, "make folder in", os.TempDir(), "", "%w", err)
	}
	in, err = folderAt(empty)
	return in, func() { _ = os.RemoveAll(empty) }, err // nothing is written to it
}

// facts reads the node, or makes it up.
func (f planFlags) facts(ctx context.Context, req conf.Request) (facts []plan.RailFacts, err error) {
	node, sys := "offline", fs.FS(nil)
	if f.offline {
		facts, err = f.madeUp(req)
	} else if node, _, err = plugin.NodeID(); err == nil {
		sys = os.DirFS("/sys")
		facts, err = kernel.HostFacts(ctx, req, sys)
	}
	if err != nil {
		return nil, err
	}
	for i := range req.Rails {
		if f := &facts[i]; f.Fault == nil {
			f.Node = node
			f.RDMA, f.Fault = device(ctx, req, f.Parent, sys, numbered("DEVICE", req, i))
		}
	}
	return facts, nil
}

// checkAddrs refuses --nic-addrs if it has no effect. It requires the flag if the
// subnets are derived from it.
func (f planFlags) checkAddrs(req conf.Request) error {
	given, nics := len(f.nicAddrs), len(req.Rails)
	switch {
	case given > 0 && !f.offline:
		return cnierr.New(cnierr.BadConfig, "read flag", "--nic-addrs", "add --offline, or leave the flag out: the NICs have their addresses",
			"it has no effect without --offline")
	case f.offline && req.IPAM.FromMaster != nil && given < nics:
		return cnierr.New(cnierr.BadConfig, "read flag", "--nic-addrs",
			"write one for each, such as --nic-addrs 172.16.11.5/24,172.16.12.5/24", "%d addresses for %d NICs", given, nics)
	}
	return nil
}

// device reads the RDMA device behind the parent from the node. Without a node, it
// makes one up.
func device(ctx context.Context, req conf.Request, parent plan.Link, sys fs.FS, madeUp string) (*plan.RDMA, error) {
	switch {
	case req.RDMA.Mode == conf.RDMAOff:
		return nil, nil
	case sys == nil, req.Prev != nil && req.Prev.Device == "":
		return &plan.RDMA{
			Exclusive: req.RDMA.Mode == conf.RDMAExclusive,
			Device:    plan.RDMADevice{Name: madeUp, Port: 1, Link: parent.Name},
		}, nil
	}
	s := rdma.New(rdma.Config{Sys: sys, TakeInUse: true}) // programs come and go
	defer s.Close()
	found, err := s.Facts(ctx, req.RDMA, parent, req.LinkInContainer)
	return &found, err
}

func tablesOf(p plan.Plan) []uint32 {
	var out []uint32
	for r := range plan.All[plan.Rule](p.Ops.At(plan.Pod)) {
		if r.Table != 0 && !slices.Contains(out, r.Table) {
			out = append(out, r.Table)
		}
	}
	return out
}

func (f planFlags) print(w io.Writer, u planned) {
	if len(u.Plan.Interfaces) == 1 {
		i := u.Plan.Interfaces[0]
		fmt.Fprintf(w, "# network %s: %s on %s, %s\n", u.Network, i.Name, cmp.Or(parent(u.Plan, i), "-"), cmp.Or(addresses(i), "-"))
	} else {
		printRails(w, u)
	}
	note := func(format, about string) {
		if about != "" {
			fmt.Fprintf(w, "# "+format+"\n", about)
		}
	}
	note("only %s knows the address: 192.0.2.0/24 stands for its subnet, and a gateway is not tested here", u.ipam)
	note("%s", u.kept)
	note("WARNING: %s", u.isolated)
	note("routes and rules depend on the result of %s: put it into the configuration of roce as prevResult", u.before)
	for _, plugin := range u.after {
		note("%s", behind(plugin))
	}
	fmt.Fprintln(w, strings.Join(u.Plan.Ops.Commands(f.netns), "\n"))
}

func printRails(w io.Writer, u planned) {
	fmt.Fprintf(w, "# network %s: %d rails\n", u.Network, len(u.Plan.Interfaces))
	t := cli.NewTable(w, "# RAIL", "INTERFACE", "MASTER", "RDMA", "MAC", "MTU", "ADDRESSES", "GATEWAYS", "TABLES")
	for _, i := range u.Plan.Interfaces {
		var gateways []string
		for _, a := range i.Addresses {
			if a.Gateway.IsValid() {
				gateways = append(gateways, a.Gateway.String())
			}
		}
		t.Row(fmt.Sprintf("# %d", i.Rail), i.Name, parent(u.Plan, i), rdmaDevice(u.Plan, i).Name, i.MAC, i.MTU,
			addresses(i), strings.Join(gateways, ","), tables(u.Plan, i))
	}
	_ = t.Print() // later writes report an error of w
}

func (f planFlags) madeUp(req conf.Request) ([]plan.RailFacts, error) {
	var out []plan.RailFacts
	for i, one := range req.Rails {
		parent := plan.Link{Name: one.Parent.Name, MAC: conf.MAC{0x02}, MTU: max(req.MTU, 1500)}
		if parent.Name == "" {
			parent.Name = conf.LinkName(numbered("MASTER", req, i))
		}
		if i < len(f.nicAddrs) {
			own, err := netip.ParsePrefix(f.nicAddrs[i])
			if err != nil {
				return nil, cnierr.New(cnierr.BadConfig, "read flag", "--nic-addrs", "write 172.16.11.5/24,172.16.12.5/24", "%w", err)
			}
			parent.Addrs = []netip.Prefix{own}
		}
		if req.VLAN != 0 {
			on := conf.VLAN{ID: req.VLAN, NIC: parent.Name}
			parent.Name, parent.VLAN = on.Name(), &plan.OnVLAN{VLAN: on}
		}
		facts := plan.Facts{Parent: parent, Pod: plan.PodFacts{IPv6: true}}
		if req.Prev != nil {
			facts.Adopted = plan.FromPrev(*req.Prev)
		}
		out = append(out, plan.RailFacts{Facts: facts})
	}
	return out, nil
}

// numbered returns a substitute for a name that only the node knows.
func numbered(name string, req conf.Request, rail int) string {
	if len(req.Rails) == 1 {
		return name
	}
	return fmt.Sprint(name, rail)
}

// offlinePool is the node's agent as an ADD would find it.
type offlinePool struct {
	planFlags
	files nodefile.Store // of the node
	said  string         // what an operator should know about sticky addresses
}

// Read implements lease.Agent: it reads what this node may lease of a RailPool,
// or, offline, makes up a node that has the pool's first block.
func (f *offlinePool) Read(name string) (nodefile.File, error) {
	if f.offline {
		return f.firstBlock(name)
	}
	return f.files.Read(name)
}

// services reads the CIDRs of the cluster's Services, or, offline, those of the flag.
func (f *offlinePool) services() ([]netip.Prefix, error) {
	if !f.offline {
		return f.files.Services()
	}
	return cluster.ServiceCIDRs(f.planFlags.services)
}

// Ask implements lease.Agent. On the node it asks nothing, because the agent would
// reserve addresses. Offline, it answers for a cluster in which no address is reserved
// for another pod.
func (f *offlinePool) Ask(name string, k nodefile.Key) (a nodefile.Answer, err error) {
	a.None = "only an ADD requests its sticky addresses from rocectl agent"
	if f.offline {
		a, err = f.firstSlot(name, k)
	}
	f.said = fmt.Sprintf("%s of pod %s/%s gets the sticky addresses that RailPool %s reserves for it", k.Interface, k.Namespace, k.Pod, name)
	if !a.Granted() {
		f.said = fmt.Sprintf("%s of pod %s/%s gets ordinary addresses of RailPool %s here: %s", k.Interface, k.Namespace, k.Pod, name, a.None)
	}
	return a, err
}

// pool returns a RailPool of the file, and the rack of the node if it needs one.
func (f *offlinePool) pool(name string) (block.Pool, string, error) {
	i := slices.IndexFunc(f.pools, func(p block.Pool) bool { return p.Name == name })
	if i < 0 {
		return block.Pool{}, "", cnierr.New(cnierr.BadConfig, "plan addresses of RailPool", name,
			"put the RailPool into FILE, after a line ---, or run without --offline on a node that has addresses of it", "FILE does not have it")
	}
	label := f.pools[i].Spec.RackLabel
	if label == "" {
		return f.pools[i], "", nil
	}
	if f.rack == "" {
		return block.Pool{}, "", cnierr.New(cnierr.BadConfig, "plan addresses of RailPool", name,
			"add --rack with the value of a node's label "+label, "its subnets differ by rack")
	}
	return f.pools[i], f.rack, nil
}

// firstBlock returns what a node may lease if it owns the first block of a pool.
func (f *offlinePool) firstBlock(name string) (nodefile.File, error) {
	pool, rack, err := f.pool(name)
	if err != nil {
		return nodefile.File{}, err
	}
	space, err := pool.Space(rack)
	if err != nil {
		return nodefile.File{}, err
	}
	first := block.Spec{Pool: name, Rack: rack, Index: space.Index(0), Size: cmp.Or(pool.Spec.BlockSize, block.DefaultSize)}
	rails, err := space.Rails([]block.Block{{Name: space.Name(first.Index), Spec: first}})
	return nodefile.File{Pool: name, Rails: rails, Sticky: pool.Spec.Sticky != nil}, err
}

// firstSlot answers with the slot that a pod tries first.
func (f *offlinePool) firstSlot(name string, k nodefile.Key) (nodefile.Answer, error) {
	pool, rack, err := f.pool(name)
	if err != nil {
		return nodefile.Answer{}, err
	}
	slots, err := pool.Slots(rack)
	for slot := range slots.Order(k.String()) {
		return nodefile.Answer{Rails: slots.Rails(slot)}, err
	}
	return nodefile.Answer{None: "exclusions and reservations leave no host index of spec.sticky.slots"}, err
}
