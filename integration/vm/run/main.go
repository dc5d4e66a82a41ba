// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Program run runs one command in a virtual machine with RDMA, or in several
// that are joined by wires, and ends with the command's exit status: the
// highest of several, 124 after the timeout, 125 if the machine did not work.
//
// The command sees the files of the folder that run is started in, and changes none. All
// else is in package vm.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/roce-cni/roce-cni/integration/vm"
)

// options are the command line.
type options struct {
	kernel, cache string
	machine       string
	rails, nodes  int
	memory, cpus  int
	timeout       time.Duration
	dir           string
	command       []string
}

func main() {
	var o options
	flag.StringVar(&o.kernel, "kernel", "6.1", "series of the kernel: 6.1 or 7")
	flag.StringVar(&o.cache, "cache", ".cache/vm", "folder of the kernels")
	flag.StringVar(&o.machine, "machine", "", "what the machine imitates: ofed-view, mlx5-like, sriov, pcie, or nothing")
	flag.IntVar(&o.rails, "rails", 2, "NICs with Soft-RoCE")
	flag.IntVar(&o.nodes, "nodes", 1, "machines; VM_NODE, from 0, tells the command which it is in")
	flag.IntVar(&o.memory, "memory", 0, "MiB of each; 0: 1024")
	flag.IntVar(&o.cpus, "cpus", 0, "processors of each; 0: 2, or 1 for sriov")
	flag.DurationVar(&o.timeout, "timeout", 5*time.Minute, "when to give up")
	flag.Parse()
	o.command = flag.Args()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, o, os.Stdout, os.Stderr) //nolint:forbidigo // main touches the process
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "run: %v\n", err) //nolint:forbidigo // as above
	}
	os.Exit(status) //nolint:forbidigo // as above
}

// run returns the exit status, of an error too.
func run(ctx context.Context, o options, out, log io.Writer) (int, error) {
	const failed = 125
	if len(o.command) == 0 {
		return failed, errors.New("no command: run [options] -- command [arguments]")
	}
	dir, err := os.Getwd() //nolint:forbidigo // main's, too
	if err != nil {
		return failed, err
	}
	o.dir = dir
	kernel, err := vm.Fetch(ctx, o.cache, o.kernel, log)
	if err != nil {
		return failed, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	status, err := boot(ctx, kernel, o, out)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return 124, err
	case err != nil:
		return failed, err
	}
	return status, nil
}

// boot runs the command in every node.
func boot(ctx context.Context, kernel vm.Kernel, o options, out io.Writer) (int, error) {
	wires := make([]*vm.Wire, o.rails)
	for i := range wires {
		wires[i] = new(vm.Wire)
	}
	var wg, together sync.WaitGroup
	together.Add(o.nodes)
	var mu sync.Mutex
	statuses, errs := make([]int, o.nodes), make([]error, o.nodes)
	for n := range o.nodes {
		m := vm.Machine{Node: n, Rails: wires, Type: vm.Type(o.machine), Memory: o.memory, CPUs: o.cpus, Files: []string{o.dir}, Dir: o.dir, Together: &together, Output: out}
		if o.nodes > 1 {
			m.Output = &prefixed{out: out, mu: &mu, prefix: fmt.Appendf(nil, "node%d| ", n)}
		}
		wg.Go(func() { statuses[n], errs[n] = kernel.Run(ctx, m, o.command...) })
	}
	wg.Wait()
	highest := 0
	for _, s := range statuses {
		highest = max(highest, s)
	}
	return highest, errors.Join(errs...)
}

// prefixed writes whole lines, each behind the prefix. Several share mu.
type prefixed struct {
	out    io.Writer
	mu     *sync.Mutex
	prefix []byte
	rest   []byte
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		end := bytes.IndexByte(p.rest, '\n') + 1
		if end == 0 {
			return len(b), nil
		}
		p.mu.Lock()
		_, err := p.out.Write(append(bytes.Clone(p.prefix), p.rest[:end]...))
		p.mu.Unlock()
		if err != nil {
			return 0, err
		}
		p.rest = p.rest[end:]
	}
}
