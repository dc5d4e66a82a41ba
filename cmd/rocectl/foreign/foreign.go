// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package foreign explains the errors of other programs that people meet when they
// give pods RDMA: ibverbs, perftest, NCCL, UCX, the RDMA device plugin, kubelet,
// Multus and the kernel.
//
// One table is the source of "rocectl explain TEXT" and of docs/troubleshooting.md.
// It has no errors of roce-cni: those are in pkg/cnierr. Read this file first, then
// table.go.
package foreign

import (
	"regexp"
	"strings"
)

// Entry is a problem, the texts by which programs report it, and its remedy.
type Entry struct {
	From string // the program that prints the texts
	// Texts are what it prints, without what differs each time: "…" stands for some
	// characters of one line. Upper and lower case are the same.
	Texts []string
	Cause string
	Do    string
}

// Find returns the problems that a text reports, in the order of the table: what is
// more probably the cause comes first. The text may be a whole log.
func Find(text string) []Entry {
	text = plain(text)
	var out []Entry
	for _, e := range Table() {
		for _, t := range e.Texts {
			if pattern(t).MatchString(text) {
				out = append(out, e)
				break
			}
		}
	}
	return out
}

// pattern returns the expression for one of Texts.
func pattern(text string) *regexp.Regexp {
	parts := strings.Split(plain(text), "…")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(`(?i)` + strings.Join(parts, `[^\n]*?`))
}

// plain makes quotation marks and blanks equal, since terminals, logs and documents
// change them.
func plain(text string) string {
	text = strings.NewReplacer(`\"`, `"`, "’", "'", "‘", "'", "“", `"`, "”", `"`).Replace(text)
	return regexp.MustCompile(`[ \t\r]+`).ReplaceAllString(text, " ")
}
