// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// program is one that both pods run to test a rail by RDMA.
type program struct {
	check, name, contained string // contained: the package that has it
	// args are those of the client, and of the server without a peer.
	args  func(own Rail, on gids.Rail, tcp int, peer netip.Addr) []string
	tells func(said string) string
}

func programs() []program {
	return []program{
		{
			check: Handshake, name: "rping", contained: "rdmacm-utils",
			args: func(own Rail, _ gids.Rail, tcp int, peer netip.Addr) []string {
				role := []string{"-s", "-a", own.Addr.String()}
				if peer.IsValid() {
					role = []string{"-c", "-I", own.Addr.String(), "-a", peer.String()}
				}
				return append(role, "-p", fmt.Sprint(tcp), "-C", "3")
			},
			tells: func(string) string { return "rping connects by rdma_cm and transfers" },
		},
		{
			check: Bandwidth, name: "ib_write_bw", contained: "perftest",
			args: func(own Rail, on gids.Rail, tcp int, peer netip.Addr) []string {
				args := []string{
					"-d", on.Port.Device.Name, "-i", fmt.Sprint(on.Port.Number), "-x", fmt.Sprint(on.Index), "-p", fmt.Sprint(tcp),
					"--size=65536", "--iters=500", "--report_gbits", "--CPU-freq",
				}
				if !own.Addr.Is4() {
					args = append(args, "--ipv6-addr")
				}
				if !peer.IsValid() {
					return args
				}
				if !own.Subnet.Contains(peer) { // its TCP connection needs the rail's table, too
					args = append(args, "--bind_source_ip="+own.Addr.String())
				}
				return append(args, peer.String())
			},
			tells: gigabits,
		},
	}
}

// gigabits reads the average in the table that ib_write_bw prints.
func gigabits(said string) string {
	for line := range strings.Lines(said) {
		if f := strings.Fields(line); len(f) >= 4 && f[0] == "65536" {
			return transfers + f[3] + " Gb/s"
		}
	}
	return strings.TrimSpace(transfers)
}

const transfers = "ib_write_bw transfers "

// Limits of one test by RDMA.
const (
	transferTime  = time.Minute
	transferTries = 10
	transferPause = 500 * time.Millisecond
)

// running is a program of ours. said is for the time after its end.
type running struct {
	said output
	done chan struct{}
}

// output is a writer that drops what is longer than any program of ours says.
type output struct{ text bytes.Buffer }

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	if o.text.Len() < largest {
		o.text.Write(b)
	}
	return len(b), nil
}

func last(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	return line[:min(len(line), 200)]
}

// start starts a program in the pod. It is killed when ctx ends, and when this process does.
func (p Pod) start(ctx context.Context, name string, args []string) (*running, *exec.Cmd, error) {
	out := &running{done: make(chan struct{})}
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the words are ours, and numbers and addresses
	cmd.Stdout, cmd.Stderr = &out.said, &out.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the runtime keeps the thread that starts it
	// A process has the namespace of the thread that starts it.
	return out, cmd, p.Enter(cmd.Start)
}

// port returns the RDMA port of a rail. The text says what is missing.
func (p Pod) port(ctx context.Context, r Rail, of program) (on gids.Rail, missing string) {
	if _, err := exec.LookPath(of.name); err != nil {
		return gids.Rail{}, fmt.Sprintf("%s of the package %s in %s", of.name, of.contained, p.Name)
	}
	if p.RDMA == nil {
		return gids.Rail{}, "a server with tests by RDMA in " + p.Name
	}
	have, err := p.RDMA(ctx)
	if err != nil {
		return gids.Rail{}, fmt.Sprintf("RDMA in %s: %v", p.Name, err)
	}
	for _, g := range have {
		if g.Link == r.Link && (on.Link == "" || g.Addr.Is4()) {
			on = g
		}
	}
	if on.Link == "" {
		return gids.Rail{}, fmt.Sprintf("a GID for %s of %s: rocectl doctor on its node", r.Addr, p.Name)
	}
	return on, ""
}

// free finds a port that no program of the pod uses now.
func (p Pod) free(ctx context.Context, r Rail) (tcp int, err error) {
	err = p.Enter(func() error {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(r.Addr, 0).String())
		if err != nil {
			return err
		}
		tcp = int(netip.MustParseAddrPort(l.Addr().String()).Port())
		return l.Close()
	})
	return tcp, err
}

const whyRDMA = "collectives over this rail fail, although IP works"

func (c couple) transfer(ctx context.Context, of program) report.Answer {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	on, missing := c.port(ctx, c.r, of)
	var there reply
	var err error
	if missing == "" {
		there, err = c.peer.ask(request{Launch: &launching{Rail: c.to.Number, Check: of.check}}, moment)
		missing = there.Missing
	}
	if err != nil {
		missing = c.peer.Name + ": " + err.Error()
	}
	if missing != "" {
		return cannotTell(of.check, c.of(), "not tested", missing)
	}
	args := of.args(c.r, on, there.Port, c.to.Addr)
	failed := func(said string) report.Answer {
		return problem(of.check, c.of(), fmt.Sprintf("%s %s: %s", of.name, strings.Join(args, " "), said),
			"rocectl doctor  # on both nodes: gid-table, rdma-mtu, firewall, nic-qos; in both pods: rocectl env", whyRDMA)
	}
	for range transferTries {
		run, cmd, err := c.start(ctx, of.name, args)
		if err == nil {
			err = cmd.Wait()
		}
		said := last(run.said.text.String())
		switch {
		case err == nil:
			return good(of.check, c.of(), of.tells(run.said.text.String()))
		case ctx.Err() != nil:
			return failed(fmt.Sprintf("it does not end within %s: %s", transferTime, said))
		}
		far, asked := c.peer.ask(request{Ended: there.Launched}, moment)
		if asked != nil || far.Over {
			return failed(strings.TrimSpace(fmt.Sprintf("%v: %s; %s says: %s", err, said, c.peer.Name, far.Said)))
		}
		select { // the server may be about to listen
		case <-ctx.Done():
			return failed("its server cannot be reached")
		case <-time.After(transferPause):
		}
	}
	return failed("its server cannot be reached")
}

// launch starts the server of a program.
func (c *caller) launch(ctx context.Context, q launching, rails []Rail) (reply, error) {
	r, err := numbered(rails, q.Rail)
	if err != nil {
		return reply{}, err
	}
	i := slices.IndexFunc(programs(), func(of program) bool { return of.check == q.Check })
	if i < 0 {
		return reply{}, errors.New("there is no test " + q.Check)
	}
	of := programs()[i]
	on, missing := c.pod.port(ctx, r, of)
	if missing != "" {
		return reply{Missing: missing}, nil
	}
	tcp, err := c.pod.free(ctx, r)
	if err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	run, cmd, err := c.pod.start(ctx, of.name, of.args(r, on, tcp, netip.Addr{}))
	if err != nil {
		cancel()
		return reply{}, err
	}
	go func() {
		defer cancel()
		_ = cmd.Wait() // what it says tells why it has failed
		close(run.done)
	}()
	c.programs = append(c.programs, run)
	return reply{Port: tcp, Launched: len(c.programs)}, nil
}

func (c *caller) endedOf(number int) reply {
	if number < 1 || number > len(c.programs) {
		return reply{Error: "there is no such program"}
	}
	run := c.programs[number-1]
	select {
	case <-run.done:
		return reply{Said: last(run.said.text.String()), Over: true}
	default:
		return reply{}
	}
}
