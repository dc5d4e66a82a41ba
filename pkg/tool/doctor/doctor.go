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

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Check is one question about a node.
type Check struct {
	Name string // kebab-case
	Asks string // the question in a few words, for lists of checks
	Why  string // why a problem matters, one sentence without full stop
	look func(ctx context.Context, n Node) []report.Finding
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
	return c.look(ctx, n)
}

func ok(format string, args ...any) report.Finding {
	return report.Finding{Verdict: report.OK, Found: fmt.Sprintf(format, args...)}
}

func problem(found, fix string) report.Finding {
	return report.Finding{Verdict: report.Problem, Found: found, Fix: fix}
}

func cannotTell(found, missing string) report.Finding {
	return report.Finding{Verdict: report.CannotTell, Found: found, Missing: missing}
}
