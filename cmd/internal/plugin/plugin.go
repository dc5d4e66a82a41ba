// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package plugin serves a CNI call in the programs roce and roce-ipam: dispatch of the
// verbs, errors in the format of the protocol, panics as errors.
//
// It decides nothing about networks. Read this file for the protocol, and node.go for
// what a process must know of its node.
package plugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/utils/buildversion"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// patience limits one call, including waits for locks. Runtimes give a sandbox
// minutes. A call that takes longer than this waits for something broken.
const patience = 60 * time.Second

// grace is how long a call may take to undo what it did, once patience is over. Then
// the process ends, even if a step hangs. That releases its locks, and DEL finds in
// the record what is left.
const grace = 10 * time.Second

// Verb is one CNI verb.
type Verb func(ctx context.Context, args *skel.CmdArgs) error

// Verbs are the verbs of a plugin; VERSION needs none.
type Verbs struct{ Add, Del, Check, GC, Status Verb }

// Main serves the call that the process was started for and returns its exit
// status. name is the program's. Its version is buildversion.BuildVersion, which the
// linker sets as it does for the plugins of containernetworking/plugins.
func Main(name string, v Verbs) int {
	return call{name, patience, grace}.main(v)
}

// call has what all verbs of a process share.
type call struct {
	name            string // of the program
	patience, grace time.Duration
}

func (c call) main(v Verbs) int {
	// A call does one thing after another. More than one of these wakes threads that
	// look for work and find none. That saves no time and costs CPU time
	// (docs/performance.md).
	runtime.GOMAXPROCS(1)
	// The runtime may have ended, so that standard output and standard error have no
	// reader. A write then returns an error, and ADD undoes what it did. Without this,
	// the first write ends the process.
	signal.Ignore(syscall.SIGPIPE)
	// Without this, skel fails a DEL in the host's namespace after serving it. If an
	// ADD was refused there, its pod could never be deleted. Our kernel package
	// detects that namespace itself.
	if err := os.Setenv("CNI_NETNS_OVERRIDE", "true"); err != nil {
		return 2
	}
	fail := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    c.serve(v.Add),
		Del:    c.serve(v.Del),
		Check:  c.serve(v.Check),
		GC:     c.serve(v.GC),
		Status: c.serve(v.Status),
	}, cniversion.PluginSupports(conf.Versions()...), buildversion.BuildString(c.name))
	if fail == nil {
		return 0
	}
	if err := complete(c.name, os.Getenv("CNI_COMMAND"), fail).Print(); err != nil {
		return 2
	}
	return 1
}

// serve adapts a verb to skel.
func (c call) serve(verb Verb) func(*skel.CmdArgs) error {
	name := c.name
	return func(args *skel.CmdArgs) (err error) {
		defer func() {
			if r := recover(); r != nil {
				fmt.Fprintf(os.Stderr, "%s: panic: %v\n%s", name, r, debug.Stack())
				err = cnierr.CNI(name, cnierr.New(cnierr.Bug, "serve a call of", name, "", "%v (the stack is on standard error)", r))
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), c.patience)
		defer cancel()
		defer time.AfterFunc(c.patience+c.grace, func() { c.giveUp(); os.Exit(1) }).Stop()
		if err := verb(ctx, args); err != nil {
			return cnierr.CNI(name, err)
		}
		return nil
	}
}

// giveUp reports that a call does not end. The exit status tells it without the report.
func (c call) giveUp() {
	err := cnierr.New(cnierr.TryAgain, "serve a call of", c.name,
		"wait: the runtime tries again automatically; if the error stays, look in the node's log for a file system or device that hangs",
		"it still runs %s after its deadline", c.grace)
	_ = cnierr.CNI(c.name, err).Print()
}

// complete gives the form of our errors to errors that skel itself makes.
func complete(name, verb string, e *types.Error) *types.Error {
	if strings.HasPrefix(e.Msg, name+"[") {
		return e
	}
	hint := cnierr.Explain(cnierr.Code(e.Code)).Remedy
	switch {
	case e.Details != "":
		hint = e.Details + "; " + hint
	case e.Code == types.ErrIncompatibleCNIVersion:
		hint = fmt.Sprintf("set cniVersion to %s: older versions have no %s", versionsWith(verb), verb)
	}
	return types.NewError(e.Code, fmt.Sprintf("%s[%d] %s", name, e.Code, e.Msg), hint)
}

// versionsWith returns the versions of CNI that have a verb, if not all versions have
// it (SPEC.md, "CNI operations").
func versionsWith(verb string) string {
	if verb == "CHECK" {
		return "0.4.0, 1.0.0 or 1.1.0"
	}
	return "1.1.0"
}

// Input returns the input of conf for a verb.
func Input(command string, args *skel.CmdArgs) conf.Input {
	return conf.Input{
		Command:     command,
		ContainerID: args.ContainerID,
		Netns:       args.Netns,
		IfName:      args.IfName,
		Args:        args.Args,
		Stdin:       args.StdinData,
	}
}

// Noted is a call that is noted in the state folder when it ends. StateDir, Network and
// Pod are set when they are known.
type Noted struct {
	StateDir string
	Network  string
	Pod      conf.Pod

	verb  string
	at    conf.Attachment
	began time.Time
	steps []calls.Step
	held  []calls.Held
}

// Note begins the note of a call.
func Note(in conf.Input) *Noted {
	return &Noted{
		verb: in.Command, at: conf.Attachment{ContainerID: conf.ContainerID(in.ContainerID), IfName: conf.LinkName(in.IfName)}, began: time.Now(),
	}
}

// Took notes a step. Steps of one name count as one.
func (n *Noted) Took(step string, d time.Duration) {
	i := slices.IndexFunc(n.steps, func(s calls.Step) bool { return s.Name == step })
	if i < 0 {
		n.steps, i = append(n.steps, calls.Step{Name: step}), len(n.steps)
	}
	n.steps[i].Took += d
}

// Held notes a GID index that programs may hold.
func (n *Noted) Held(h calls.Held) { n.held = append(n.held, h) }

// End notes the call with its error. If it ended before the settings were read, they are
// read from file. A note that cannot be written is none: the call itself matters more.
func (n *Noted) End(file string, err error) {
	c := calls.Call{
		At: time.Now().UTC(), Verb: n.verb, Network: n.Network, Attachment: n.at, Pod: n.Pod.String(), Took: time.Since(n.began), Steps: n.steps, Held: n.held, Trace: Trace(),
	}
	if err != nil {
		c.Code, c.Error = cnierr.CodeOf(err), err.Error()
	}
	if n.StateDir == "" {
		s, fault := Settings(file)
		if fault != nil {
			return
		}
		n.StateDir = s.StateDir
	}
	_ = calls.File{Dir: n.StateDir}.Append(c)
}
