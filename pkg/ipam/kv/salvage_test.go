// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

import (
	"maps"
	"os"
	"testing"
)

// salvaged returns what Salvage finds in the tables of the samples.
func salvaged(file []byte) (a, b model) {
	a, b = model{}, model{}
	Salvage(file, []string{"a", "b"}, func(name string, it Item) {
		if name == "a" {
			a[string(it.Key)] = string(it.Value)
		} else {
			b[string(it.Key)] = string(it.Value)
		}
	})
	return a, b
}

func TestEverythingIsFoundWithoutMetaAndBranchPages(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 40, 300} { // inline, a few leaves, a tree
		path := create(t)
		put(t, path, n)
		a, b, err := read(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for id := range len(file) / pageSize {
			if p := file[id*pageSize:][:pageSize]; flags(p) != leafFlag {
				clear(p)
			}
		}
		gotA, gotB := salvaged(file)
		for k, v := range a {
			if gotA[k] != v {
				t.Errorf("%d keys: %s of a: got %q, want %q", n, k, gotA[k], v)
			}
		}
		for k, v := range b {
			if gotB[k] != v {
				t.Errorf("%d keys: %s of b: got %q, want %q", n, k, gotB[k], v)
			}
		}
	}
}

// FuzzSalvage damages a file at will: nothing is found in it that was never
// there, and nothing crashes.
func FuzzSalvage(f *testing.F) {
	file, _, _ := sample(f, 100)
	everA, everB := salvaged(file)
	f.Add(0, []byte{0xff})
	f.Add(2*pageSize+8, []byte{2, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(3*pageSize+10, []byte{0xff, 0xff})
	f.Add(len(file)/2, []byte(nil))
	f.Fuzz(func(t *testing.T, at int, with []byte) {
		damaged := append([]byte(nil), file...)
		if at < 0 || at > len(damaged) {
			return
		}
		if len(with) == 0 {
			damaged = damaged[:at]
		}
		copy(damaged[at:], with)
		a, b := salvaged(damaged)
		maps.DeleteFunc(a, func(k, v string) bool { return everA[k] == v })
		maps.DeleteFunc(b, func(k, v string) bool { return everB[k] == v })
		if len(a)+len(b) > 0 {
			t.Errorf("found %v in a and %v in b", a, b)
		}
	})
}
