// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// nodeFlags are the flags of all commands that look at this node. stateDir is "" if the
// user names no state folder.
type nodeFlags struct {
	stateDir string

	// The kernel, as tests replace it; nil: that of this machine.
	sys  fs.FS
	dial func() (*nldev.Conn, error)
}

// devices returns the node for package gids. records may be nil.
func (n *nodeFlags) devices(records []record.Record) gids.Node {
	return gids.Node{Sys: n.sysfs(), Records: records, Dial: n.dial}
}

func (n *nodeFlags) sysfs() fs.FS {
	if n.sys != nil {
		return n.sys
	}
	return os.DirFS("/sys")
}

// flag adds the flag to commands that read the state folder, and to the ones below them.
func (n *nodeFlags) flag(commands ...*cobra.Command) []*cobra.Command {
	for _, group := range commands {
		for _, c := range append(group.Commands(), group) {
			if c.Runnable() {
				c.Flags().StringVar(&n.stateDir, "state-dir", "", "the `FOLDER` of records and leases (default: stateDir of "+conf.SettingsFile+")")
			}
		}
	}
	return commands
}

// settings returns the settings of the node, with the state folder that the user names.
// Other faults of the settings do not hide the folder. The error is that of settings.Load.
func (n *nodeFlags) settings() (settings.Node, error) {
	s, err := settings.Load(settingsFile)
	s.StateDir = cmp.Or(n.stateDir, s.StateDir)
	if s.StateDir == "" {
		return s, err
	}
	return s, nil
}

func (n *nodeFlags) dir() (string, error) {
	s, err := n.settings()
	return s.StateDir, err
}

// mustExist refuses a state folder that the user names and that is missing: with a
// mistyped folder, the node would look healthy. The first ADD makes the default
// folder.
func (n *nodeFlags) mustExist(cmd *cobra.Command, _ []string) error {
	if !cmd.Flags().Changed("state-dir") {
		return nil
	}
	if _, err := os.Stat(n.stateDir); errors.Is(err, fs.ErrNotExist) {
		return cnierr.New(cnierr.BadConfig, "look for state folder", n.stateDir,
			"leave out --state-dir: the folder is then that of "+conf.SettingsFile+"; an ADD creates it", "there is none")
	}
	return nil // its reader reports all other errors
}

// folder is what is in a state folder.
type folder struct {
	records record.Store
	files   nodefile.Store // what the agent has written for the plugins
	book    *ipam.Book
}

func folderAt(dir string) (folder, error) {
	boot, err := plugin.BootID()
	book := plugin.Book(dir, boot, slog.New(slog.DiscardHandler), nil)
	return folder{record.Store{Dir: dir, BootID: boot}, nodefile.Store{Dir: dir, BootID: boot}, book}, err
}

func (n *nodeFlags) folder() (folder, error) {
	dir, err := n.dir()
	if err != nil {
		return folder{}, err
	}
	return folderAt(dir)
}

// open returns the node for the verbs that need only records. Warnings go to w.
func (n *nodeFlags) open(w io.Writer) (attach.Node, error) {
	s, err := n.settings()
	if err != nil {
		return attach.Node{}, err
	}
	in, err := folderAt(s.StateDir)
	log := slog.New(slog.NewTextHandler(w, nil))
	return attach.Node{
		Machine: attach.Linux{Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Rand: rand.Reader, Records: in.records, Log: log},
		Fillers: plan.FillerNetns, RemoveFillers: s.RemoveFillers,
		Addresses: lease.Allocator{Book: in.book, Program: conf.PluginType},
		Now:       plugin.BootTime,
		Records:   in.records,
		Log:       log,
	}, err
}

// chosen opens the node, and returns the attachments that the argument of a command and its
// flags choose.
func (n *nodeFlags) chosen(cmd *cobra.Command, args []string, s selection) (attach.Node, []conf.Attachment, error) {
	node, err := n.open(cmd.ErrOrStderr())
	if err != nil {
		return node, nil, err
	}
	keys, err := s.of(args).from(node.Records)
	return node, keys, err
}

// selection is what chooses attachments: flags, and the argument [POD].
type selection struct{ container, ifName, pod, namespace string }

// takesPod gives a command the argument [POD]. It refuses an empty one, and an empty -n: a script
// with an empty variable would otherwise get the answer for all pods, or for the namespace of the
// caller.
func takesPod(cmd *cobra.Command) {
	cmd.Use += " [POD|NAMESPACE/POD]"
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && args[0] == "" {
			return cnierr.New(cnierr.BadConfig, "read argument", "POD", "name a pod, or leave the argument out", "it is empty")
		}
		if n := cmd.Flags().Lookup("namespace"); n != nil && n.Changed && n.Value.String() == "" {
			return cnierr.New(cnierr.BadConfig, "read flag", "--namespace", "name a namespace, or leave the flag out", "it is empty")
		}
		return cobra.MaximumNArgs(1)(cmd, args)
	}
}

func (s *selection) register(cmd *cobra.Command) {
	takesPod(cmd)
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "only pods of this `NAMESPACE` of Kubernetes (default all)")
	cmd.Flags().StringVar(&s.container, "container", "", "only this container: its `ID`, or the beginning of it (default all)")
	cmd.Flags().StringVar(&s.ifName, "ifname", "", "only the attachment with the interface of this `NAME` in the pod (default all)")
}

// of adds the pod that the arguments of a command name.
func (s selection) of(args []string) selection {
	s.pod = append(args, "")[0]
	return s
}

// from returns the chosen attachments that have a record.
func (s selection) from(records record.Store) ([]conf.Attachment, error) {
	all, err := records.List()
	if err != nil {
		return nil, err
	}
	var out []conf.Attachment
	for _, k := range all {
		rec, _ := records.Load(k) // an unreadable record is chosen by what its path says
		rec.Attachment = k
		if s.has(rec) {
			out = append(out, k)
		}
	}
	if len(out) == 0 && s != (selection{}) {
		return nil, s.missing()
	}
	return out, nil
}

func (s selection) missing() error {
	subject := strings.Join(strings.Fields(s.namespace+" "+s.pod+" "+s.container+" "+s.ifName), " ")
	return cnierr.New(cnierr.BadConfig, "look for attachment", subject,
		"rocectl show lists the attachments of this node, and with -o wide the ids of their containers", "this node has no record of it")
}

// has says whether an attachment is chosen. A pod without namespace is one of any namespace.
func (s selection) has(r record.Record) bool {
	name := conf.LinkName(s.ifName)
	return strings.HasPrefix(string(r.ContainerID), s.container) &&
		(s.pod == "" || s.pod == r.Pod.Name || s.pod == r.Pod.String()) &&
		(s.namespace == "" || s.namespace == r.Pod.Namespace) &&
		(name == "" || r.IfName == name || slices.ContainsFunc(r.Plan.Interfaces, func(i plan.Interface) bool { return i.Name == name }))
}

// label names an attachment by its pod, if its record can be read and has the pod.
func label(k conf.Attachment, r record.Record) string {
	return cmp.Or(r.Pod.String(), string(k.ContainerID)) + " " + string(k.IfName)
}
