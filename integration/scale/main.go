// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Program scale measures how long it takes until each of thousands of nodes has
// addresses: on a real kube-apiserver and etcd and, for more nodes than this
// machine can run, in a model with costs that were measured on it.
//
// It never talks to a cluster that it has not started, and judges nothing. Both use
// the claimer of pkg/cluster/block; two other designs are models of their requests. Read
// design.go first for the designs, then plan.go for what is run. README.md has results.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// options are the command line.
type options struct {
	bin      string // folder of etcd and kube-apiserver
	deploy   string // folder of what is installed into a cluster
	costs    string // file of results: measure nothing
	out      string // file for results
	nodes    []int
	crowds   bool // only the runs that crowds selects
	flow     bool // install the queue of the agents
	parallel int
	repeat   int
	limit    time.Duration
	seed     uint64
}

// results is what the file has.
type results struct {
	Costs    costs     `json:"costs"`
	Outcomes []outcome `json:"outcomes"`
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", ".cache/cluster/bin", "folder of etcd and kube-apiserver")
	flag.StringVar(&o.deploy, "deploy", "conf-examples/deploy", "folder of what is installed into a cluster")
	flag.StringVar(&o.costs, "costs", "", "file of results: measure nothing, and run the model with its costs")
	flag.StringVar(&o.out, "out", "", "file to write results to, as JSON")
	flag.IntVar(&o.parallel, "parallel", 500, "how many nodes are at work at one time; 0: all")
	flag.IntVar(&o.repeat, "repeat", 1, "how often each is measured")
	flag.DurationVar(&o.limit, "limit", time.Minute, "how long each may take")
	flag.Uint64Var(&o.seed, "seed", 1, "of the random numbers")
	flag.BoolVar(&o.crowds, "crowds", false, "measure only nodes that start at the same moment, each after the same run with -parallel; no costs, no model")
	flag.BoolVar(&o.flow, "flow", true, "install flow.yaml of -deploy, the queue of the agents at the API server")
	nodes := flag.String("nodes", "10,100,1000,5000", "how many nodes there are, in the runs that are measured")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := o.parse(*nodes)
	if err == nil {
		err = run(ctx, o, os.Stdout) //nolint:forbidigo // main touches the process
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "scale: %v\n", err) //nolint:forbidigo // as above
		os.Exit(1)                                 //nolint:forbidigo // as above
	}
}

func (o *options) parse(nodes string) error {
	for each := range strings.SplitSeq(nodes, ",") {
		n, err := strconv.Atoi(each)
		if err != nil || n < 1 {
			return fmt.Errorf("-nodes: %q is no number of nodes", each)
		}
		o.nodes = append(o.nodes, n)
	}
	return nil
}

// run measures, models, prints, and writes the results.
func run(ctx context.Context, o options, out io.Writer) error {
	var r results
	var err error
	modelled := large()
	if o.crowds {
		modelled = nil
	}
	if o.costs == "" {
		r, err = onServer(ctx, o, out)
	} else {
		modelled = append(o.plan(), modelled...)
		var text []byte
		if text, err = os.ReadFile(o.costs); err == nil {
			err = json.Unmarshal(text, &r)
		}
		r.Outcomes = nil
		printCosts(out, r.Costs)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n", header)
	for _, s := range modelled {
		got, err := simulate(ctx, r.Costs, s, horizon, o.seed)
		if err != nil {
			return fmt.Errorf("%+v: %w", s, err)
		}
		fmt.Fprintln(out, got.row(""))
		r.Outcomes = append(r.Outcomes, got)
	}
	if o.out == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(text, '\n'), 0o644)
}

// onServer measures the costs and the scenarios, each beside what the model has for
// it.
func onServer(ctx context.Context, o options, out io.Writer) (r results, err error) {
	dir, err := os.MkdirTemp("", "roce-cni-scale")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return r, err
	}
	c, err := ground.Start(ctx, ground.Options{Bin: bin, Dir: dir})
	if err != nil {
		return r, fmt.Errorf("%w; make scale builds what is missing", err)
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	s, err := newServer(ctx, c, o.deploy, o.flow, time.Now)
	if err != nil {
		return r, err
	}
	if !o.crowds {
		const parallel = 64 // as many as keep the machine busy
		if r.Costs, err = s.calibrate(ctx, parallel); err != nil {
			return r, err
		}
		printCosts(out, r.Costs)
	}
	fmt.Fprintf(out, "\n%s\n", header)
	for _, sc := range o.plan() {
		got, err := s.repeat(ctx, o, sc)
		if err != nil {
			return r, fmt.Errorf("%+v: %w", sc, err)
		}
		if o.crowds {
			fmt.Fprintln(out, got.row("load "+got.Load))
			r.Outcomes = append(r.Outcomes, got)
			continue
		}
		model, err := simulate(ctx, r.Costs, sc, o.limit, o.seed)
		if err != nil {
			return r, fmt.Errorf("model of %+v: %w", sc, err)
		}
		fmt.Fprintln(out, got.row(compare(got, model)))
		r.Outcomes = append(r.Outcomes, got, model)
	}
	return r, nil
}

// repeat measures a scenario some times and returns the run in the middle.
func (s *server) repeat(ctx context.Context, o options, sc scenario) (outcome, error) {
	var runs []outcome
	for i := range o.repeat {
		before := load()
		got, err := s.measure(ctx, sc, o.limit, o.seed+uint64(i))
		if err != nil {
			return outcome{}, err
		}
		got.Load = before
		runs = append(runs, got)
	}
	slices.SortFunc(runs, func(a, b outcome) int { return cmp.Compare(b.rate(), a.rate()) })
	middle := runs[len(runs)/2]
	middle.Least, middle.Most = runs[0].Elapsed, runs[len(runs)-1].Elapsed
	return middle, nil
}
