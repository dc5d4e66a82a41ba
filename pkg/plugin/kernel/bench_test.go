// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// BenchmarkAttachment makes an attachment with one IPv4 address: link and
// alias, nine settings, up, address, two routes, two rules. It also tells the
// microseconds of each operation, and of taking the attachment away.
func BenchmarkAttachment(b *testing.B) {
	_, _, k := machine(b)
	all := kerneltest.Attachment(kerneltest.Container(b), nic)
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

// BenchmarkRails makes an attachment of eight rails, dual stack, and takes it
// away again: operation by operation, and in runs. It tells the microseconds of
// both, and of each run.
func BenchmarkRails(b *testing.B) {
	for _, way := range []struct {
		name string
		cut  func(plan.Ops) []plan.Ops
	}{
		{"one by one", func(ops plan.Ops) []plan.Ops { return slices.Collect(slices.Chunk(ops, 1)) }},
		{"in runs", plan.Ops.Runs},
	} {
		b.Run(way.name, func(b *testing.B) {
			node := kerneltest.NewNode(b)
			var nics []conf.LinkName
			for i := range 8 {
				nics = append(nics, conf.LinkName(fmt.Sprint(nic, i)))
				node.NIC(string(nics[i]))
			}
			k := open(b, node.Pod())
			ops, spent := kerneltest.Rails(kerneltest.Container(b), nics...), map[string]time.Duration{}
			for b.Loop() {
				for _, run := range way.cut(ops) {
					start := time.Now()
					if err := k.Do(b.Context(), run...); err != nil {
						b.Fatal(err)
					}
					spent["do-"+reflect.TypeOf(run[0]).Name()] += time.Since(start)
					spent["do"] += time.Since(start)
				}
				for _, run := range slices.Backward(way.cut(ops.Teardown())) {
					start := time.Now()
					if err := k.Undo(b.Context(), run...); err != nil {
						b.Fatal(err)
					}
					spent["undo-"+reflect.TypeOf(run[0]).Name()] += time.Since(start)
					spent["undo"] += time.Since(start)
				}
			}
			for what, d := range spent {
				b.ReportMetric(float64(d.Microseconds())/float64(b.N), what+"-us")
			}
		})
	}
}

func BenchmarkFacts(b *testing.B) {
	_, _, k := machine(b)
	req := conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: nic}}}}
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
