// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

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

// create makes a file with the tables a and b.
func create(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Create(f, []string{"a", "b"}, func([]*Table) {}); err != nil {
		t.Fatal(err)
	}
	return path
}

// transact runs fn on the tables a and b of a file.
func transact(path string, m Mode, fn func(a, b *Table) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return Transact(f, m, func(tx *Tx) error { return fn(tx.Table("a"), tx.Table("b")) })
}

// set returns a transaction that sets a key of table a.
func set(k, v string) func(a, b *Table) error {
	return func(a, _ *Table) error {
		a.Put([]byte(k), []byte(v))
		return nil
	}
}

// key is so long that few fit on a page and trees get deep.
func key(i int) string { return fmt.Sprintf("key-%06d%s", i, strings.Repeat(".", 200)) }

// put fills both tables with n keys.
func put(t testing.TB, path string, n int) model {
	t.Helper()
	m := model{}
	err := transact(path, WriteHollow, func(a, b *Table) error {
		for i := range n {
			k, v := key(i*7919%n), strings.Repeat(fmt.Sprint(i, " "), 1+i%40)
			m[k] = v
			a.Put([]byte(k), []byte(v))
			b.Put([]byte(k), []byte("b"+v))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// read returns all that the tables hold, by iteration, and looks each key up
// as well.
func read(path string) (a, b model, err error) {
	a, b = model{}, model{}
	err = transact(path, Read, func(ta, tb *Table) error {
		for _, x := range []struct {
			t *Table
			m model
		}{{ta, a}, {tb, b}} {
			for it := range x.t.In(nil) {
				x.m[string(it.Key)] = string(it.Value)
			}
			for k, v := range x.m {
				if got := x.t.Get([]byte(k)); string(got) != v {
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
	path, want := create(t), model{}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		next := maps.Clone(want)
		fail := r.IntN(8) == 0
		err := transact(path, WriteHollow, func(a, _ *Table) error {
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
		got, _, err := read(path)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if !maps.Equal(want, got) {
			t.Fatalf("round %d (-want +got):\n%s", round, cmp.Diff(want, got))
		}
	}
}

func randomSteps(r *rand.Rand, a *Table, m model, round int) error {
	grow := round%100 < 60
	for range r.IntN(60) {
		k := key(r.IntN(900))
		switch _, have := m[k]; {
		case !have && grow:
			m[k] = strings.Repeat(k[4:10], r.IntN(60))
			a.Put([]byte(k), []byte(m[k]))
		case have && (!grow || r.IntN(4) == 0):
			delete(m, k)
			a.Del([]byte(k))
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
	from, n := key(r.IntN(900)), r.IntN(150)
	for it := range a.Ring([]byte(from)) {
		if n--; n < 0 || string(it.Key) < from {
			break
		}
		delete(m, string(it.Key))
		a.Del(it.Key)
	}
	return compareFrom(a, m, from, 5)
}

// compareFrom compares the next n items from a key on.
func compareFrom(a *Table, m model, from string, n int) error {
	keys := m.keys()
	i, _ := slices.BinarySearch(keys, from)
	var want, got []string
	for _, k := range keys[i:min(i+n, len(keys))] {
		want = append(want, k+"="+m[k])
	}
	for it := range a.Ring([]byte(from)) {
		if len(got) == n || string(it.Key) < from {
			break
		}
		got = append(got, string(it.Key)+"="+string(it.Value))
	}
	if !slices.Equal(want, got) {
		return fmt.Errorf("from %s: want %q, got %q", from, want, got)
	}
	if it := a.Ceil([]byte(from)); len(want) > 0 && string(it.Key)+"="+string(it.Value) != want[0] {
		return fmt.Errorf("at or after %s: want %s, got %s", from, want[0], it.Key)
	}
	return nil
}

func TestPrefixesAndRingsEndWhereTheyShould(t *testing.T) {
	t.Parallel()
	path := create(t)
	err := transact(path, Write, func(a, _ *Table) error {
		for _, k := range []string{"a", "b1", "b2", "b\xff", "c", "\xff\xff", "\xff\xff1"} {
			a.Put([]byte(k), nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		items func(a *Table) iter.Seq[Item]
		want  []string
	}{
		{"prefix", func(a *Table) iter.Seq[Item] { return a.In([]byte("b")) }, []string{"b1", "b2", "b\xff"}},
		{"prefix of highest bytes", func(a *Table) iter.Seq[Item] { return a.In([]byte("\xff\xff")) }, []string{"\xff\xff", "\xff\xff1"}},
		{"prefix of nothing", func(a *Table) iter.Seq[Item] { return a.In([]byte("d")) }, nil},
		{"ring", func(a *Table) iter.Seq[Item] { return a.Ring([]byte("c")) }, []string{"c", "\xff\xff", "\xff\xff1", "a", "b1", "b2", "b\xff"}},
		{"ring behind all", func(a *Table) iter.Seq[Item] { return a.Ring([]byte("\xff\xff2")) }, []string{"a", "b1", "b2", "b\xff", "c", "\xff\xff", "\xff\xff1"}},
	} {
		err := transact(path, Read, func(a, _ *Table) error {
			var got []string
			for it := range c.items(a) {
				got = append(got, string(it.Key))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestModeSaysWhatBecomesOfATransaction(t *testing.T) {
	t.Parallel()
	path := create(t)
	if err := transact(path, Write, set("k", "1")); err != nil {
		t.Fatal(err)
	}
	if err := transact(path, Forget, set("k", "2")); err != nil {
		t.Fatal(err)
	}
	if err := transact(path, Read, set("k", "3")); err == nil {
		t.Error("a transaction for reading has written")
	}
	if a, _, err := read(path); err != nil || a["k"] != "1" {
		t.Errorf("got %q, %v; want 1", a["k"], err)
	}
}

func TestTransactionThatChangesNothingWritesNothing(t *testing.T) {
	t.Parallel()
	path := create(t)
	put(t, path, 500)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := transact(path, Write, func(a, _ *Table) error { a.Ceil(nil); return nil }); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(before) != string(after) {
		t.Errorf("the file has changed (%v)", err)
	}
}

func TestCopyOfAHollowFileIsSolid(t *testing.T) {
	t.Parallel()
	path := create(t)
	want := put(t, path, 3600)
	err := transact(path, WriteHollow, func(a, b *Table) error {
		for k := range want {
			if k[9] == '7' {
				continue
			}
			a.Del([]byte(k))
			b.Del([]byte(k))
			delete(want, k)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(_, _ *Table) error { return nil }
	if err := transact(path, Write, nothing); !errors.Is(err, ErrHollow) {
		t.Fatalf("got %v, want %v", err, ErrHollow)
	}
	solid := filepath.Join(t.TempDir(), "copy")
	to, err := os.Create(solid)
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	err = Transact(from, Read, func(tx *Tx) error {
		for _, name := range []string{"a", "b"} {
			tx.Table(name)
		}
		return tx.Copy(to)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := transact(solid, Write, nothing); err != nil {
		t.Error(err)
	}
	a, b, err := read(solid)
	if diff := cmp.Diff(want, a); err != nil || diff != "" || len(b) != len(a) {
		t.Errorf("%v, %d and %d items (-want +got):\n%s", err, len(a), len(b), diff)
	}
	old, _ := os.Stat(path)
	now, _ := os.Stat(solid)
	if now.Size()*4 > old.Size() {
		t.Errorf("the copy has %d bytes, the original %d", now.Size(), old.Size())
	}
}
