// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
	"github.com/roce-cni/roce-cni/pkg/tool/doctor"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

type doctorFlags struct {
	node     *nodeFlags
	agentURL string
	confDir  string
	binDir   string
	peers    uint
	all      bool
	format   cli.Format
}

func doctorCommand(node *nodeFlags) *cobra.Command {
	f := doctorFlags{node: node}
	cmd := &cobra.Command{
		Use:     "doctor [CHECK...]",
		Short:   "Check whether this node can run RoCE pods, and say how to correct what is wrong",
		Long:    doctorHelp(),
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, names []string) error {
			checks, err := doctor.Named(names...)
			if err != nil {
				return err
			}
			f.all = f.all || len(names) > 0
			n, err := f.live()
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), slices.Collect(doctor.Run(cmd.Context(), n, checks)))
		},
	}
	f.register(cmd)
	cmd.Flags().UintVar(&f.peers, "peers", 0, "check that the neighbour tables have room for this `NUMBER` of peers of each leased address (default: what is used now)")
	cmd.Flags().BoolVar(&f.all, "all", false, "show each answer, in the order of the checks")
	return cmd
}

func statusCommand(node *nodeFlags) *cobra.Command {
	f := doctorFlags{node: node, all: true}
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show whether plugins, agent, pools, device plugin and rails of this node are well",
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := f.live()
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), doctor.Status(cmd.Context(), n))
		},
	}
	f.register(cmd)
	return cmd
}

func (f *doctorFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.agentURL, "agent", "http://127.0.0.1:9482/healthz", "the `URL` at which rocectl agent reports its health")
	cmd.Flags().StringVar(&f.confDir, "cni-conf-dir", "", "the `FOLDER` of the runtime for CNI configuration (default: that of containerd's configuration, also of k3s, RKE2, k0s and MicroK8s)")
	cmd.Flags().StringVar(&f.binDir, "cni-bin-dir", "", "the `FOLDER` of the runtime for CNI plugins (default: as --cni-conf-dir)")
	f.format.Register(cmd)
}

func (f doctorFlags) live() (doctor.Node, error) {
	in, err := f.node.folder()
	live := doctor.Live(in.files, in.book, f.agentURL)
	live.Peers, live.ConfDir, live.BinDir = int(f.peers), f.confDir, f.binDir
	_, live.Settings = settings.Load(settingsFile)
	return live, err
}

// write prints answers, and returns the exit status as an error.
func (f doctorFlags) write(w io.Writer, answers []report.Answer) error {
	err := f.format.Print(w, answers, func(w io.Writer) error { return cli.Written(doctor.Write(w, answers, f.all)) })
	if status := report.Status(answers); err == nil && status != 0 {
		return cli.StatusError(status)
	}
	return err
}

func doctorHelp() string {
	text, _, _ := strings.Cut(help("doctor"), examples)
	text += "\n\nThe checks are:\n"
	for _, c := range doctor.Checks() {
		text += fmt.Sprintf("\n  %-*s  %s", report.NameWidth, c.Name, c.Asks)
	}
	return text
}
