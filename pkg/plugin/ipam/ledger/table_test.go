// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A model is what a table should hold.
type model map[string]string

func (m model) keys() []string { return slices.Sorted(maps.Keys(m)) }

// newTables makes a file with the tables a and b.
func newTables(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	must(t, err)
	must(t, create(f, []string{"a", "b"}, func([]*table) {}))
	return path
}

// onTables runs fn on the tables a and b of a file.
func onTables(path string, m mode, fn func(a, b *table) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return transact(f, m, func(tx *transaction) error { return fn(tx.table("a"), tx.table("b")) })
}

// putPair returns a transaction that sets a key of table a.
func putPair(k, v string) func(a, b *table) error {
	return func(a, _ *table) error {
		a.put([]byte(k), []byte(v))
		return nil
	}
}

// testKey is so long that few fit on a page and trees get deep.
func testKey(i int) string { return fmt.Sprintf("key-%06d%s", i, strings.Repeat(".", 200)) }

// fillTables fills both tables with n keys.
func fillTables(t testing.TB, path string, n int) model {
	t.Helper()
	m := model{}
	err := onTables(path, writeHollow, func(a, b *table) error {
		for i := range n {
			k, v := testKey(i*7919%n), strings.Repeat(fmt.Sprint(i, " "), 1+i%40)
			m[k] = v
			a.put([]byte(k), []byte(v))
			b.put([]byte(k), []byte("b"+v))
		}
		return nil
	})
	must(t, err)
	return m
}

// readTables returns all that the tables hold, by iteration, and looks each key up
// as well.
func readTables(path string) (a, b model, err error) {
	a, b = model{}, model{}
	err = onTables(path, read, func(ta, tb *table) error {
		for _, x := range []struct {
			t *table
			m model
		}{{ta, a}, {tb, b}} {
			for it := range x.t.in(nil) {
				x.m[string(it.Key)] = string(it.Value)
			}
			for k, v := range x.m {
				if got := x.t.get([]byte(k)); string(got) != v {
					return fmt.Errorf("%s of table %s: %q looked up, %q in order", k, x.t.name, got, v)
				}
			}
		}
		return nil
	})
	return a, b, err
}

// Thousands of random steps in hundreds of transactions must leave the same
// content as in a map. Many steps delete during a loop. The tree grows to three
// levels and shrinks to nothing.
func TestTableIsASortedMap(t *testing.T) {
	t.Parallel()
	path, want := newTables(t), model{}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		next := maps.Clone(want)
		fail := r.IntN(8) == 0
		err := onTables(path, writeHollow, func(a, _ *table) error {
			if err := randomSteps(r, a, next, round); err != nil || !fail {
				return err
			}
			return os.ErrInvalid
		})
		switch {
		case !fail && err != nil || fail && !errors.Is(err, os.ErrInvalid):
			t.Fatalf("round %d: %v", round, err)
		case !fail:
			want = next
		}
		got, _, err := readTables(path)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if !maps.Equal(want, got) {
			t.Fatalf("round %d (-want +got):\n%s", round, cmp.Diff(want, got))
		}
	}
}

func randomSteps(r *rand.Rand, a *table, m model, round int) error {
	grow := round%100 < 60
	for range r.IntN(60) {
		k := testKey(r.IntN(900))
		switch _, have := m[k]; {
		case !have && grow:
			m[k] = strings.Repeat(k[4:10], r.IntN(60))
			a.put([]byte(k), []byte(m[k]))
		case have && (!grow || r.IntN(4) == 0):
			delete(m, k)
			a.del([]byte(k))
		default:
			if err := compareFrom(a, m, k, 3); err != nil {
				return err
			}
		}
	}
	if grow {
		return nil
	}
	// Take away a stretch while it is iterated over, so that whole pages get
	// empty under the cursor.
	from, n := testKey(r.IntN(900)), r.IntN(150)
	for it := range a.ring([]byte(from)) {
		if n--; n < 0 || string(it.Key) < from {
			break
		}
		delete(m, string(it.Key))
		a.del(it.Key)
	}
	return compareFrom(a, m, from, 5)
}

// compareFrom compares the next n items from a key on.
func compareFrom(a *table, m model, from string, n int) error {
	keys := m.keys()
	i, _ := slices.BinarySearch(keys, from)
	var want, got []string
	for _, k := range keys[i:min(i+n, len(keys))] {
		want = append(want, k+"="+m[k])
	}
	for it := range a.ring([]byte(from)) {
		if len(got) == n || string(it.Key) < from {
			break
		}
		got = append(got, string(it.Key)+"="+string(it.Value))
	}
	if !slices.Equal(want, got) {
		return fmt.Errorf("from %s: want %q, got %q", from, want, got)
	}
	if it := a.ceil([]byte(from)); len(want) > 0 && string(it.Key)+"="+string(it.Value) != want[0] {
		return fmt.Errorf("at or after %s: want %s, got %s", from, want[0], it.Key)
	}
	return nil
}

