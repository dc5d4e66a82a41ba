// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package strict reads JSON strictly and reports every fault at once, each
// with its path and, for a near miss, with what was probably meant.
//
// It knows no configuration: conf asks it for keys, and to ask for a key is to
// declare it. A reader that meets a fault notes it and returns the default, so
// that reading goes on. Read value.go first.
package strict

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// Faults collects all that is wrong with one input. The zero value is ready.
type Faults struct{ list []*cnierr.Error }

// Add notes a fault. The subject is a JSON path or the name of a variable.
func (f *Faults) Add(code cnierr.Code, subject, hint, format string, args ...any) {
	f.list = append(f.list, cnierr.New(code, "", subject, hint, format, args...))
}

// Len returns the number of faults so far.
func (f *Faults) Len() int { return len(f.list) }

// Adopt adds the faults of other whose subjects f has none of, with a note
// before each cause: what is read several times is then reported once.
func (f *Faults) Adopt(other *Faults, note string) {
	known := f.list
	for _, e := range other.list {
		same := func(k *cnierr.Error) bool { return k.Subject == e.Subject }
		if !slices.ContainsFunc(known, same) {
			f.Add(e.Code, e.Subject, e.Hint, "%s%w", note, e.Err)
		}
	}
}

// Err returns nil, or one *cnierr.Error that joins all faults. Its code is the
// one that all faults share, else cnierr.BadConfig, whose meaning is the
// widest; its hint tells what to do about each fault.
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
	return &cnierr.Error{
		Code: code, Op: op, Subject: subject,
		Hint: strings.Join(slices.Compact(hints), "; "), Err: errors.Join(all...),
	}
}

// advice returns a fault's hint, with its subject if there are other faults.
func (f *Faults) advice(e *cnierr.Error) string {
	if len(f.list) == 1 {
		return e.Hint
	}
	return fmt.Sprintf("%q: %s", e.Subject, e.Hint)
}

// didYouMean returns a hint that names the most similar of the known words, or
// all of them if none is similar.
func didYouMean(word string, known []string) string {
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

// Resembles says whether word was probably meant to be the known one.
func Resembles(word, known string) bool {
	return distance(strings.ToLower(word), strings.ToLower(known)) <= tolerance(word)
}

// tolerance returns the greatest distance of a near miss.
func tolerance(word string) int { return max(1, len(word)/3) }

// distance returns how many bytes must be inserted, removed, replaced, or
// swapped with their neighbour to turn a into b (optimal string alignment).
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
