// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// header is that of a table in Markdown: of all nodes, and of each node that got its
// addresses.
const header = `| | nodes | pool | all done | nodes/s | p50 | p99 | conflicts | lists | writes | refused | model |
|---|---|---|---|---|---|---|---|---|---|---|---|`

// row is a line of the table.
func (o outcome) row(model string) string {
	return fmt.Sprintf("| %s | %d | %s | %s | %.0f | %s | %s | %.2f | %.2f | %.1f | %.1f | %s |",
		o.who(), o.Nodes, o.pool(), o.end(), o.rate(), short(o.P50), short(o.P99),
		o.sum(request.conflicting), o.sum(request.listing), o.sum(request.writing),
		float64(o.Requests[refused])/float64(max(1, o.Done)), model)
}

func (o outcome) who() string {
	name := string(o.Design)
	if o.Rule != asIs {
		name += ", " + string(o.Rule)
	}
	if o.Starting {
		name += ", starting"
	}
	if o.Hints {
		name += ", hints"
	}
	switch {
	case o.Spread > 0:
		name += ", within " + o.Spread.String()
	case o.Parallel == 0:
		name += ", all at once"
	}
	return name
}

func (o outcome) pool() string {
	switch {
	case o.Design != blocks:
		return ""
	case o.Joined > 0:
		return fmt.Sprintf("%d to %d %%", o.Joined, o.Fill)
	}
	return fmt.Sprintf("%d %%", o.Fill)
}

// end says when all were done, or how many were when time was up.
func (o outcome) end() string {
	switch {
	case o.Done < o.Nodes:
		return fmt.Sprintf("%d in %s", o.Done, short(o.Elapsed))
	case o.Least < o.Most:
		return fmt.Sprintf("%s (%s to %s)", short(o.Elapsed), short(o.Least), short(o.Most))
	}
	return short(o.Elapsed)
}

// compare says how much slower the model is than what was measured, in nodes in a
// second.
func compare(measured, model outcome) string {
	if model.rate() == 0 {
		return "none done"
	}
	return fmt.Sprintf("%.2f", measured.rate()/model.rate())
}

// short is a duration for people.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
}

// printCosts prints what the model goes by.
func printCosts(out io.Writer, c costs) {
	fmt.Fprintf(out, "\n%s; %d at once; a cached list is late by %s\n\n| | busy, ms | for 1,000 things | alone, ms |\n|---|---|---|---|\n",
		c.Machine, c.Parallel, short(c.Lag))
	for _, r := range slices.Sorted(maps.Keys(c.Requests)) {
		cost := c.Requests[r]
		each := ""
		if cost.Each > 0 {
			each = fmt.Sprintf("%.2f", inMS(1000*cost.Each))
		}
		fmt.Fprintf(out, "| %s | %.2f | %s | %.2f |\n", r, inMS(cost.Work), each, inMS(cost.Alone))
	}
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
