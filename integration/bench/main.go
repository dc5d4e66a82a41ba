// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Program bench measures ADD and DEL of roce against upstream's chain macvlan,
// host-local, sbr and tuning, on this machine, and judges the ratios.
//
// Both are called through libcni, in turn, each time for a pod of its own.
// It also measures what a lease costs beside thousands of others. Only ratios
// are judged, never times: those are of the machine and of its other work. Program
// minimal makes only what the kernel must have, and says what a promise of ours costs. Read
// contest.go and rails.go first for who runs against whom and what the targets
// are, leases.go for the leases; docs/performance.md has results and where the
// time goes.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
)

// options are the command line.
type options struct {
	ours     string // folder of roce
	upstream string // folder of upstream's plugins
	peak     string // program peak
	minimal  string // folder of program minimal
	runs     int
	report   bool // compare nothing
	times    bool // print milliseconds, too
}

func main() {
	var o options
	flag.StringVar(&o.ours, "ours", "bin", "folder of roce")
	flag.StringVar(&o.upstream, "upstream", "", "folder of upstream's macvlan, host-local, sbr and tuning")
	flag.StringVar(&o.peak, "peak", "", "program peak; empty: do not measure memory")
	flag.StringVar(&o.minimal, "minimal", ".cache/bench", "folder of program minimal")
	flag.IntVar(&o.runs, "runs", 60, "how often each is run")
	flag.BoolVar(&o.report, "report", false, "print, but do not judge")
	flag.BoolVar(&o.times, "times", false, "print milliseconds of this machine, too")
	flag.Parse()

	runtime.LockOSThread() // the thread enters the node's namespace
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	missed, err := run(ctx, o, os.Stdout) //nolint:forbidigo // main touches the process
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err) //nolint:forbidigo // as above
		os.Exit(2)                                 //nolint:forbidigo // as above
	}
	if missed > 0 && !o.report {
		fmt.Fprintf(os.Stderr, "bench: %d of the targets missed\n", missed) //nolint:forbidigo // as above
		os.Exit(1)                                                          //nolint:forbidigo // as above
	}
}

// run measures, prints, and returns how many targets were missed.
func run(ctx context.Context, o options, out io.Writer) (missed int, err error) {
	fmt.Fprintln(out, machine())
	if missed, err = leases(ctx, o, out); err != nil {
		return missed, err
	}
	w, err := newWorld(o)
	defer w.remove()
	if err != nil {
		return missed, err
	}
	for _, prepare := range []func(*world, int) (contest, error){ipv4, dualStack, linked, railsIPv4, railsDualStack} {
		c, err := prepare(w, o.runs)
		if err != nil {
			return missed, err
		}
		s, err := w.measure(ctx, c)
		if err != nil {
			return missed, fmt.Errorf("%s: %w", c.name, err)
		}
		missed += c.compare(s, o, out)
	}
	heavy, err := w.memory(ctx, out)
	fmt.Fprintln(out, machine())
	return missed + heavy, err
}
