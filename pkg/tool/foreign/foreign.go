// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package foreign explains the errors of other programs that people meet when they
// give pods RDMA: ibverbs, perftest, NCCL, UCX, the RDMA device plugin, kubelet,
// Multus and the kernel.
//
// One table is the source of "rocectl explain TEXT" and of docs/troubleshooting.md.
// It has no errors of roce-cni: those are in pkg/base/cnierr. Read this file first, then
// table.go; pasted.go undoes what terminals and logs do to a text.
package foreign

import (
	"regexp"
	"strings"
)

// Entry is a problem, the texts by which programs report it, and its remedy.
type Entry struct {
	From string // the program that prints the texts
	// Texts are what it prints, without what differs each time: "…" stands for some
	// characters of one line, and " … " also for one blank. Upper and lower case are
	// the same.
	Texts []string
	Cause string
	Do    string
}

// Found is a problem that a text reports, and which of its texts is in there.
type Found struct {
	Entry
	Text string // one of Texts
}

// Find returns the problems that a text reports, in the order of the table: what is
// more probably the cause comes first. The text may be a whole log, as Plain returns it.
func Find(text string) []Found {
	whole := strings.ToLower(alike(unwrapped(text)))
	text = strings.ToLower(alike(text))
	var out []Found
	for _, e := range Table() {
		for _, t := range e.Texts {
			if p := pattern(t); p.MatchString(text) || whole != text && p.MatchString(whole) {
				out = append(out, Found{e, t})
				break
			}
		}
	}
	return out
}

// pattern returns the expression for one of Texts. It begins with a literal and has no
// (?i): those make regexp a hundred times slower in a long log, so the text is in lower
// case. A blank may be the end of a line, because mail and kubectl describe wrap.
func pattern(text string) *regexp.Regexp {
	expr := regexp.QuoteMeta(strings.ToLower(alike(text)))
	return regexp.MustCompile(strings.NewReplacer(
		" … ", `[ \n](?:[^\n]*?[ \n])?`,
		"…", `[^\n]*?`,
		" ", `[ \n]`,
	).Replace(expr))
}
