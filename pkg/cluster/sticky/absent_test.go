// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// pods is a cluster with Ready nodes and the pods that are bound to them.
type pods struct {
	*cluster
	on     map[nodefile.Key]string // by pod, without interface
	sick   map[string]bool
	err    error
	asking func() // called when it is asked about a pod
	asked  []string
}

func newPods(nodes ...int) *pods {
	return &pods{cluster: newCluster(nodes...), on: map[nodefile.Key]string{}, sick: map[string]bool{}, asking: func() {}}
}

func (p *pods) Ready(_ context.Context, node string) (bool, error) {
	_, there := p.nodes[node]
	return there && !p.sick[node], p.err
}

func (p *pods) Runs(_ context.Context, namespace, pod, node string) (bool, error) {
	p.asking()
	p.asked = append(p.asked, pod)
	return p.on[nodefile.Key{Namespace: namespace, Pod: pod}] == node, p.err
}

func (p *pods) bind(k nodefile.Key, node int) {
	p.on[nodefile.Key{Namespace: k.Namespace, Pod: k.Pod}] = holder(node).NodeName
}

// look is one look at all leases with a holder.
func (p *pods) look(t *testing.T, a sticky.Absences, store *stickytest.Mem, now time.Duration) (sticky.Absences, []string) {
	t.Helper()
	var held []sticky.Lease
	for _, l := range store.Snapshot() {
		if l.Spec.Holder != (block.Owner{}) && !p.sick[l.Spec.Holder.NodeName] {
			held = append(held, l)
		}
	}
	next, due, err := a.Look(now, held, func(l sticky.Lease) (bool, error) {
		return p.Runs(t.Context(), l.Spec.Namespace, l.Spec.Pod, l.Spec.Holder.NodeName)
	})
	if !errors.Is(err, p.err) {
		t.Fatal(err)
	}
	var names []string
	for _, l := range due {
		names = append(names, l.Name)
	}
	return next, names
}

