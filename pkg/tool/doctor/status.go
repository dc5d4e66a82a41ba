// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

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
