// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// pool has eight rails, and so many blocks of four slots that pods keep.
func pool(t *testing.T, blocks int, more ...string) block.Pool {
	t.Helper()
	p := block.Pool{Name: "gpu"}
	text := fmt.Sprintf(`{"template": {"count": 8, "subnets": [{"subnet": "10.{rail}.0.0/20"}]}, "blockSize": 4, "sticky": {"ttl": "24h", "slots": "64-%d"}%s}`,
		64+4*blocks-1, strings.Join(more, ""))
	if err := json.Unmarshal([]byte(text), &p.Spec); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

func slots(t *testing.T, blocks int, more ...string) block.Slots {
	t.Helper()
	s, err := pool(t, blocks, more...).Slots("")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// day is a clock that stands.
func day() time.Time { return time.Date(2026, 1, 2, 12, 0, 0, 345678901, time.UTC) }

// claimer is that of node i.
func claimer(store sticky.Store, i int) sticky.Claimer {
	return sticky.Claimer{Store: store, Node: block.Node{Name: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("%032x", i)}, Now: day}
}

func holder(i int) block.Owner {
	return block.Owner{NodeName: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("%032x", i)}
}

func pod(i int) nodefile.Key {
	return nodefile.Key{Namespace: "default", Pod: fmt.Sprintf("db-%d", i), Interface: "net1"}
}

// mustTake takes a lease and looks whether the store says the same.
func mustTake(t *testing.T, d sticky.Claimer, s block.Slots, k nodefile.Key) sticky.Lease {
	t.Helper()
	got, err := d.Take(t.Context(), s, k)
	if err != nil {
		t.Fatalf("%s takes a slot for %v: %v", d.Node.Name, k, err)
	}
	there := must(t, d.Store, got.Name)
	if there != got || got.Spec.Holder != (block.Owner{NodeName: d.Node.Name, MachineID: d.Node.MachineID}) || got.Spec.Key() != k {
		t.Fatalf("%s got %+v for %v; the store has %+v", d.Node.Name, got, k, there)
	}
	return got
}

func mustRelease(t *testing.T, d sticky.Claimer, l sticky.Lease) {
	t.Helper()
	if err := d.Release(t.Context(), l); err != nil {
		t.Fatalf("%s releases %s: %v", d.Node.Name, l.Name, err)
	}
}

// must looks at a lease without a call that could go wrong.
func must(t *testing.T, s sticky.Store, name string) sticky.Lease {
	t.Helper()
	for _, l := range s.(*stickytest.Mem).Snapshot() {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("there is no lease %s", name)
	return sticky.Lease{}
}

// wantHeld wants a lease that that node holds to be the error.
func wantHeld(t *testing.T, err error, by int) {
	t.Helper()
	var held *block.HeldError
	if !errors.As(err, &held) || held.Owner != holder(by) || held.Name == "" || !strings.Contains(err.Error(), held.Name) {
		t.Errorf("got error %v, want that node %d holds it", err, by)
	}
}

// put makes a lease by hand.
func put(t *testing.T, s sticky.Store, slots block.Slots, slot int, k nodefile.Key, h block.Owner) sticky.Lease {
	t.Helper()
	l, err := s.Create(t.Context(), sticky.Lease{Name: slots.Name(slot), Spec: sticky.Spec{
		Pool: slots.Pool, Rack: slots.Rack, Slot: slot, Namespace: k.Namespace, Pod: k.Pod, Interface: k.Interface, Holder: h, Written: day(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// failNth makes call number n of a store go wrong, from 0, and no other.
func failNth(m *stickytest.Mem, n int, f blocktest.Fault) {
	i := 0
	m.Fault = func(blocktest.Op, string) blocktest.Fault {
		if i++; i == n+1 {
			return f
		}
		return blocktest.None
	}
}