func (p *pods) free(t *testing.T, store sticky.Store, l sticky.Lease) bool {
	t.Helper()
	done, err := sticky.Free(t.Context(), store, p, day().Add(time.Hour), l)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// TestALeaseOfAPodThatItsHolderDoesNotRunIsFreed: node 1 was taken over. It holds the
// leases of pods that run on node 2 or nowhere, and writes them again and again.
func TestALeaseOfAPodThatItsHolderDoesNotRunIsFreed(t *testing.T) {
	t.Parallel()
	store, s, p := stickytest.NewMem(), slots(t, 4), newPods(1, 2)
	honest := mustTake(t, claimer(store, 1), s, pod(0))
	elsewhere := mustTake(t, claimer(store, 1), s, pod(1))
	kept := mustTake(t, claimer(store, 1), s, pod(2))
	kept.Spec.Keep = true // that is about the pod
	store.Restore([]sticky.Lease{honest, elsewhere, kept})
	p.bind(pod(0), 1)
	p.bind(pod(1), 2)

	var a sticky.Absences
	for _, at := range []time.Duration{0, 30 * minute, time.Hour - minute} {
		var due []string
		if a, due = p.look(t, a, store, at); len(due) > 0 {
			t.Errorf("after %v due: %v", at, due)
		}
		for _, l := range []sticky.Lease{elsewhere, kept} {
			if _, err := claimer(store, 1).Affirm(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
	}
	if since, absent := a.Since(elsewhere); !absent || since != 0 {
		t.Errorf("absent %t since %v", absent, since)
	}
	if _, absent := a.Since(honest); absent {
		t.Error("a pod that runs is absent")
	}
	_, due := p.look(t, a, store, time.Hour)
	if want := map[string]bool{elsewhere.Name: true, kept.Name: true}; len(due) != 2 || !want[due[0]] || !want[due[1]] {
		t.Fatalf("due: %v", due)
	}
	for _, name := range due {
		if l := must(t, store, name); !p.free(t, store, l) || p.free(t, store, l) {
			t.Errorf("%s: not freed, or twice", name)
		}
		if now := must(t, store, name); now.Spec.Holder != (block.Owner{}) || !now.Spec.Written.Equal(day().Add(time.Hour).Truncate(time.Microsecond)) {
			t.Errorf("it is %+v", now)
		}
	}
	if got := mustTake(t, claimer(store, 2), s, pod(1)); got.Name != elsewhere.Name {
		t.Errorf("node 2 took %s", got.Name)
	}
	if now := must(t, store, honest.Name); now != honest {
		t.Errorf("it is %+v", now)
	}
}

func TestTheHourBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, p *pods, store *stickytest.Mem, s block.Slots, l sticky.Lease){
		"when the pod was bound":      func(_ *testing.T, p *pods, _ *stickytest.Mem, _ block.Slots, _ sticky.Lease) { p.bind(pod(0), 1) },
		"when the node was not ready": func(_ *testing.T, p *pods, _ *stickytest.Mem, _ block.Slots, _ sticky.Lease) { p.sick["node-1"] = true },
		"when another node is the holder": func(t *testing.T, _ *pods, store *stickytest.Mem, s block.Slots, l sticky.Lease) {
			mustRelease(t, claimer(store, 1), l)
			mustTake(t, claimer(store, 2), s, pod(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, s, p := stickytest.NewMem(), slots(t, 4), newPods(1, 2)
			l := mustTake(t, claimer(store, 1), s, pod(0))
			a, _ := p.look(t, sticky.Absences{}, store, 0)
			change(t, p, store, s, l)
			a, due := p.look(t, a, store, time.Hour)
			if len(due) > 0 {
				t.Errorf("due: %v", due)
			}
			clear(p.on)
			clear(p.sick)
			a, due = p.look(t, a, store, time.Hour+minute)
			if len(due) > 0 {
				t.Errorf("due: %v", due)
			}
			if _, due = p.look(t, a, store, 2*time.Hour+minute); len(due) != 1 {
				t.Errorf("due: %v", due)
			}
		})
	}
}

func TestALeaseIsNotFreedIfTheLastQuestionSaysNo(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, p *pods, store *stickytest.Mem, s block.Slots, l sticky.Lease){
		"the pod is bound":      func(_ *testing.T, p *pods, _ *stickytest.Mem, _ block.Slots, _ sticky.Lease) { p.bind(pod(0), 1) },
		"the node is not ready": func(_ *testing.T, p *pods, _ *stickytest.Mem, _ block.Slots, _ sticky.Lease) { p.sick["node-1"] = true },
		"the node is gone": func(_ *testing.T, p *pods, _ *stickytest.Mem, _ block.Slots, _ sticky.Lease) {
			delete(p.nodes, "node-1")
		},
		"the lease was released": func(t *testing.T, _ *pods, store *stickytest.Mem, _ block.Slots, l sticky.Lease) {
			mustRelease(t, claimer(store, 1), l)
		},
		"the lease was deleted": func(_ *testing.T, _ *pods, store *stickytest.Mem, _ block.Slots, _ sticky.Lease) { store.Restore(nil) },
		"the lease is another's": func(t *testing.T, _ *pods, store *stickytest.Mem, s block.Slots, l sticky.Lease) {
			mustRelease(t, claimer(store, 1), l)
			mustTake(t, claimer(store, 2), s, pod(0))
		},
		"the pod is bound and gets its addresses while the question is answered": func(t *testing.T, p *pods, store *stickytest.Mem, s block.Slots, _ sticky.Lease) {
			p.asking = func() {
				p.asking = func() { p.bind(pod(0), 1) } // the answer to the first question is older
				mustTake(t, claimer(store, 1), s, pod(0))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, s, p := stickytest.NewMem(), slots(t, 4), newPods(1, 2)
			l := mustTake(t, claimer(store, 1), s, pod(0))
			change(t, p, store, s, l)
			before := store.Snapshot()
			if p.free(t, store, l) {
				t.Error("freed")
			}
			if len(before) == 1 && store.Snapshot()[0].Spec.Holder != before[0].Spec.Holder {
				t.Errorf("it is %+v", store.Snapshot())
			}
		})
	}
}

func TestWithoutAnAnswerNoLeaseIsReportedAsFreed(t *testing.T) {
	t.Parallel()
	store, s, p := stickytest.NewMem(), slots(t, 4), newPods(1)
	l := mustTake(t, claimer(store, 1), s, pod(0))
	a, _ := p.look(t, sticky.Absences{}, store, 0)
	p.err = block.ErrUnknown
	if done, err := sticky.Free(t.Context(), store, p, day(), l); done || !errors.Is(err, block.ErrUnknown) || must(t, store, l.Name) != l {
		t.Errorf("%t, error %v", done, err)
	}
	if a, due := p.look(t, a, store, time.Hour); len(due) > 0 {
		t.Errorf("due: %v, %+v", due, a)
	}
	p.err = nil
	if _, due := p.look(t, a, store, 2*time.Hour); len(due) != 1 {
		t.Errorf("what was known is forgotten: due %v", due)
	}
	store.Fault = func(blocktest.Op, string) blocktest.Fault { return blocktest.Lost }
	if done, err := sticky.Free(t.Context(), store, p, day(), l); done || !errors.Is(err, block.ErrUnknown) {
		t.Errorf("%t, error %v", done, err)
	}
}

// TestALookAsksABoundedNumberOfQuestions has one node that holds very many leases. All
// are asked about in turn, and none of them keeps others from being asked about.
func TestALookAsksABoundedNumberOfQuestions(t *testing.T) {
	t.Parallel()
	store, p := stickytest.NewMem(), newPods(1)
	big := slots(t, 300)
	const all = 1100
	for i := range all {
		put(t, store, big, 64+i, pod(i), holder(1))
	}
	var a sticky.Absences
	times := map[string]int{}
	for range 11 {
		p.asked = nil
		if a, _ = p.look(t, a, store, 0); len(p.asked) != 500 {
			t.Fatalf("%d questions", len(p.asked))
		}
		for _, name := range p.asked {
			times[name]++
		}
	}
	want := map[string]int{}
	for i := range all {
		want[pod(i).Pod] = 5
	}
	if diff := cmp.Diff(want, times); diff != "" {
		t.Errorf("how often each was asked about (-want +got)\n%s", diff)
	}
}
