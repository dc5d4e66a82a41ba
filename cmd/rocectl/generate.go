// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/tool/generate"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

type generateFlags struct {
	from    string
	all     bool
	nodes   []string
	cluster cluster.Fleet
	choice  generate.Choice
}

// generateCommand returns the command. As a plugin of kubectl it is about the cluster.
func generateCommand(plugin bool) *cobra.Command {
	var f generateFlags
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Write Kubernetes objects for the RoCE NICs of this node or of all nodes, or from another network stack's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			docs, incomplete := f.documents(cmd)
			text, err := generate.Text(docs)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), text); err != nil {
				return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
			}
			return incomplete
		},
	}
	f.register(cmd, plugin)
	return cmd
}

func (f *generateFlags) register(cmd *cobra.Command, plugin bool) {
	cmd.Flags().StringVar(&f.from, "from", "", "a `FILE` with the objects of another network stack; - for standard input")
	cmd.Flags().BoolVar(&f.all, "cluster", plugin, "write the objects for all nodes")
	cmd.Flags().StringSliceVar(&f.nodes, "nodes", nil, "with --cluster, only these nodes: `NAME,...`")
	f.cluster.Register(cmd, "with --cluster, ")
	cmd.Flags().StringVar(&f.choice.Name, "name", "rails", "the `NAME` of the network, the RailPool and the resource")
	cmd.Flags().StringVar(&f.choice.Namespace, "namespace", "", "the `NAMESPACE` of the network and the test pods (default that of kubectl)")
	cmd.Flags().StringVar(&f.choice.Subnet, "subnet", "", "the `TEMPLATE` of the rails' subnets (default the subnets of the NICs' addresses)")
	cmd.Flags().StringVar(&f.choice.Gateway, "gateway", "", "the `TEMPLATE` of the rails' gateways, with --subnet (default none)")
	cmd.Flags().StringVar(&f.choice.Image, "image", "registry.example.org/roce-cni:devel-tools", "the `IMAGE` of the test pods, which make push-tools has pushed")
	cmd.Flags().StringVar(&f.choice.PluginNamespace, "plugin-namespace", "", "the `NAMESPACE` of the RDMA device plugin, which is that of the Helm release (default roce-cni)")
	cmd.MarkFlagsMutuallyExclusive("from", "subnet")
	cmd.MarkFlagsMutuallyExclusive("from", "gateway")
	cmd.MarkFlagsMutuallyExclusive("from", "cluster")
	cmd.MarkFlagsMutuallyExclusive("from", "nodes")
}

// documents returns the objects, and with --from an error beside them if some could not be
// converted.
func (f *generateFlags) documents(cmd *cobra.Command) ([]generate.Document, error) {
	switch {
	case f.from != "":
		return convert(cmd, f.from)
	case f.all:
		nodes, unreported, err := f.cluster.Reports(cmd.Context(), cmd.ErrOrStderr())
		if err != nil {
			return nil, err
		}
		return f.ofCluster(nodes, unreported)
	}
	if err := notOfNode(cmd, "nodes", "kubeconfig", "context"); err != nil {
		return nil, err
	}
	n, err := nic.Live(cmd.Context())
	if err != nil {
		return nil, err
	}
	docs, err := generate.Node(n, f.choice)
	switch {
	case errors.Is(err, generate.ErrNoRail):
		return nil, cnierr.New(cnierr.NoRDMA, "generate", "objects", "rocectl rails shows the NICs of the node", "%w", err)
	case err != nil:
		return nil, cnierr.New(cnierr.BadConfig, "generate", "objects", "correct the flag that the message names; rocectl rails shows the NICs of the node", "%w", err)
	}
	return docs, nil
}

// ofCluster returns the objects for nodes with reports.
func (f *generateFlags) ofCluster(nodes []fleet.Node, unreported []string) ([]generate.Document, error) {
	docs, err := generate.Cluster(nodes, unreported, f.nodes, f.choice)
	if err != nil {
		return nil, cnierr.New(cnierr.BadConfig, "generate", "objects", "kubectl roce rails shows the NICs of all nodes; --nodes leaves nodes out", "%w", err)
	}
	return docs, nil
}

func convert(cmd *cobra.Command, from string) ([]generate.Document, error) {
	var text []byte
	var err error
	if from == "-" {
		text, err = io.ReadAll(cmd.InOrStdin())
	} else {
		text, err = os.ReadFile(from)
	}
	if err != nil {
		return nil, cnierr.New(cnierr.IO, "read objects", from, "name a file that can be read, or - for standard input", "%w", err)
	}
	docs, err := generate.From(text)
	if err != nil {
		return docs, cnierr.New(cnierr.Decode, "convert objects", from, "correct the object, or leave it out; all others are converted", "%w", err)
	}
	if len(docs) == 0 {
		return nil, cnierr.New(cnierr.BadConfig, "read objects", from, "give it a file with Kubernetes objects or a CNI configuration",
			"%w", fmt.Errorf("there is no object in it"))
	}
	return docs, nil
}
