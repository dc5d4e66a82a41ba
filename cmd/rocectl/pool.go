// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/ipam"
)

func poolCommand(node *nodeFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Short: "Show and free the leased addresses of this node"}
	cmd.AddCommand(poolListCommand(node), poolReleaseCommand(node))
	return cmd
}

func poolListCommand(node *nodeFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list [POOL]",
		Short: "List the addresses that are leased or rest",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			book, err := node.book()
			if err != nil {
				return err
			}
			entries, err := book.List(cmd.Context(), append(args, "")[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), entries)
			}
			return writeEntries(cmd.OutOrStdout(), entries)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func poolReleaseCommand(node *nodeFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "release POOL ADDRESS",
		Short: "Take an address back from whoever holds it; it rests before another pod gets it",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := netip.ParseAddr(args[1])
			if err != nil {
				return fmt.Errorf("address %q: %w", args[1], err)
			}
			book, err := node.book()
			if err != nil {
				return err
			}
			return book.ReleaseAddress(cmd.Context(), args[0], addr)
		},
	}
}

// book opens the node's leases.
func (n *nodeFlags) book() (*ipam.Book, error) {
	boot, err := plugin.BootID()
	if err != nil {
		return nil, err
	}
	return plugin.Book(n.stateDir, boot, slog.New(slog.DiscardHandler)), nil
}

func writeEntries(w io.Writer, entries []ipam.Entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tADDRESS\tSTATE\tFOR\tPOD\tINTERFACE")
	for _, e := range entries {
		pod := ""
		if e.Owner.PodName != "" {
			pod = e.Owner.PodNamespace + "/" + e.Owner.PodName
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Pool, e.Addr, e.State, e.Age.Truncate(time.Second),
			podOr(pod, e.Owner.ContainerID), e.Owner.IfName)
	}
	return t.Flush()
}
