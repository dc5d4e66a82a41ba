// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestRailsOfSeveralMastersGoTogether(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	node.NIC("nic1")
	other := open(t, node.Pod())
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, "nic1", nic)
	do(t, k, ops...)
	theirs := child(t) // of another pod on the same NIC
	do(t, other, plan.Op{Kind: theirs})
	undo(t, k, ops.Teardown())
	if links := pod.IP("-o link"); strings.Count(links, "\n") != 1 {
		t.Errorf("want lo to be left, got\n%s", links)
	}
	if err := other.Check(t.Context(), plan.Op{Kind: theirs}); err != nil {
		t.Error(err)
	}
}

// flooded has dumps that are too large to be kept, as a program of the pod can make them with
// some thousand links that have many alternative names.
type flooded struct{ nlsock.Socket }

func (flooded) Dump(context.Context, nlsock.Request) ([][]byte, error) {
	return nil, nlsock.ErrTooMuch
}

func TestUndoInAPodWithTooManyLinksToList(t *testing.T) {
	t.Parallel()
	s := refusingAbove(t, func(s nlsock.Socket) nlsock.Socket { return flooded{s} })
	s.node.NIC("nic1")
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, "nic1")
	do(t, s.Kernel, ops...)
	s.each(func() error { return s.Undo(t.Context(), ops.Runs()[0]...) }, func(request int, err error) {
		said(t, fmt.Sprint("request ", request), err)
	})
	undo(t, s.Kernel, ops.Teardown())
	if links := s.pod.IP("-o link"); strings.Count(links, "\n") != 1 {
		t.Errorf("want lo to be left, got\n%s", links)
	}
}

// A program of the pod can make many rules that the kernel takes for ours when it deletes one.
func TestAllTwinsOfARuleGo(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	ours := plan.InPod(plan.Rule{From: netip.MustParsePrefix("10.9.0.5/32"), Table: 100, Priority: 32000})
	before := pod.IP("rule")
	for mark := 1; mark <= 9; mark++ {
		pod.IP(fmt.Sprintf("rule add from 10.9.0.5/32 lookup 100 priority 32000 protocol %d fwmark %d", plan.Protocol, mark))
	}
	undo(t, k, ours)
	if now := pod.IP("rule"); now != before {
		t.Errorf("left:\n%s", now)
	}
}

// Before 6.15 the kernel makes links in the host first, and answers EEXIST.
func TestRunMayHaveNamesOfLinksOfTheHost(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	node.IP("link add net1-1 type bridge")
	run := kerneltest.Attachment(kerneltest.Container(t), nic, nic, nic).Runs()[0]
	do(t, k, run...)
	do(t, k, run...)
	if err := k.Check(t.Context(), run...); err != nil {
		t.Error(err)
	}
}

func TestAsManyRailsAsThereCanBe(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	before := pod.IP("-o addr")
	ops := kerneltest.Attachment(kerneltest.Container(t), slices.Repeat([]conf.LinkName{nic}, 32)...)
	for range 2 {
		do(t, k, ops...)
		for _, run := range ops.Runs() {
			if err := k.Check(t.Context(), run...); err != nil {
				t.Errorf("%T: %v", run[0].Kind, err)
			}
		}
	}
	undo(t, k, ops)
	undo(t, k, ops)
	if after := pod.IP("-o addr"); after != before || strings.Contains(pod.IP("rule"), fmt.Sprint(plan.Protocol)) {
		t.Errorf("left behind:\n%s%s", after, pod.IP("rule"))
	}
}
