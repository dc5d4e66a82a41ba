// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/podenv"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/tool/advice"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

type envFlags struct {
	node   *nodeFlags
	netns  string
	pid    int
	at     selection
	format cli.Format
}

func envCommand(node *nodeFlags) *cobra.Command {
	f := envFlags{node: node}
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print a pod's RDMA settings for NCCL, UCX, Mooncake, vLLM, perftest and others",
		RunE: func(cmd *cobra.Command, args []string) error {
			f.at = f.at.of(args)
			out := cmd.OutOrStdout()
			ns, err := f.read(cmd)
			if err != nil && !f.format.Document() {
				return errors.Join(err, podenv.Write(out, nil, advice.Settings{}, err))
			}
			if err != nil {
				return err
			}
			settings, undecided := advice.Tell(ns)
			undecided = errors.Join(undecided, f.usable(ns.Rails))
			err = f.format.Print(out, env{railRows(ns.Rails), settings}, func(w io.Writer) error {
				return podenv.Write(w, ns.Rails, settings, undecided)
			})
			return errors.Join(err, undecided)
		},
	}
	takesPod(cmd)
	cmd.Flags().StringVarP(&f.at.namespace, "namespace", "n", "", "the `NAMESPACE` of the pod in Kubernetes")
	f.register(cmd)
	cmd.Flags().StringVar(&f.at.ifName, "ifname", "", "only the interface of this `NAME` in the pod (default all)")
	f.format.Register(cmd)
	cmd.MarkFlagsMutuallyExclusive("netns", "pid", "namespace")
	return cmd
}

// register adds the flags that name a pod on the node.
func (f *envFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.netns, "netns", "", "the pod's network namespace: a `PATH`, or a name in /run/netns")
	cmd.Flags().IntVar(&f.pid, "pid", 0, "a process of the pod: its `PID` on the node")
	cmd.Flags().StringVar(&f.at.container, "container", "", "the pod of this container: its `ID`, or the beginning of it")
	cmd.MarkFlagsMutuallyExclusive("netns", "pid", "container")
}

// given refuses flags with an empty value, and a state folder that is missing. A script with an
// empty variable would otherwise get the answer for the caller's own namespace, or for all
// interfaces.
func (f envFlags) given(cmd *cobra.Command) error {
	if f.at.pod != "" && (f.pid != 0 || f.netns != "" || f.at.container != "") {
		return cnierr.New(cnierr.BadConfig, "choose pod", f.at.pod, "leave out --pid, --netns and --container, or the name", "it is named twice")
	}
	for name, empty := range map[string]bool{
		"netns": f.netns == "", "container": f.at.container == "", "ifname": f.at.ifName == "", "pid": f.pid <= 0,
	} {
		if empty && cmd.Flags().Changed(name) {
			return cnierr.New(cnierr.BadConfig, "use flag", "--"+name, "give it a value, or leave it out to report on the namespace of the caller",
				"%q names nothing", cmd.Flags().Lookup(name).Value)
		}
	}
	return f.node.mustExist(cmd, nil)
}

// usable says whether the caller can use the RDMA devices of the rails, if the command
// reports on the container in which it runs. It cannot tell this of another container.
func (f envFlags) usable(rails []gids.Rail) error {
	if f.pid != 0 || f.netns != "" || f.recorded() {
		return nil
	}
	own, err := podenv.Own()
	if err != nil {
		return err
	}
	return own.Check(rails)
}

func (f envFlags) read(cmd *cobra.Command) (gids.Namespace, error) {
	if err := f.given(cmd); err != nil {
		return gids.Namespace{}, err
	}
	only := conf.LinkName(f.at.ifName)
	path, err := f.path()
	if err != nil {
		return gids.Namespace{}, err
	}
	if path == "" {
		return f.node.devices(nil).Here(cmd.Context(), only)
	}
	in, err := f.node.folder()
	if err != nil {
		return gids.Namespace{}, err
	}
	records, _ := attachments(in.records) // they only help to choose, so an error does not matter
	return f.node.devices(records).At(cmd.Context(), path, only)
}

// path returns the path of the namespace that the flags name, "" for that of the
// caller.
func (f envFlags) path() (string, error) {
	switch {
	case f.pid != 0:
		return fmt.Sprintf("/proc/%d/ns/net", f.pid), nil
	case f.recorded():
		return f.ofRecord()
	case f.netns != "" && !strings.Contains(f.netns, "/"):
		return "/run/netns/" + f.netns, nil
	}
	return f.netns, nil
}

func (f envFlags) recorded() bool {
	return f.at.container != "" || f.at.pod != "" || f.at.namespace != ""
}

func (f envFlags) ofRecord() (string, error) {
	in, err := f.node.folder()
	if err != nil {
		return "", err
	}
	keys, err := f.at.from(in.records)
	if err != nil {
		return "", err
	}
	rec, err := in.records.Load(keys[0])
	if err != nil {
		return "", err
	}
	if other := keys[len(keys)-1].ContainerID; other != keys[0].ContainerID {
		return "", cnierr.New(cnierr.BadConfig, "choose container", f.at.pod+f.at.container, "name one by --container, with more of its ID",
			"there are several: %s, %s", keys[0].ContainerID, other)
	}
	return rec.Netns, nil
}

// env is what rocectl env -o json prints.
type env struct {
	Rails []railRow `json:"rails"`
	advice.Settings
}

type railRow struct {
	Link   conf.LinkName `json:"interface"`
	Addr   netip.Addr    `json:"address"`
	Device string        `json:"device"`
	Port   uint32        `json:"port"`
	Index  int           `json:"gidIndex"`
}

func railRows(rails []gids.Rail) []railRow {
	out := make([]railRow, 0, len(rails))
	for _, r := range rails {
		out = append(out, railRow{r.Link, r.Addr, r.Port.Device.Name, r.Port.Number, r.Index})
	}
	return out
}
