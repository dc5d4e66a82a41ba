// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// BenchmarkAttachment makes an attachment with one IPv4 address: link and
// alias, nine settings, up, address, two routes, two rules. It also tells the
// microseconds of each operation, and of taking the attachment away.
func BenchmarkAttachment(b *testing.B) {
	_, _, k := machine(b)
	all := kerneltest.Attachment(nic)
	ops := plan.Ops{all[0], all[1], all[2], all[3], all[6], all[7], all[12], all[13]}
	names := []string{"macvlan", "sysctl", "up", "address", "route", "default", "rule", "unreachable"}
	spent, teardown := make([]time.Duration, len(ops)), time.Duration(0)
	for b.Loop() {
		for i, op := range ops {
			start := time.Now()
			do(b, k, op)
			spent[i] += time.Since(start)
		}
		b.StopTimer()
		start := time.Now()
		for _, op := range slices.Backward(ops.Teardown()) {
			if err := k.Undo(b.Context(), op); err != nil {
				b.Fatal(err)
			}
		}
		teardown += time.Since(start)
		b.StartTimer()
	}
	b.ReportMetric(float64(teardown.Microseconds())/float64(b.N), "teardown-us")
	for i, name := range names {
		b.ReportMetric(float64(spent[i].Microseconds())/float64(b.N), name+"-us")
	}
}

func BenchmarkFacts(b *testing.B) {
	_, _, k := machine(b)
	req := conf.Request{IfName: "net1", Parent: conf.Parent{Name: nic}}
	for b.Loop() {
		if _, err := plan.Only(k.Facts(b.Context(), req)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	node := kerneltest.NewNode(b)
	pod := node.Pod()
	for b.Loop() {
		k, err := kernel.Open(pod.Path, fstest.MapFS{})
		if err != nil {
			b.Fatal(err)
		}
		k.Close()
	}
}
