// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/doctor"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/verify"
)

// Between returns the steps of a Bench that need a second node.
func Between() []Step {
	return []Step{
		{Name: "peer-reach", Asks: "do packets pass between pods of two nodes?", Expect: "ARP and UDP pass between the pods on each rail"},
		{Name: "peer-mtu", Asks: "do packets of the full MTU pass?", Expect: "packets of the MTU of the NIC pass in both directions"},
		{Name: "peer-rdma", Asks: "does ib_write_bw transfer between the pods, with the indexes of ADD?", Expect: "RoCE frames reach the MACs of macvlan children, and leave with them"},
	}
}

// one makes a pod on all NICs.
func (b Bench) one(ctx context.Context) (*pod, *kernel.Kernel, error) {
	v, err := b.Node.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer v.route.Close()
	nics := v.usable()
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
func (b Bench) Serve(ctx context.Context, l net.Listener, token string, ready func()) error {
	p, k, err := b.one(ctx)
	if err == nil {
		defer k.Close()
		var wg sync.WaitGroup
		for i, args := range p.transfers() {
			wg.Go(func() {
				for ctx.Err() == nil { // a server ends after each client
					if _, err := inside(ctx, k, append(args, "-p", transferPort(i))...); errors.Is(err, exec.ErrNotFound) {
						return
					}
					pause(ctx)
				}
			})
		}
		ready()
		s := verify.Server{Pod: b.member(k), Token: token}
		err = s.Serve(ctx, l)
		wg.Wait()
	}
	return errors.Join(err, b.Clean(context.WithoutCancel(ctx)))
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
func (b Bench) With(ctx context.Context, address, token string) error {
	p, k, err := b.one(ctx)
	if err != nil {
		b.say("peer-reach", cannotTell("", err.Error(), "a pod on all NICs: see pod-add and rails"))
		return b.Clean(context.WithoutCancel(ctx))
	}
	defer k.Close()
	self := b.member(k)
	rails, err := self.Rails(ctx)
	var answers []doctor.Answer
	if err == nil {
		answers, err = self.Test(ctx, rails, address, token, false)
	}
	if err != nil {
		b.say("peer-reach", cannotTell(address, err.Error(), "rocectl hwtest serve on the other node, with the same --token"))
	}
	for _, a := range answers {
		b.say("peer-"+a.Check, a.Finding)
	}
	if err == nil {
		b.say("peer-rdma", p.transfer(ctx, k, self, address, token)...)
	}
	return b.Clean(context.WithoutCancel(ctx))
}

const perftest = "ib_write_bw"

func transferPort(rail int) string { return fmt.Sprint(18515 + rail) }

// transfers returns the command of ib_write_bw for each rail, without the peer.
func (p *pod) transfers() [][]string {
	indexes := p.indexes()
	var out [][]string
	for _, port := range p.ports {
		index := -1
		for g := range plan.All[plan.GID](p.rec.Plan.Ops) {
			for _, t := range g.Targets {
				if g.Device.Name == port.device.Name && g.Device.Port == port.Number && t.Addr.Is4() {
					index = indexes[t.Addr]
				}
			}
		}
		out = append(out, []string{
			perftest, "-d", port.device.Name, "-i", fmt.Sprint(port.Number), "-x", fmt.Sprint(index), "--size=65536", "--iters=100", "--CPU-freq",
		})
	}
	return out
}

// transfer sends by RDMA on each rail.
func (p *pod) transfer(ctx context.Context, k *kernel.Kernel, self verify.Pod, address, token string) []doctor.Finding {
	if _, err := exec.LookPath(perftest); err != nil {
		return []doctor.Finding{cannotTell("", perftest+" is not installed", "the package perftest on both nodes")}
	}
	peer, err := self.Dial(ctx, address, token)
	if err != nil {
		return []doctor.Finding{cannotTell("", err.Error(), "the other node")}
	}
	defer peer.Close()
	var out []doctor.Finding
	for i, args := range p.transfers() {
		if i >= len(peer.Rails) {
			break
		}
		of := p.ports[i].String()
		said, err := inside(ctx, k, append(args, "-p", transferPort(i), peer.Rails[i].Addr.String())...)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("it does not end within %s", transferTime)
		}
		if err != nil {
			out = append(out, problem(of, fmt.Sprintf("%s: %v: %s", strings.Join(args, " "), err, lastLine(said)), aKnownFault))
			continue
		}
		out = append(out, ok(of, "%s transfers to %s", strings.Join(args, " "), peer.Rails[i].Addr))
	}
	return out
}

func lastLine(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// transferTime bounds one program.
const transferTime = 30 * time.Second

// inside runs a program in the namespace of a pod.
func inside(ctx context.Context, k *kernel.Kernel, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // the words are ours
	cmd.Stdout, cmd.Stderr = &out, &out
	err := k.Enter(cmd.Start) // a process has the namespace of the thread that starts it
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), cmp.Or(ctx.Err(), err)
}
