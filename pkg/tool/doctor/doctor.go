// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package doctor checks whether a node can run RoCE pods. For each fault it says why
// it matters and which command corrects it.
//
// It changes nothing. Each answer has one of three values: ok, problem, or cannot
// tell, with what is missing for an answer. A check never reports ok because it could
// not look. It is for rocectl only and stands on the libraries of the field
// (docs/adr/0022). Read this file first, then node.go, which reads what the checks
// examine. Each other file is one check.
package doctor

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"
)

// Verdict is the value of an answer.
type Verdict string

// The verdicts.
const (
	OK         Verdict = "ok"
	Problem    Verdict = "problem"
	CannotTell Verdict = "cannot tell"
)

// Valid says whether it is one of these.
func (v Verdict) Valid() bool { return v == OK || v == Problem || v == CannotTell }

// Finding is what a check has found out about one thing.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	// Of is the thing, such as a port ("mlx5_0/1"); "" is the node.
	Of    string `json:"of,omitempty"`
	Found string `json:"found"`
	// Fix is the command that solves a problem, several with a new line between
	// them. A comment for the reader starts with "#", as for a shell.
	Fix string `json:"fix,omitempty"`
	// Missing is what the check needs to tell.
	Missing string `json:"missing,omitempty"`
}

// Answer is a finding of a check.
type Answer struct {
	Check string `json:"check"`
	Finding
	// Why says why a problem matters; "" if it is none.
	Why string `json:"why,omitempty"`
}

// Check is one question about a node.
type Check struct {
	Name string // kebab-case
	Asks string // the question in a few words, for lists of checks
	Why  string // why a problem matters, one sentence without full stop
	look func(ctx context.Context, n Node) []Finding
}

// Checks returns all checks, in the order in which to solve what they find: what
// others need comes first.
func Checks() []Check {
	return []Check{
		machineID(),
		rdmaModules(), rdmaDriver(), rdmaDevices(), rdmaMode(), rdmaPorts(), rdmaMTU(), rdmaBond(), eswitchMode(), vfTrust(), nicFirmware(), nicQoS(), pcieLink(), gpuDirect(), pcieACS(),
		gidTable(), charDevices(), memlock(),
		hostARP(), networkManagers(), neighbourTable(), firewall(), hostLink(), leftBehind(),
		cniPlugins(), cniConfig(), cniLists(), devicePlugin(), poolFill(), poolRoutes(), agentHealth(),
	}
}

// Named returns the checks of these names, all for none.
func Named(names ...string) ([]Check, error) {
	all := Checks()
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c Check) bool { return c.Name == name }) {
			return nil, fmt.Errorf("check %q: there is none of this name", name)
		}
	}
	return slices.DeleteFunc(all, func(c Check) bool { return !slices.Contains(names, c.Name) }), nil
}

// Run yields the answers of checks, each as soon as it is known. No check stops
// the others, whatever it meets.
func Run(ctx context.Context, n Node, checks []Check) iter.Seq[Answer] {
	return func(yield func(Answer) bool) {
		for _, c := range checks {
			for _, f := range c.run(ctx, n) {
				a := Answer{Check: c.Name, Finding: f}
				if f.Verdict == Problem {
					a.Why = c.Why
				}
				if !yield(a) {
					return
				}
			}
		}
	}
}

// patience bounds one check, which may wait for a program or for the agent.
const patience = 15 * time.Second

// run looks, and turns a panic into an answer: the other checks are still of use.
func (c Check) run(ctx context.Context, n Node) (out []Finding) {
	defer func() {
		if r := recover(); r != nil {
			out = append(out, cannotTell("the check itself failed: "+fmt.Sprint(r), "a bug report with this line"))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.look(ctx, n)
}

// Status returns the exit status of a program that has got these answers: 0 if all
// are ok, 1 if there is a problem, and 2 if there is none but something could not
// be told.
func Status(answers []Answer) int {
	status := 0
	for _, a := range answers {
		switch a.Verdict {
		case Problem:
			return 1
		case CannotTell:
			status = 2
		}
	}
	return status
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Found: fmt.Sprintf(format, args...)}
}

func problem(found, fix string) Finding { return Finding{Verdict: Problem, Found: found, Fix: fix} }

func cannotTell(found, missing string) Finding {
	return Finding{Verdict: CannotTell, Found: found, Missing: missing}
}

// of says what a finding is about.
func (f Finding) of(thing string) Finding {
	f.Of = thing
	return f
}
