// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package explain explains the errors of other programs that people meet when they give
// pods RDMA: ibverbs, perftest, NCCL, UCX, the RDMA device plugin, kubelet, Multus and the
// kernel.
//
// The file errors.yaml is the source of "rocectl explain TEXT" and of
// docs/troubleshooting.md, and says how to change it. It has no errors of roce-cni: those
// are in pkg/base/cnierr. Here are the table and the search; pasted.go undoes what
// terminals and logs do to a text.
package explain

import (
	_ "embed" // errors.yaml
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed errors.yaml
var errorsFile []byte

// Entry is a problem, the texts by which programs report it, and its remedy. errors.yaml
// says what each field has.
type Entry struct {
	From  string `json:"from"`
	Texts lines  `json:"texts"`
	Cause string `json:"cause"`
	Do    string `json:"do"`
}

// lines are written as one text.
type lines []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *lines) UnmarshalText(text []byte) error {
	*l = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return nil
}

// Table returns all entries of errors.yaml.
func Table() []Entry {
	var all []Entry
	if err := yaml.UnmarshalStrict(errorsFile, &all); err != nil {
		panic("explain: errors.yaml: " + err.Error()) // it is part of the program, and has a test
	}
	return all
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
