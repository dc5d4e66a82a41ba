// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package doctor checks whether a node can run RoCE pods. For each fault it says why
// it matters and which command corrects it.
//
// It changes nothing. Each answer has one of three values: ok, problem, or cannot
// tell, with what is missing for an answer. A check never reports ok because it could
// not look. It is for rocectl only and stands on the libraries of the field
// (docs/adr/0022). Read this file first, then node.go, which reads what the checks
// examine. The other files have the checks by theme.
package doctor

import (
	"context"
	_ "embed" // checks.txt
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Check is one question about a node.
type Check struct {
	Name string // kebab-case
	look func(l *look) []report.Finding
	Asks string // the question in a few words, for lists of checks
	Why  string // why a problem matters, one sentence without full stop
}

// checks has the name of each check, what it asks, and why that matters, in the order in which
// to solve what they find: what others need comes first.
//
//go:embed checks.txt
var checks string

// looks returns what each check does.
func looks() map[string]func(*look) []report.Finding {
	return map[string]func(*look) []report.Finding{
		"machine-id":       (*look).machineID,
		"settings":         (*look).settings,
		"rdma-modules":     (*look).rdmaModules,
		"rdma-driver":      (*look).rdmaDriver,
		"rdma-devices":     (*look).rdmaDevices,
		"rdma-netns-mode":  (*look).rdmaMode,
		"rdma-ports":       (*look).rdmaPorts,
		"rdma-mtu":         (*look).rdmaMTU,
		"rdma-bond":        (*look).rdmaBond,
		"eswitch-mode":     (*look).eswitchMode,
		"vf-trust":         (*look).vfTrust,
		"nic-firmware":     (*look).nicFirmware,
		"nic-qos":          (*look).nicQoS,
		"pcie-link":        (*look).pcieLink,
		"gpu-direct":       (*look).gpuDirect,
		"pcie-acs":         (*look).pcieACS,
		"gid-table":        (*look).gidTable,
		"rdma-files":       (*look).charDevices,
		"memlock":          (*look).memlock,
		"host-arp":         (*look).hostARP,
		"network-managers": (*look).networkManagers,
		"neighbour-table":  (*look).neighbourTable,
		"firewall":         (*look).firewall,
		"host-link":        (*look).hostLink,
		"tagged-frames":    (*look).taggedFrames,
		"left-behind":      (*look).leftBehind,
		"cni-plugins":      (*look).cniPlugins,
		"cni-config":       (*look).cniConfig,
		"cni-lists":        (*look).cniLists,
		"device-plugin":    (*look).devicePlugin,
		"pools":            (*look).poolFill,
		"pool-routes":      (*look).poolRoutes,
		"agent":            (*look).agentHealth,
	}
}

// Checks returns all checks, in the order of checks.txt.
func Checks() []Check {
	var out []Check
	all := looks()
	for text := range strings.SplitSeq(strings.TrimSpace(checks), "\n\n") {
		lines := strings.Split(text, "\n  ")
		out = append(out, Check{lines[0], all[lines[0]], lines[1], lines[2]})
	}
	return out
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
func Run(ctx context.Context, n Node, checks []Check) iter.Seq[report.Answer] {
	return func(yield func(report.Answer) bool) {
		for _, c := range checks {
			for _, f := range c.run(ctx, n) {
				a := report.Answer{Check: c.Name, Finding: f}
				if f.Verdict == report.Problem {
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
func (c Check) run(ctx context.Context, n Node) (out []report.Finding) {
	defer func() {
		if r := recover(); r != nil {
			out = append(out, cannotTell("the check itself failed: "+fmt.Sprint(r), "a bug report with this line"))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return (&look{Node: n, ctx: ctx}).try(c.look)
}

// Write writes answers and their number for people: all of them, or else problems first, then
// what cannot be told, and how many are ok.
func Write(w io.Writer, answers []report.Answer, all bool) error {
	shown, summary := answers, report.Summary(answers)
	if !all {
		shown = brief(answers)
		summary = strings.Replace(summary, " ok", " ok (--all shows them)", 1)
	}
	for _, a := range shown {
		if err := report.WriteText(w, a); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, "# "+summary)
	return err
}

// brief returns the answers that are not ok. Checks that lack the same are one answer.
func brief(answers []report.Answer) []report.Answer {
	var problems, unknown []report.Answer
	for i, a := range answers {
		switch same := func(b report.Answer) bool { return b.Verdict == report.CannotTell && b.Missing == a.Missing }; {
		case a.Verdict == report.Problem:
			problems = append(problems, a)
		case a.Verdict == report.CannotTell && !slices.ContainsFunc(answers[:i], same):
			unknown = append(unknown, folded(slices.DeleteFunc(slices.Clone(answers), func(b report.Answer) bool { return !same(b) }))...)
		}
	}
	return append(problems, unknown...)
}

// folded returns one answer for several checks that lack the same, and the answers of a single
// check as they are.
func folded(answers []report.Answer) []report.Answer {
	var names []string
	for _, a := range answers {
		names = append(names, a.Check)
	}
	names = slices.Compact(names)
	if len(names) == 1 {
		return answers
	}
	missing, verb := answers[0].Missing, "need "
	if slices.ContainsFunc(Checks(), func(c Check) bool { return c.Name == missing }) {
		verb = "wait for "
	}
	return []report.Answer{{Check: fmt.Sprintf("%d checks", len(names)), Finding: cannotTell(verb+missing+"\n"+strings.Join(names, ", "), "")}}
}

func ok(format string, args ...any) report.Finding {
	return report.Finding{Verdict: report.OK, Found: fmt.Sprintf(format, args...)}
}

// orOK returns findings, or, if there are none, that all is ok.
func orOK(out []report.Finding, format string, args ...any) []report.Finding {
	if len(out) == 0 {
		return []report.Finding{ok(format, args...)}
	}
	return out
}

func problem(found, fix string) report.Finding {
	return report.Finding{Verdict: report.Problem, Found: found, Fix: fix}
}

func cannotTell(found, missing string) report.Finding {
	return report.Finding{Verdict: report.CannotTell, Found: found, Missing: missing}
}

// part is a part of a node for rocectl status.
type part struct {
	name   string
	checks []string // that tell how it is; of those that are ok, the first has the word
}

func parts() []part {
	return []part{
		{"plugins", []string{"cni-plugins", "cni-config", "cni-lists", "settings"}},
		{"agent", []string{"agent"}},
		{"pools", []string{"pools"}},
		{"device-plugin", []string{"device-plugin"}},
		{"rails", []string{"rdma-devices", "rdma-ports", "rdma-netns-mode", "rdma-mtu", "gid-table"}},
	}
}

// Status returns one answer for each part of a node: the worst of its checks.
func Status(ctx context.Context, n Node) []report.Answer {
	var out []report.Answer
	for _, p := range parts() {
		var answers []report.Answer
		for _, name := range p.checks {
			i := slices.IndexFunc(Checks(), func(c Check) bool { return c.Name == name })
			answers = slices.AppendSeq(answers, Run(ctx, n, Checks()[i:i+1]))
		}
		out = append(out, p.worst(answers))
	}
	return out
}

// worst returns the first of the worst answers, and how many there are more. What else there is
// to know of a problem, doctor says.
func (p part) worst(answers []report.Answer) report.Answer {
	verdict := map[int]report.Verdict{0: report.OK, 1: report.Problem, 2: report.CannotTell}[report.Status(answers)]
	answers = slices.DeleteFunc(answers, func(a report.Answer) bool { return a.Verdict != verdict })
	first := answers[0]
	found, _, _ := strings.Cut(first.Found, "\n")
	if first.Of != "" {
		found = first.Of + ": " + found
	}
	a := report.Answer{Check: p.name, Finding: report.Finding{Verdict: verdict, Found: found}}
	if verdict == report.OK {
		return a
	}
	if len(answers) > 1 {
		a.Found += fmt.Sprintf(" (and %d more)", len(answers)-1)
	}
	a.Fix = "rocectl doctor"
	for _, name := range p.checks {
		if slices.ContainsFunc(answers, func(a report.Answer) bool { return a.Check == name }) {
			a.Fix += " " + name
		}
	}
	return a
}
