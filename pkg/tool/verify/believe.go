// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// MostRails is how many rails a pod can have in a test. A pod that lies could name millions.
const MostRails = 256

// allRails is what an answer is about that is the same for each rail of a pod.
const allRails = "all rails"

// counted returns the answers of a member that count, and what it could not answer. An answer
// that it gives twice counts once.
func counted(seat Seat, peer string, answers []report.Answer, err error) []report.Answer {
	var out []report.Answer
	given := map[[2]string]bool{}
	for _, a := range answers {
		if key := [2]string{a.Check, a.Of}; isAbout(a, seat.Name, peer) && !given[key] {
			given[key] = true
			out = append(out, a)
		}
	}
	if n := len(answers) - len(out); n > 0 && err == nil {
		err = fmt.Errorf("%d answers of %s are twice the same, of no test, or not about itself", n, seat.Name)
	}
	if err != nil {
		out = append(out, answer(Reach, seat.Name, report.Finding{
			Verdict: report.CannotTell, Found: err.Error(), Missing: "rocectl verify serve in the pod, with the same token",
		}))
	}
	for i := range out {
		a := &out[i]
		a.Found, a.Fix, a.Missing, a.Why = short(a.Found), short(a.Fix), short(a.Missing), short(a.Why)
	}
	return out
}

// isAbout says whether an answer is one of a test, and about a pod, or, with a peer, about
// these two. A pod that lies can only accuse itself, and the links that it has itself.
func isAbout(a report.Answer, self, peer string) bool {
	known := []string{Routing, GatewayUp, Duplicate, Reach, MTU, GID, Container, Handshake, Bandwidth}
	if !a.Verdict.Valid() || !slices.Contains(known, a.Check) {
		return false
	}
	rail, x, y := between(a.Of)
	if a.Of == self && peer == "" {
		return true
	}
	if other, pod, cross := strings.Cut(y, " of "); cross {
		if !isRail(other) {
			return false
		}
		y = pod
	}
	return x == self && y == peer && (rail == allRails || isRail(rail))
}

// isRail says whether a text names a rail: "rail 3".
func isRail(s string) bool {
	number, _ := strings.CutPrefix(s, "rail ")
	n, err := strconv.Atoi(number)
	return err == nil && n >= 0 && n < MostRails && s == fmt.Sprintf("rail %d", n)
}

// The most of a text of an answer that is kept.
const (
	mostLines   = 8
	longestLine = 1000
)

// short returns the first lines of a text, and the beginning of each, without what a
// terminal would obey.
func short(s string) string {
	lines := strings.SplitN(s, "\n", mostLines+1)
	lines = lines[:min(len(lines), mostLines)]
	for i, line := range lines {
		lines[i] = report.Printable(line[:min(len(line), longestLine)])
	}
	return strings.Join(lines, "\n")
}
