// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"path"
	"strings"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
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
	rails, err := members[0].Rails(ctx)
	var answers []report.Answer
	if err == nil {
		answers, err = members[0].Test(ctx, rails, l.Addr().String(), key, verify.Tests{})
	}
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
func (b Bench) transfers(ctx context.Context, v view, p nic.Port, rail int) {
	if v.system.Exclusive || ctx.Err() != nil {
		return
	}
	s := &scene{Bench: b, v: v, port: p, rail: rail}
	found := s.transfers(ctx)
	if err := s.end(context.WithoutCancel(ctx)); err != nil {
		found = append(found, problem(p.String(), err.Error(), aKnownFault))
	}
	b.say("pod-rdma", found...)
}

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
	var out []report.Finding
	for _, t := range first.transfers() {
		f := s.Node.ofNIC(s.port, first.send(ctx, in[0], t, second.addr(s.port)))
		out = append(out, f)
		if f.Verdict != report.OK {
			break // the other programs would take as long to fail
		}
	}
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
	said, err := inside(ctx, k, "env", "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET", "NCCL_SOCKET_IFNAME=net1",
		"NCCL_IB_HCA=="+device, "NCCL_IB_GID_INDEX="+p.commandIndex(p.ports[0]), program, "-b", "8", "-e", "1M", "-g", "1")
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
