// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// reach tests whether two pods of this node reach each other.
func (b Bench) reach(ctx context.Context, of string, first, second *pod) []report.Finding {
	var members [2]verify.Pod
	for i, p := range []*pod{first, second} {
		k, err := kernel.Open(p.path, b.Node.Sys)
		if err != nil {
			return []report.Finding{cannotTell(of, err.Error(), "the namespaces of the pods")}
		}
		defer k.Close()
		members[i] = verify.Pod{Name: fmt.Sprintf("pod %d", i+1), Enter: k.Enter, Control: func(fn func() error) error { return fn() }}
	}
	key, err := verify.KeyOf(rand.Text())
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "a key")}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the address 127.0.0.1")}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	server := verify.Server{Pod: members[1], Key: key}
	wg.Go(func() { _ = server.Serve(ctx, l) }) // if it cannot, the test says that nothing answers
	defer wg.Wait()
	defer l.Close() //nolint:errcheck // Serve may have closed it
	defer cancel()
	answers, err := members[0].Test(ctx, l.Addr().String(), key, verify.Tests{})
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "two pods with addresses")}
	}
	var out []report.Finding
	for _, a := range answers {
		f := a.Finding
		f.Of, f.Found = of, a.Check+": "+f.Of+": "+f.Found
		out = append(out, f)
	}
	return out
}

// transfers sends by RDMA between two pods of one NIC.
func (s *scene) transfers(ctx context.Context) []report.Finding {
	of := s.port.String()
	var in [2]*kernel.Kernel
	for i := range in {
		p, err := s.add(ctx, nil)
		if err == nil {
			in[i], err = kernel.Open(p.path, s.Node.Sys)
		}
		if err != nil {
			return []report.Finding{cannotTell(of, err.Error(), "two pods: see pod-add")}
		}
		defer in[i].Close()
	}
	first, second := s.pods[0], s.pods[1]
	serving, stop := context.WithCancel(ctx)
	defer second.serve(serving, in[1])()
	defer stop()
	peer, _ := second.target(s.port)
	var out []report.Finding
	for _, t := range first.transfers() {
		f := s.Node.ofNIC(s.port, first.send(ctx, in[0], t, peer.String()))
		out = append(out, f)
		if f.Verdict != report.OK {
			break // the other programs would take as long to fail
		}
	}
	s.job(ctx, in, out[0].Verdict == report.OK)
	return out
}

// functions tests pods on two VFs of one PF. It comes first: a NIC can have few MAC
// filters for all of its VFs.
func (b Bench) functions(ctx context.Context, v view, nics []nic.Port) {
	of := map[string][]nic.Port{}
	for _, p := range nics {
		pf, err := fs.ReadLink(v.Sys, path.Join("class/net", p.Own.Name, "device/physfn"))
		if err != nil {
			continue
		}
		pf = path.Base(pf)
		if of[pf] = append(of[pf], p); len(of[pf]) != 2 {
			continue
		}
		var pods []*pod
		for i, p := range of[pf] {
			pod, err := b.pod(fmt.Sprintf("vf-%d", i), 0, []nic.Port{p}, nil)
			if err == nil {
				pods = append(pods, pod)
				err = pod.add(ctx)
			}
			if err != nil {
				b.say("vf-reach", problem(p.String(), err.Error(), aKnownFault))
				break
			}
		}
		if len(pods) == 2 && pods[1].rec.Committed {
			b.say("vf-reach", b.reach(ctx, of[pf][0].String()+" to "+of[pf][1].String(), pods[0], pods[1])...)
		}
		for _, p := range pods {
			if err := p.remove(context.WithoutCancel(ctx)); err != nil {
				b.say("pod-del", problem(p.ports[0].String(), err.Error(), "roce-hwtest --mutate  # a second run removes what is left"))
			}
		}
	}
}

// nccl runs a collective of one process in the pod and reads which devices NCCL uses.
func (p *pod) nccl(ctx context.Context) report.Finding {
	const program = "all_reduce_perf"
	of := p.ports[0].String()
	if _, err := exec.LookPath(program); err != nil {
		return cannotTell(of, program+" is not installed", "nccl-tests in the PATH, and a GPU")
	}
	k, err := kernel.Open(p.path, p.Node.Sys)
	if err != nil {
		return cannotTell(of, err.Error(), "the namespace of the pod")
	}
	defer k.Close()
	device := fmt.Sprintf("%s:%d", p.ports[0].Device.Name, p.ports[0].Number)
	_, index := p.target(p.ports[0])
	said, err := inside(ctx, k, "env", "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET", "NCCL_SOCKET_IFNAME=net1",
		"NCCL_IB_HCA=="+device, fmt.Sprintf("NCCL_IB_GID_INDEX=%d", index), program, "-b", "8", "-e", "1M", "-g", "1")
	for line := range strings.Lines(said) {
		_, uses, found := strings.Cut(line, "NET/IB : Using ")
		switch {
		case found && strings.Contains(uses, "]"+device+"/RoCE"):
			return ok(of, "NCCL uses %s", strings.TrimSpace(uses))
		case found:
			return problem(of, "NCCL uses "+strings.TrimSpace(uses), aKnownFault)
		}
	}
	return cannotTell(of, fmt.Sprintf("%s says nothing about NET/IB (%v): %s", program, err, lastLine(said)), "a GPU that it can use")
}

