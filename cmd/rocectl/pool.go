// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

func poolCommand(node *nodeFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Short: "Show and free the leased addresses of this node"}
	cmd.AddCommand(poolListCommand(node), poolReleaseCommand(node))
	return cmd
}

func poolListCommand(node *nodeFlags) *cobra.Command {
	var format cli.Format
	cmd := &cobra.Command{
		Use:     "list [POOL]",
		Short:   "List the addresses that are leased or in quarantine",
		Args:    cobra.MaximumNArgs(1),
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := node.folder()
			if err != nil {
				return err
			}
			entries, err := in.book.List(cmd.Context(), append(args, "")[0])
			if err != nil {
				return err
			}
			quarantines, err := in.files.Quarantines()
			if err != nil {
				return err
			}
			return cli.Rows(format, cmd.OutOrStdout(), leaseRows(notFree(entries, quarantines)), leaseRow.cells,
				[]string{"POOL", "ADDRESS", "STATE", "AGE", "POD", "INTERFACE"}, "NETWORK", "CONTAINER")
		},
	}
	format.RegisterTable(cmd)
	return cmd
}

func poolReleaseCommand(node *nodeFlags) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "release POOL ADDRESS",
		Short:   "Release a leased address; it stays in quarantine before another pod gets it",
		Args:    cobra.ExactArgs(2),
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := netip.ParseAddr(args[1])
			if err != nil {
				return fmt.Errorf("address %q: %w", args[1], err)
			}
			in, err := node.folder()
			if err != nil {
				return err
			}
			entries, err := in.book.List(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(entries, func(e ipam.Entry) bool { return e.Addr == addr }); i >= 0 {
				e := entries[i]
				if !e.InUse() {
					fmt.Fprintf(cmd.OutOrStdout(), "# %s is not leased: it has been in quarantine for %v, and stays there until the quarantine is over\n", addr, e.Age.Truncate(time.Second))
					return nil
				}
				if !force {
					err = mustBeDead(e)
				}
				if err != nil {
					return err
				}
			}
			return in.book.ReleaseAddress(cmd.Context(), args[0], addr)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also if the pod's namespace exists: the pod keeps using the address")
	return cmd
}

func mustBeDead(e ipam.Entry) error {
	if e.Owner.Netns.Path == "" {
		return nil
	}
	if err := repair.Visible(e.Owner.Netns.Path); err != nil {
		return cannotTell(cnierr.New(cnierr.IO, "release address", e.Addr.String(),
			"as root, use the node itself, not a container, or add --force if you are certain that the address is unused",
			"cannot tell whether the namespace %q of %v exists: %w", e.Owner.Netns.Path, e.Owner, err))
	}
	if alive, err := netns.Alive(e.Owner.Netns); alive || err != nil {
		return cnierr.New(cnierr.TryAgain, "release address", e.Addr.String(),
			"delete the pod, or add --force if you are certain that the address is unused",
			"%v has it, and its namespace %q exists", e.Owner, e.Owner.Netns.Path)
	}
	return nil
}

// notFree leaves out addresses with a quarantine that is over. They stay in the
// database until an ADD of their pool removes them, which may be never.
func notFree(entries []ipam.Entry, quarantines map[string]time.Duration) []ipam.Entry {
	return slices.DeleteFunc(entries, func(e ipam.Entry) bool {
		quarantine, known := quarantines[e.Pool]
		if !known {
			quarantine = pool.LongestQuarantine
		}
		return !e.InUse() && !e.InQuarantine(quarantine)
	})
}

type leaseRow struct {
	Pool        string     `json:"pool"`
	Address     netip.Addr `json:"address"`
	State       string     `json:"state"` // leased, quarantined, conflict or set-aside
	Seconds     int        `json:"seconds"`
	Early       bool       `json:"early,omitempty"`
	Network     string     `json:"network"`
	Program     string     `json:"program,omitempty"` // the plugin that leased
	Pod         conf.Pod   `json:"pod,omitzero"`
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifName"`
}

func leaseRows(entries []ipam.Entry) []leaseRow {
	rows := make([]leaseRow, 0, len(entries))
	for _, e := range entries {
		rows = append(rows, leaseRow{
			Pool: e.Pool, Address: e.Addr, State: e.State.String(), Seconds: int(e.Age.Seconds()), Early: e.Early,
			Network: e.Owner.Network, Program: e.Owner.Program, ContainerID: e.Owner.ContainerID, IfName: e.Owner.IfName,
			Pod: conf.Pod{Namespace: e.Owner.PodNamespace, Name: e.Owner.PodName, UID: e.Owner.PodUID},
		})
	}
	return rows
}

func (r leaseRow) cells() []any {
	return []any{r.Pool, r.Address, r.State, time.Duration(r.Seconds) * time.Second, cmp.Or(r.Pod.String(), r.ContainerID), r.IfName, r.Network, r.ContainerID}
}
