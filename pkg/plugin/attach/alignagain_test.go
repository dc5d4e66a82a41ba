// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// lose removes the addresses of an interface of c1 that are in a range.
func (w *world) lose(link, within string) {
	w.t.Helper()
	rec, err := w.node().Records.Load(c1)
	must(w.t, err)
	for a := range plan.All[plan.Address](rec.Plan.Ops) {
		if string(a.Link) == link && netip.MustParsePrefix(within).Contains(a.Prefix.Addr()) {
			w.pod.IP("addr del " + a.Prefix.String() + " dev " + link)
			w.hca.tables.undone(podPath("c1"), plan.Op{Kind: a})
		}
	}
}

// history returns a node on which c1 has been attached behind another pod, which is gone.
// So lower indexes than those of c1 are free.
func history(t *testing.T, index string, width int) *world {
	w := promising(t, index, newGIDTables(64, width, 2, 0, 1))
	for _, id := range []string{"c0", "c1"} {
		w.mustCome(id)
	}
	w.mustLeave("c0")
	return w
}

func TestRepairGivesAnAddressTheIndexThatADDFound(t *testing.T) {
	t.Parallel()
	for _, index := range []string{`"any"`, `"equal"`} {
		for name, lost := range map[string]struct{ link, within string }{
			"IPv4 address of the first rail": {"net1", "0.0.0.0/0"},
			"IPv6 address of the first rail": {"net1", "fd00::/16"},
			"IPv4 address of another rail":   {"net1-2", "0.0.0.0/0"},
		} {
			for width := 1; width <= 2; width++ {
				t.Run(fmt.Sprintf("%s, %s, %d entries each", index, name, width), func(t *testing.T) {
					t.Parallel()
					w := history(t, index, width)
					before, pod := w.indexes("c1"), w.fake.String()
					w.lose(lost.link, lost.within)
					if done, err := w.repairs().Repair(ctx, c1); err != nil || !slices.ContainsFunc(done, aligns) {
						t.Fatalf("did %v, %v, want an alignment", done.Commands("pod"), err)
					}
					if diff := cmp.Diff(before, w.indexes("c1")); diff != "" {
						t.Errorf("indexes (-before +after):\n%s", diff)
					}
					if diff := cmp.Diff(lines(pod), lines(w.fake.String())); diff != "" {
						t.Errorf("the pod after Repair (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

// TestRepairTakesAnIndexBackFromAFiller has pods come while the address is lost.
func TestRepairTakesAnIndexBackFromAFiller(t *testing.T) {
	t.Parallel()
	w := history(t, `"equal"`, 1)
	before := w.indexes("c1")
	w.lose("net1", "0.0.0.0/0")
	w.comeEqual("c2", "c3")
	if e := w.hca.tables.tables["ens1"].entries[before[0][0]]; !plan.FillerRange.Contains(e.gid) {
		t.Fatalf("the index has %v, want a filler", e)
	}
	if _, err := w.repairs().Repair(ctx, c1); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, w.indexes("c1")); diff != "" {
		t.Errorf("indexes (-before +after):\n%s", diff)
	}
}

func aligns(op plan.Op) bool { _, ok := op.Kind.(plan.Align); return ok }

// TestRepairSetsAnAddressAlsoIfItsIndexIsTaken has an entry of another program at the
// index, or a table without free entries. CHECK reports the other index then.
func TestRepairSetsAnAddressAlsoIfItsIndexIsTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost string
		take int // which address of the pod has the index that is taken
		all  bool
	}{
		"one entry":                  {"0.0.0.0/0", 0, false},
		"a full table":               {"0.0.0.0/0", 0, true},
		"one entry of two addresses": {"fd00::/16", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := history(t, `"equal"`, 1)
			at, pod, fillers := w.indexes("c1")[0][c.take], w.fake.String(), w.hca.tables.fillers()
			w.lose("net1", c.lost)
			w.lose("net1", "0.0.0.0/0")
			entries := w.hca.tables.tables["ens1"].entries
			for i := range entries {
				if i == at || c.all && i != 0 && entries[i] == (gidEntry{}) {
					entries[i] = gidEntry{of: holder{link: "other"}, gid: netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}), kind: gidtable.RoCEv2}
				}
			}
			if _, err := w.repairs().Repair(ctx, c1); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(lines(pod), lines(w.fake.String())); diff != "" {
				t.Errorf("the pod after Repair (-want +got):\n%s", diff)
			}
			if n := w.hca.tables.fillers(); n != fillers {
				t.Errorf("%d entries of fillers, %d before", n, fillers)
			}
		})
	}
}

// TestARepairThatIsStoppedLeavesNoAddressOff is stopped when the alignment has taken off the
// address that the repair has set.
func TestARepairThatIsStoppedLeavesNoAddressOff(t *testing.T) {
	t.Parallel()
	w := history(t, `"equal"`, 1)
	pod := w.fake.String()
	w.lose("net1", "0.0.0.0/0")
	stopped, stop := context.WithCancel(t.Context())
	defer stop()
	set, off := false, false
	w.before = func(_ plan.Op, undo bool) error {
		if off {
			stop()
		}
		set, off = set || !undo, set && undo
		return nil
	}
	_, err := w.repairs().Repair(stopped, c1)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want that it was stopped", err)
	}
	others := func(line string) bool { return !strings.Contains(line, "addr ") }
	if diff := cmp.Diff(slices.DeleteFunc(lines(pod), others), slices.DeleteFunc(lines(w.fake.String()), others)); diff != "" {
		t.Errorf("the addresses after Repair (-want +got):\n%s", diff)
	}
}
