// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func traceCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var format cli.Format
	var last uint
	var watch bool
	cmd := &cobra.Command{
		Use:     "trace",
		Short:   "Show the last ADDs and DELs of this node: how long each took, and how it ended",
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := node.dir()
			if err != nil {
				return err
			}
			only, mark := s.of(args), calls.Mark("")
			for first := true; ; first = false {
				var all []calls.Call
				if all, mark, err = (calls.File{Dir: dir}).After(mark); err != nil {
					return cnierr.New(cnierr.IO, "read calls in", dir, "", "%w", err)
				}
				all = slices.DeleteFunc(all, func(c calls.Call) bool { return !only.has(asRecord(c)) })
				if first {
					all = all[len(all)-int(min(last, uint(len(all)))):]
				}
				if first || len(all) > 0 {
					err = format.Print(cmd.OutOrStdout(), append([]calls.Call{}, all...), func(w io.Writer) error {
						return writeCalls(format, w, all, only != selection{namespace: only.namespace})
					})
					format.NoHeaders = format.NoHeaders || len(all) > 0
				}
				if err != nil || !watch || cli.Wait(cmd.Context(), time.Second) != nil {
					return err
				}
			}
		},
	}
	s.register(cmd)
	format.RegisterTable(cmd)
	cmd.Flags().UintVar(&last, "last", 50, "how `MANY` calls to show at most")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on, and show each call when it ends, until the command is stopped")
	return cmd
}

// asRecord returns what chooses a call, as it is in a record.
func asRecord(c calls.Call) record.Record {
	namespace, name, kubernetes := strings.Cut(c.Pod, "/")
	if !kubernetes { // a container of podman has a name alone
		namespace, name = "", c.Pod
	}
	return record.Record{Attachment: c.Attachment, Pod: conf.Pod{Namespace: namespace, Name: name}}
}

func writeCalls(f cli.Format, w io.Writer, all []calls.Call, steps bool) error {
	t := f.Table(w, []string{"ENDED", "CALL", "POD", "INTERFACE", "NETWORK", "TOOK", "RESULT"}, "CONTAINER", "TRACE")
	for _, c := range all {
		result := "ok"
		if made := c.Made(); len(made) > 0 {
			result = "made again: " + strings.Join(made, ", ")
		}
		if c.Verb == calls.Alarm {
			result = c.Error
		}
		if c.Code != 0 {
			result = fmt.Sprintf("%d %s", c.Code, c.Error)
		}
		t.Row(c.At.Format(time.DateTime), c.Verb, cmp.Or(c.Pod, string(c.ContainerID)), c.IfName, c.Network, milliseconds(c.Took), result, c.ContainerID, c.Trace)
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "# no call is kept")
		return nil
	}
	if err := t.Print(); err != nil || !steps {
		return err
	}
	for _, c := range all {
		stepped := len(c.Steps) > 0 && c.Verb == "ADD"
		if !stepped && c.Trace == "" {
			continue
		}
		in := ""
		if c.Trace != "" {
			in = ", in trace " + c.Trace
		}
		fmt.Fprintf(w, "\n%s of %s, which ended at %s%s\n", c.Verb, c.IfName, c.At.Format(time.DateTime), in)
		if !stepped {
			continue
		}
		t := f.Table(w, []string{"STEP", "TOOK"})
		rest := c.Took
		for _, s := range c.Steps {
			t.Row(s.Name, milliseconds(s.Took))
			rest -= s.Took
		}
		t.Row("the rest", milliseconds(rest))
		if err := t.Print(); err != nil {
			return err
		}
	}
	return nil
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
