// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample is a file with n keys in each table and with free pages in it, and what
// its tables hold. With 300 keys the trees have three levels.
func sample(t testing.TB, n int) (file []byte, a, b model) {
	t.Helper()
	path := create(t)
	put(t, path, n)
	for range 3 {
		err := transact(path, WriteHollow, func(a, b *Table) error {
			it, err := a.Ceil([]byte("key-00001"))
			if err != nil {
				return err
			}
			return errors.Join(a.Del(it.Key), b.Del(it.Key))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return file, a, b
}

// checkDamaged fails the test unless a damaged file is found to be, or holds
// what it held, also after some writes.
func checkDamaged(t *testing.T, file []byte, a, b model, what string, args ...any) (found bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(path) }()
	a, b = maps.Clone(a), maps.Clone(b)
	for writes := range 4 {
		gotA, gotB, err := read(path)
		switch {
		case errors.Is(err, ErrDamaged):
			found = true
		case err != nil:
			t.Errorf(what+": %d writes: got %v, want ErrDamaged", append(args, writes, err)...)
		case !maps.Equal(a, gotA) || !maps.Equal(b, gotB):
			t.Errorf(what+": %d writes: other data is read (-want +got):\n%s",
				append(args, writes, cmp.Diff([]model{a, b}, []model{gotA, gotB}))...)
		}
		k := key(writes * 37)
		err = transact(path, WriteHollow, func(ta, tb *Table) error {
			return errors.Join(ta.Put([]byte(k), []byte("new")), tb.Put([]byte(k), []byte("new")))
		})
		switch {
		case errors.Is(err, ErrDamaged):
			return true
		case err != nil:
			t.Errorf(what+": got %v from a write, want nil or ErrDamaged", append(args, err)...)
		}
		a[k], b[k] = "new", "new"
	}
	return found
}

// Every bit of what says where things are, and some of every page, is turned.
func TestAFlippedBitIsFoundOrDoesNotMatter(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t, 100)
	r := rand.New(rand.NewPCG(3, 4))
	flips, found := 0, 0
	every := 1
	if raceDetector() {
		every = 10 // it slows this down as much, and finds nothing in it
	}
	flip := func(bit int) {
		if flips++; flips%every != 0 {
			return
		}
		file[bit/8] ^= 1 << (bit % 8)
		if checkDamaged(t, file, a, b, "bit %d of byte %d of page %d", bit%8, bit/8%pageSize, bit/8/pageSize) {
			found++
		}
		file[bit/8] ^= 1 << (bit % 8)
	}
	const bits = pageSize * 8
	for id := range len(file) / pageSize {
		page := file[id*pageSize:][:pageSize]
		whole, some := 0, 0 // bytes of which all bits, and some bits, are turned
		switch {
		case id < 2:
			whole = headerSize + metaSize
		case flags(page) == freelistFlag:
			whole = headerSize + 6*8
		case flags(page) == branchFlag, id%20 == 0:
			whole, some = headerSize, headerSize+count(page)*elemSize
		}
		for bit := range max(whole, some) * 8 {
			if bit < whole*8 || bit%97 < 2 {
				flip(id*bits + bit)
			}
		}
		flip(id*bits + r.IntN(bits))
	}
	t.Logf("%d of %d flips were found, the others did not matter", found, flips/every)
	if found < flips/every/10 {
		t.Errorf("no more than %d of %d flips were found", found, flips/every)
	}
}

// raceDetector says whether the test was built with -race.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func TestATruncatedFileIsFound(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t, 300)
	high := int(u64(file, headerSize+40))
	if h := int(u64(file[pageSize:], headerSize+40)); txid(file[pageSize:]) > txid(file) {
		high = h
	}
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 150 {
		size := r.IntN(len(file))
		if n < 20 {
			size = n * pageSize / 2
		}
		if found := checkDamaged(t, file[:size], a, b, "%d of %d bytes", size, len(file)); !found && size < high*pageSize {
			t.Errorf("%d of %d bytes were read as a file", size, len(file))
		}
	}
}

func TestWhatIsNoDatabaseIsDamaged(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewChaCha8([32]byte{}))
	noise := make([]byte, 10*pageSize)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for name, file := range map[string][]byte{
		"nothing": nil,
		"a line":  []byte("10.0.0.1 pod-a\n"),
		"zeroes":  make([]byte, 10*pageSize),
		"noise":   noise,
	} {
		if !checkDamaged(t, file, nil, nil, "%s", name) {
			t.Errorf("%s was read as a file", name)
		}
	}
}

// bbolt would follow such a page until the stack overflows, which cannot be
// recovered from.
func TestABranchThatLeadsBackIsFound(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t, 300)
	branches := 0
	for id := 2; id < len(file)/pageSize; id++ {
		page := file[id*pageSize:][:pageSize]
		if flags(page) != branchFlag {
			continue
		}
		branches++
		for _, i := range []int{0, count(page) / 2, count(page) - 1} {
			at := page[headerSize+i*elemSize+8:]
			was := child(page, i)
			binary.NativeEndian.PutUint64(at, uint64(id))
			checkDamaged(t, file, a, b, "child %d of page %d is that page", i, id)
			binary.NativeEndian.PutUint64(at, was)
		}
	}
	if branches < 6 {
		t.Errorf("the sample has %d branch pages: it is too small", branches)
	}
}

// An older copy of a page, which still lies in the file, is sound in itself.
func TestAFreePageIsNotTakenForOneInUse(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t, 300)
	p := &pages{}
	newest := file
	if txid(file[pageSize:]) > txid(file) {
		newest = file[pageSize:]
	}
	p.high = u64(newest, headerSize+40)
	path := filepath.Join(t.TempDir(), "sample")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p, err = readPages(f); err != nil {
		t.Fatal(err)
	}
	if len(p.free) == 0 {
		t.Fatal("the sample has no free pages")
	}
	tried := 0
	for id := 2; id < len(file)/pageSize; id++ {
		page := file[id*pageSize:][:pageSize]
		if flags(page) != branchFlag {
			continue
		}
		at := page[headerSize+8:]
		was := child(page, 0)
		for _, free := range p.free {
			old := file[free*pageSize:]
			if u64(old, 0) != free || flags(old) != flags(file[was*pageSize:]) {
				continue
			}
			binary.NativeEndian.PutUint64(at, free)
			checkDamaged(t, file, a, b, "page %d leads to the free page %d", id, free)
			tried++
		}
		binary.NativeEndian.PutUint64(at, was)
	}
	if tried == 0 {
		t.Error("nothing was tried")
	}
}

func TestATableIsNotTakenForAnother(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t, 300)
	for id := 2; id < len(file)/pageSize; id++ {
		page := file[id*pageSize:][:pageSize]
		if flags(page) != leafFlag || count(page) != 2 || string(element(page, 0).key) != "a" {
			continue
		}
		for _, pair := range [][2]int{{0, 1}, {1, 0}} {
			from, to := element(page, pair[0]).value, element(page, pair[1]).value
			was := bytes.Clone(to)
			copy(to, from)
			checkDamaged(t, file, a, b, "tables %v", pair)
			copy(to, was)
		}
	}
}
