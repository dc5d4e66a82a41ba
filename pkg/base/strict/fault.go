// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package strict reads JSON strictly and reports every fault at once, each with its
// path and, for a near miss, the probable correct spelling.
//
// It knows no configuration. conf asks it for keys, and asking for a key declares it.
// A reader that meets a fault notes it and returns the default, so that reading
// continues. Read value.go first.
package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Faults collects all faults of one input. The zero value is ready to use.
type Faults struct {
	list []*cnierr.Error
	more int // faults that are only counted
}

// Limits of what is reported for one input: the number of faults, and of
// characters.
const (
	maxFaults = 20
	maxQuoted = 64  // of a value that is quoted
	maxText   = 256 // of other texts
)

// Add notes a fault. The subject is a JSON path or the name of a variable. After the
// twentieth fault, Add only counts. It shortens the subject and long strings among the
// arguments to their beginning.
func (f *Faults) Add(code cnierr.Code, subject, hint, format string, args ...any) {
	if f.full() {
		f.more++
		return
	}
	short, verbs := make([]any, len(args)), regexp.MustCompile(`%[a-z]`).FindAllString(format, -1)
	for i, a := range args {
		most := maxText
		if i < len(verbs) && verbs[i] == "%q" {
			most = maxQuoted
		}
		short[i] = shorter(a, most)
	}
	f.list = append(f.list, cnierr.New(code, "", clip(subject, 2*maxQuoted), hint, format, short...))
}

func shorter(arg any, most int) any {
	switch a := arg.(type) {
	case string:
		return clip(a, most)
	case json.RawMessage:
		return clip(string(a), maxQuoted)
	case []string:
		out := make([]string, 0, maxFaults)
		for _, s := range a[:min(len(a), maxFaults)] {
			out = append(out, clip(s, most))
		}
		return out
	}
	return arg
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func (f *Faults) full() bool { return len(f.list) >= maxFaults }

// Len returns the number of faults so far.
func (f *Faults) Len() int { return len(f.list) + f.more }

// Adopt adds the faults of other, except those with a subject that already has
// a fault in f. It puts a note before each cause. So a fault is reported once
// although its input is read several times.
func (f *Faults) Adopt(other *Faults, note string) {
	known := f.list
	for _, e := range other.list {
		same := func(k *cnierr.Error) bool { return k.Subject == e.Subject }
		if !slices.ContainsFunc(known, same) {
			f.Add(e.Code, e.Subject, e.Hint, "%s%w", note, e.Err)
		}
	}
	f.more += other.more
}

// Err returns nil, or one *cnierr.Error that joins all faults. Its code is the
// common code of all faults, or else cnierr.BadConfig, which has the widest
// meaning. Its hint says what to do about each fault.
func (f *Faults) Err(op, subject string) error {
	if len(f.list) == 0 {
		return nil
	}
	code, all, hints := f.list[0].Code, make([]error, 0, len(f.list)), []string(nil)
	for _, e := range f.list {
		all = append(all, e)
		if e.Code != code {
			code = cnierr.BadConfig
		}
		if e.Hint != "" {
			hints = append(hints, f.advice(e))
		}
	}
	if f.more > 0 {
		all = append(all, fmt.Errorf("and %d more faults", f.more))
	}
	return &cnierr.Error{
		Code: code, Op: op, Subject: subject,
		Hint: strings.Join(slices.Compact(hints), "; "), Err: errors.Join(all...),
	}
}

func (f *Faults) advice(e *cnierr.Error) string {
	if len(f.list) == 1 {
		return e.Hint
	}
	return fmt.Sprintf("%q: %s", e.Subject, e.Hint)
}

// didYouMean returns a hint with the most similar of the known words, or with
// all of them if none is similar.
func didYouMean(word string, known []string) string {
	word = clip(word, maxQuoted) // no known word is as long
	best, least := "", tolerance(word)+1
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "use one of " + strings.Join(known, ", ")
}

// Resembles says whether word is probably a misspelling of the known one.
func Resembles(word, known string) bool {
	most := tolerance(word)
	return len(word)-len(known) <= most && distance(strings.ToLower(word), strings.ToLower(known)) <= most
}

func tolerance(word string) int { return max(1, len(word)/3) }

// distance returns how many changes turn a into b (optimal string alignment). A
// change inserts, removes or replaces a byte, or swaps two neighbours.
func distance(a, b string) int {
	var before, above []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replace := above[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, row[j]+1, above[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
