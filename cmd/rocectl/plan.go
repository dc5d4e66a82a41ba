// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/attach"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rdma"
	"github.com/roce-cni/roce-cni/pkg/result"
)

// planFlags are the flags of `rocectl plan`.
type planFlags struct {
	node    *nodeFlags
	ifName  string
	netns   string
	args    string
	offline bool
	asJSON  bool
}

func planCommand(node *nodeFlags) *cobra.Command {
	f := planFlags{node: node}
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Show what an ADD would do, as commands, without doing it",
		Long: `Show what an ADD of the networks in FILE would do to a pod, as the commands that
an operator would type. Nothing is changed. Root is not needed, but on a node
whose pools are in use, where the folder of leases is root's.

FILE is a CNI configuration, a configuration list, or Kubernetes objects, of
which the NetworkAttachmentDefinitions are taken; - is standard input. The pod
is taken to be fresh and to get all networks of the file, net1, net2 and so on.`,
		Example: `  rocectl plan conf-examples/one-rail.json --offline
  kubectl get net-attach-def gpu1-rail -o yaml | rocectl plan -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			nets, err := readNetconfs(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return f.run(cmd, nets)
		},
	}
	cmd.Flags().StringVar(&f.ifName, "ifname", "", "the interface name in the pod (default net1, net2 and so on)")
	cmd.Flags().StringVar(&f.netns, "netns", "pod", "the pod's namespace, as the printed commands name it")
	cmd.Flags().StringVar(&f.args, "args", "", "CNI_ARGS, such as K8S_POD_NAME=trainer-0;K8S_POD_NAMESPACE=ml")
	cmd.Flags().BoolVar(&f.offline, "offline", false, "do not look at this machine: take the master as named, with an MTU of 1500, and pools as empty")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the plans as JSON, as the records have them")
	return cmd
}

// planned is one network's plan.
type planned struct {
	Network string    `json:"network"`
	Plan    plan.Plan `json:"plan"`

	before string // see netconf
}

func (f planFlags) run(cmd *cobra.Command, nets []netconf) error {
	// What the pod has once the networks before are added.
	var pod plan.PodFacts
	var used []planned
	for i, c := range nets {
		ifName := f.ifName
		if ifName == "" {
			ifName = fmt.Sprintf("net%d", i+1)
		}
		netns := f.netns
		if netns != "" {
			netns = "/run/netns/" + netns
		}
		req, err := c.parse(ifName, netns, f.args)
		if err != nil {
			return err
		}
		p, err := f.plan(cmd.Context(), req, pod, used)
		if err != nil {
			return fmt.Errorf("%s: %w", c.origin, err)
		}
		used = append(used, planned{req.Network, p, c.before})
		pod.Tables = append(pod.Tables, tablesOf(p)...)
	}
	if f.asJSON {
		return writeJSON(cmd.OutOrStdout(), used)
	}
	for _, u := range used {
		f.print(cmd.OutOrStdout(), u)
	}
	return nil
}

// plan makes one network's plan for a pod that has the others already.
func (f planFlags) plan(ctx context.Context, req conf.Request, pod plan.PodFacts, others []planned) (plan.Plan, error) {
	facts, err := f.facts(ctx, req)
	if err != nil {
		return plan.Plan{}, err
	}
	facts.Pod.Tables = pod.Tables
	for _, o := range others {
		for _, a := range o.Plan.Addresses {
			facts.HostAddrs = append(facts.HostAddrs, a.Prefix.Addr())
		}
	}
	var given plan.Lease
	switch {
	case req.Prev != nil:
		given, err = result.Lent(*req.Prev)
	case req.IPAM.Type == conf.PoolType:
		given, err = f.lease(ctx, req, facts)
	}
	if err != nil {
		return plan.Plan{}, err
	}
	return plan.Make(req, facts, given)
}

// lease returns what the pool would give now, or, offline, what an empty one
// would.
func (f planFlags) lease(ctx context.Context, req conf.Request, facts plan.Facts) (plan.Lease, error) {
	stateDir := f.node.stateDir
	if f.offline {
		empty, err := os.MkdirTemp("", "rocectl")
		if err != nil {
			return plan.Lease{}, cnierr.New(cnierr.IO, "make folder in", os.TempDir(), "", "%w", err)
		}
		defer os.RemoveAll(empty) //nolint:errcheck // nothing is written to it
		stateDir = empty
	}
	book, err := bookAt(stateDir)
	if err != nil {
		return plan.Lease{}, err
	}
	return attach.Pools{Book: book}.Preview(ctx, req, facts)
}

// facts reads the node, or makes it up.
func (f planFlags) facts(ctx context.Context, req conf.Request) (plan.Facts, error) {
	if f.offline {
		name := req.Parent.Name
		if name == "" {
			name = "MASTER"
		}
		parent := plan.Link{Name: name, MAC: conf.MAC{0x02}, MTU: max(req.MTU, 1500)}
		made, err := device(ctx, req, parent, nil)
		return plan.Facts{Node: "offline", Parent: parent, Adopted: adopted(req), Pod: plan.PodFacts{IPv6: true}, RDMA: made}, err
	}
	sys := os.DirFS("/sys")
	facts, err := plan.Only(kernel.HostFacts(ctx, req, sys))
	if err != nil {
		return plan.Facts{}, err
	}
	if facts.RDMA, err = device(ctx, req, facts.Parent, sys); err != nil {
		return plan.Facts{}, err
	}
	facts.Node, err = plugin.NodeID()
	return facts, err
}

// adopted returns what is told of an interface that is adopted, nil if none is.
func adopted(req conf.Request) *plan.Adopted {
	if req.Prev == nil {
		return nil
	}
	return plan.Told(*req.Prev)
}

// device reads what the node's RDMA device behind the parent is, or makes one
// up when there is no node to ask.
func device(ctx context.Context, req conf.Request, parent plan.Link, sys fs.FS) (*plan.RDMA, error) {
	switch {
	case req.RDMA.Mode == conf.RDMAOff:
		return nil, nil
	case sys == nil, req.Prev != nil && req.Prev.Device == "":
		return &plan.RDMA{
			Exclusive: req.RDMA.Mode == conf.RDMAExclusive,
			Device:    plan.RDMADevice{Name: "DEVICE", Port: 1, Link: parent.Name},
		}, nil
	}
	s := rdma.New(rdma.Config{Sys: sys})
	defer s.Close()
	found, err := s.Facts(ctx, req.RDMA, parent, req.LinkInContainer)
	return &found, err
}

func tablesOf(p plan.Plan) []uint32 {
	var out []uint32
	for _, op := range p.Ops {
		if r, ok := op.(plan.Rule); ok && r.Table != 0 && !slices.Contains(out, r.Table) {
			out = append(out, r.Table)
		}
	}
	return out
}

func (f planFlags) print(w io.Writer, u planned) {
	fmt.Fprintf(w, "# network %s: %s on %s, %s\n", u.Network, u.Plan.IfName, parent(u.Plan), addresses(u.Plan))
	if u.before != "" {
		fmt.Fprintf(w, "# what %s returns tells the rest, routes and rules: put it into the configuration of roce as prevResult\n", u.before)
	}
	fmt.Fprintln(w, strings.Join(u.Plan.Ops.Commands(f.netns), "\n"))
}