func TestPrefixesAndRingsEndWhereTheyShould(t *testing.T) {
	t.Parallel()
	path := newTables(t)
	err := onTables(path, write, func(a, _ *table) error {
		for _, k := range []string{"a", "b1", "b2", "b\xff", "c", "\xff\xff", "\xff\xff1"} {
			a.put([]byte(k), nil)
		}
		return nil
	})
	must(t, err)
	for _, c := range []struct {
		name  string
		items func(a *table) iter.Seq[item]
		want  []string
	}{
		{"prefix", func(a *table) iter.Seq[item] { return a.in([]byte("b")) }, []string{"b1", "b2", "b\xff"}},
		{"prefix of highest bytes", func(a *table) iter.Seq[item] { return a.in([]byte("\xff\xff")) }, []string{"\xff\xff", "\xff\xff1"}},
		{"prefix of nothing", func(a *table) iter.Seq[item] { return a.in([]byte("d")) }, nil},
		{"ring", func(a *table) iter.Seq[item] { return a.ring([]byte("c")) }, []string{"c", "\xff\xff", "\xff\xff1", "a", "b1", "b2", "b\xff"}},
		{"ring behind all", func(a *table) iter.Seq[item] { return a.ring([]byte("\xff\xff2")) }, []string{"a", "b1", "b2", "b\xff", "c", "\xff\xff", "\xff\xff1"}},
	} {
		err := onTables(path, read, func(a, _ *table) error {
			var got []string
			for it := range c.items(a) {
				got = append(got, string(it.Key))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
			return nil
		})
		must(t, err)
	}
}

func TestModeSaysWhatBecomesOfATransaction(t *testing.T) {
	t.Parallel()
	path := newTables(t)
	must(t, onTables(path, write, putPair("k", "1")))
	must(t, onTables(path, forget, putPair("k", "2")))
	if err := onTables(path, read, putPair("k", "3")); err == nil {
		t.Error("a transaction for reading has written")
	}
	if a, _, err := readTables(path); err != nil || a["k"] != "1" {
		t.Errorf("got %q, %v; want 1", a["k"], err)
	}
}

func TestTransactionThatChangesNothingWritesNothing(t *testing.T) {
	t.Parallel()
	path := newTables(t)
	fillTables(t, path, 500)
	before, err := os.ReadFile(path)
	must(t, err)
	must(t, onTables(path, write, func(a, _ *table) error { a.ceil(nil); return nil }))
	after, err := os.ReadFile(path)
	if err != nil || string(before) != string(after) {
		t.Errorf("the file has changed (%v)", err)
	}
}

func TestCopyOfAHollowFileIsSolid(t *testing.T) {
	t.Parallel()
	path := newTables(t)
	want := fillTables(t, path, 3600)
	err := onTables(path, writeHollow, func(a, b *table) error {
		for k := range want {
			if k[9] == '7' {
				continue
			}
			a.del([]byte(k))
			b.del([]byte(k))
			delete(want, k)
		}
		return nil
	})
	must(t, err)
	nothing := func(_, _ *table) error { return nil }
	if err := onTables(path, write, nothing); !errors.Is(err, errHollow) {
		t.Fatalf("got %v, want %v", err, errHollow)
	}
	solid := filepath.Join(t.TempDir(), "copy")
	to, err := os.Create(solid)
	must(t, err)
	from, err := os.Open(path)
	must(t, err)
	err = transact(from, read, func(tx *transaction) error {
		for _, name := range []string{"a", "b"} {
			tx.table(name)
		}
		return tx.copy(to)
	})
	must(t, err)
	if err := onTables(solid, write, nothing); err != nil {
		t.Error(err)
	}
	a, b, err := readTables(solid)
	if diff := cmp.Diff(want, a); err != nil || diff != "" || len(b) != len(a) {
		t.Errorf("%v, %d and %d items (-want +got):\n%s", err, len(a), len(b), diff)
	}
	old, _ := os.Stat(path)
	now, _ := os.Stat(solid)
	if now.Size()*4 > old.Size() {
		t.Errorf("the copy has %d bytes, the original %d", now.Size(), old.Size())
	}
}