// Between returns the steps of a Bench that need a second node.
func Between() []Step {
	return []Step{
		{Name: "peer-reach", Asks: "do packets pass between pods of two nodes?", Expect: "ARP and UDP pass between the pods on each rail"},
		{Name: "peer-mtu", Asks: "do packets of the full MTU pass?", Expect: "packets of the MTU of the NIC pass in both directions"},
		{Name: "peer-rdma", Asks: "does ib_write_bw transfer between the pods, with the indexes of ADD?", Expect: "RoCE frames reach the MACs of macvlan children, and leave with them"},
		{Name: "peer-ud", Asks: "do unconnected queue pairs transfer (ib_send_lat -c UD)?", Expect: "datagrams reach the MACs of macvlan children, too"},
		{Name: "peer-cm", Asks: "does rdma_cm connect the pods (rping)?", Expect: "a connection by address has the MAC and the GID of the pod"},
	}
}

// one makes a pod on all NICs.
func (b Bench) one(ctx context.Context) (*pod, *kernel.Kernel, error) {
	v, err := b.Node.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer v.route.Close()
	nics := v.usable(ctx)
	if len(nics) == 0 {
		return nil, nil, errors.New("the node has no active RoCE port with an interface of its own")
	}
	p, err := b.pod("peer", 0, nics, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := p.add(ctx); err != nil {
		return nil, nil, err
	}
	k, err := kernel.Open(p.path, b.Node.Sys)
	return p, k, err
}

// member returns the pod as package verify has it. Its servers are reached through the
// node, because the pod has only rails.
func (b Bench) member(k *kernel.Kernel) verify.Pod {
	which := "first node"
	if b.Second {
		which = "second node"
	}
	return verify.Pod{Name: which, Enter: k.Enter, Control: func(fn func() error) error { return fn() }}
}

// Serve makes a pod on all NICs and answers the tests of the first node, until ctx
// ends. ready is called when it listens.
func (b Bench) Serve(ctx context.Context, l net.Listener, key verify.Key, ready func()) error {
	p, k, err := b.one(ctx)
	if err == nil {
		defer k.Close()
		wait := p.serve(ctx, k)
		ready()
		s := verify.Server{Pod: b.member(k), Key: key}
		err = s.Serve(ctx, l)
		wait()
	}
	return errors.Join(err, b.Clean(context.WithoutCancel(ctx)))
}

// serve starts the servers of all transfers in the pod. They stop when ctx ends, and wait
// waits for that.
func (p *pod) serve(ctx context.Context, k *kernel.Kernel) (wait func()) {
	var wg sync.WaitGroup
	for _, t := range p.transfers() {
		wg.Go(func() {
			for ctx.Err() == nil { // a server ends after each client
				if _, err := inside(ctx, k, t.server...); errors.Is(err, exec.ErrNotFound) {
					return
				}
				pause(ctx)
			}
		})
	}
	return wg.Wait
}

// pause keeps a server that cannot start from starting all the time.
func pause(ctx context.Context) {
	t := time.NewTimer(100 * time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// With tests a pod on all NICs with that of the second node.
func (b Bench) With(ctx context.Context, address string, key verify.Key) error {
	p, k, err := b.one(ctx)
	if err != nil {
		b.say("peer-reach", cannotTell("", err.Error(), "a pod on all NICs: see pod-add and rails"))
		return b.Clean(context.WithoutCancel(ctx))
	}
	defer k.Close()
	self := b.member(k)
	answers, err := self.Test(ctx, address, key, verify.Tests{})
	if err != nil {
		b.say("peer-reach", cannotTell(address, err.Error(), "roce-hwtest serve on the other node, with the same $"+verify.TokenVariable))
	}
	for _, a := range answers {
		b.say("peer-"+a.Check, a.Finding)
	}
	if err == nil {
		p.transfer(ctx, k, self, address, key)
	}
	return b.Clean(context.WithoutCancel(ctx))
}

// transfer is a program that runs in both pods, for one rail.
type transfer struct {
	step   string
	rail   int
	server []string
	client func(peer string) []string
}

// target returns the IPv4 address of a port, and its GID index.
func (p *pod) target(of nic.Port) (addr netip.Addr, index int) {
	for g := range plan.All[plan.GID](p.rec.Plan.Ops) {
		for _, t := range g.Targets {
			if g.Device.Name == of.Device.Name && g.Device.Port == of.Number && t.Addr.Is4() {
				addr = t.Addr
			}
		}
	}
	return addr, p.indexes()[addr]
}

// on are the arguments of the programs of perftest for a port.
func (p *pod) on(port nic.Port) []string {
	_, index := p.target(port)
	return []string{"-d", port.Device.Name, "-i", fmt.Sprint(port.Number), "-x", fmt.Sprint(index), "--CPU-freq"}
}

// transfers returns the programs for each rail.
func (p *pod) transfers() []transfer {
	var out []transfer
	for i, port := range p.ports {
		on := append(p.on(port), "--iters=100")
		tcp := func(first int) []string { return []string{"-p", fmt.Sprint(first + i)} }
		plain := func(args []string) func(string) []string {
			return func(peer string) []string { return append(slices.Clone(args), peer) }
		}
		write := slices.Concat([]string{"ib_write_bw"}, on, []string{"--size=65536"}, tcp(18515))
		send := slices.Concat([]string{"ib_send_lat", "-c", "UD"}, on, []string{"--size=64"}, tcp(18615))
		ping := slices.Concat([]string{"rping", "-C", "5"}, tcp(18715))
		addr, _ := p.target(port)
		own := addr.String()
		out = append(out,
			transfer{"peer-rdma", i, write, plain(write)},
			transfer{"peer-ud", i, send, plain(send)},
			transfer{"peer-cm", i, slices.Concat(ping, []string{"-s", "-a", own}), func(peer string) []string {
				return slices.Concat(ping, []string{"-c", "-I", own, "-a", peer})
			}},
		)
	}
	return out
}

// transfer sends by RDMA on each rail.
func (p *pod) transfer(ctx context.Context, k *kernel.Kernel, self verify.Pod, address string, key verify.Key) {
	peer, err := self.Dial(ctx, address, key, "")
	if err != nil {
		p.say("peer-rdma", cannotTell("", err.Error(), "the other node"))
		return
	}
	defer peer.Close()
	for _, t := range p.transfers() {
		if t.rail < len(peer.Rails) && ctx.Err() == nil {
			p.say(t.step, p.Node.ofNIC(p.ports[t.rail], p.send(ctx, k, t, peer.Rails[t.rail].Addr.String())))
		}
	}
}

// ofNIC returns what a transfer says about a port: a problem only if the device is a NIC.
func (n Node) ofNIC(p nic.Port, f report.Finding) report.Finding {
	if bus, _ := discover.Hardware(n.Sys, p.Device.Name); bus == "" && f.Verdict == report.Problem {
		return cannotTell(f.Of, f.Found, "a NIC: Soft-RoCE does not take frames for macvlan children")
	}
	return f
}

// clientTries is how often a client runs: the server may be between two clients.
const clientTries = 5

// send runs the client of a transfer.
func (p *pod) send(ctx context.Context, k *kernel.Kernel, t transfer, to string) report.Finding {
	of, args := p.ports[t.rail].String(), t.client(to)
	if _, err := exec.LookPath(args[0]); err != nil {
		return cannotTell(of, args[0]+" is not installed", "the packages perftest and rdmacm-utils on both nodes")
	}
	var said string
	var err error
	for try := range clientTries {
		if said, err = inside(ctx, k, args...); err == nil {
			return ok(of, "%s transfers, at attempt %d", strings.Join(args, " "), try+1)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return problem(of, fmt.Sprintf("%s does not end within %s: %s", strings.Join(args, " "), transferTime, lastLine(said)), aKnownFault)
		}
		pause(ctx)
	}
	return clientFailed(of, fmt.Sprintf("%s: %v: %s", strings.Join(args, " "), err, lastLine(said)))
}

// noVerbs is what perftest prints if libibverbs does not list the device.
const noVerbs = "Unable to find the Infiniband/RoCE device"

// clientFailed returns the finding for a client that failed. Without a library for the device it
// says nothing about the NIC.
func clientFailed(of, found string) report.Finding {
	if strings.Contains(found, noVerbs) {
		return cannotTell(of, found, "libibverbs with a library for this driver: ibv_devices must list the device (package ibverbs-providers, or that of the NIC's vendor)")
	}
	return problem(of, found, aKnownFault)
}

func lastLine(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// transferTime bounds one program.
const transferTime = time.Minute

// inside runs a program in the namespace of a pod.
func inside(ctx context.Context, k *kernel.Kernel, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	p, err := start(ctx, k, args...)
	if err != nil {
		return "", cmp.Or(ctx.Err(), err)
	}
	<-p.ended
	return p.said.String(), cmp.Or(ctx.Err(), p.err)
}

// program is a program that was started. What it said, and its error, are there when it has
// ended.
type program struct {
	pid   uint32
	ended chan struct{}
	said  bytes.Buffer
	err   error
}

// start starts a program in the namespace of a pod. It is killed when ctx ends.
func start(ctx context.Context, k *kernel.Kernel, args ...string) (*program, error) {
	p := &program{ended: make(chan struct{})}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the words are ours
	cmd.Stdout, cmd.Stderr = &p.said, &p.said
	wait, err := k.Start(cmd)
	if err != nil {
		return nil, err
	}
	p.pid = uint32(cmd.Process.Pid)
	go func() {
		p.err = wait()
		close(p.ended)
	}()
	return p, nil
}

// over says whether the program has ended.
func (p *program) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
