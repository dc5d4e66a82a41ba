// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// compare prints the table of a contest and returns how many targets were
// missed.
func (c contest) compare(s samples, o options, out io.Writer) (missed int) {
	fmt.Fprintf(out, "\n%s, %s\n%-42s  %6s  %6s  %6s\n", c.name, c.counted(s), cmp.Or(c.against, "against upstream's chain"), "median", "p90", "target")
	for _, r := range c.rows {
		ours, with := r.value(s, r.ours, median), r.value(s, r.with, median)
		ratio := float64(ours) / float64(with)
		slow := float64(r.value(s, r.ours, p90)) / float64(r.value(s, r.with, p90))
		fmt.Fprintf(out, "%-42s  %5.3fx  %5.3fx  ", r.name, ratio, slow)
		switch {
		case r.target == 0:
			fmt.Fprintf(out, "%6s        ", "")
		case ratio <= r.target:
			fmt.Fprintf(out, "%5.2fx  ok    ", r.target)
		default:
			missed++
			fmt.Fprintf(out, "%5.2fx  MISSED", r.target)
		}
		if o.times {
			fmt.Fprintf(out, "  %7.2f ms to %.2f ms", ms(ours), ms(with))
		}
		fmt.Fprintln(out)
	}
	return missed
}

// counted tells how many runs there were.
func (c contest) counted(s samples) string {
	out := fmt.Sprintf("%d runs of each", c.runs)
	for _, p := range c.players {
		if p.every > 0 {
			out += fmt.Sprintf(", %d of %s", len(s[p.name][add]), p.name)
		}
	}
	return out
}

// value returns what a player takes, as of tells from its samples.
func (r row) value(s samples, player string, of func([]time.Duration) time.Duration) time.Duration {
	v := of(s[player][r.verb])
	if r.less != "" {
		v -= of(s[r.less][r.verb])
	}
	return v
}

func median(sorted []time.Duration) time.Duration { return quantile(sorted, 50) }

func p90(sorted []time.Duration) time.Duration { return quantile(sorted, 90) }

// quantile returns the smallest duration that percent of them do not exceed.
func quantile(sorted []time.Duration, percent int) time.Duration {
	i := (len(sorted)*percent + 99) / 100
	return sorted[max(i-1, 0)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// machine describes what the numbers are of, its other work included.
func machine() string {
	var u unix.Utsname
	release := "unknown"
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	return fmt.Sprintf("Linux %s, %d CPUs, load %s", release, runtime.NumCPU(), strings.TrimSpace(string(load)))
}
