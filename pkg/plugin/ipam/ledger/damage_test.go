// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// The parts of bbolt's page header that these tests need (bbolt's internal/common/page.go).
const (
	flagsAt, countAt = 8, 10
	freelistFlag     = 0x10
)

// sample returns a file with free pages and with trees of three levels, and the content
// of its tables.
func sample(t *testing.T) (file []byte, a, b model) {
	t.Helper()
	path := newTables(t)
	fillTables(t, path, 300)
	err := onTables(path, writeHollow, func(a, b *table) error {
		k := []byte(testKey(1))
		a.del(k)
		b.del(k)
		return nil
	})
	must(t, err)
	if a, b, err = readTables(path); err != nil {
		t.Fatal(err)
	}
	if file, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return file, a, b
}

// damaged writes bytes to a new file and returns its path.
func damaged(t *testing.T, file []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "damaged")
	must(t, os.WriteFile(path, file, 0o600))
	return path
}

// checkPages returns what check finds in a file.
func checkPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return transact(f, read, func(tx *transaction) error { return tx.check() })
}

func TestWhatIsNoDatabaseIsDamaged(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 10*pageSize)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for name, file := range map[string][]byte{
		"nothing": nil,
		"a line":  []byte("10.0.0.1 pod-a\n"),
		"zeroes":  make([]byte, 10*pageSize),
		"noise":   noise,
	} {
		path := damaged(t, file)
		if _, _, err := readTables(path); !errors.Is(err, errDamaged) {
			t.Errorf("%s: reading returns %v, want errDamaged", name, err)
		}
		if err := onTables(path, write, func(_, _ *table) error { return nil }); !errors.Is(err, errDamaged) {
			t.Errorf("%s: writing returns %v, want errDamaged", name, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, file) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
	}
}

// The memory behind the end of a file that is too short is a fault, not a panic of bbolt.
func TestATruncatedFileIsDamaged(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t)
	for size := 0; size < len(file); size += 5 * pageSize {
		gotA, gotB, err := readTables(damaged(t, file[:size]))
		if !errors.Is(err, errDamaged) && (err != nil || !maps.Equal(a, gotA) || !maps.Equal(b, gotB)) {
			t.Errorf("%d of %d bytes: got %v, and %d and %d items", size, len(file), err, len(gotA), len(gotB))
		}
	}
}

func TestAPageOfZeroesIsDamaged(t *testing.T) {
	t.Parallel()
	file, a, b := sample(t)
	found := 0
	for at := 2 * pageSize; at < len(file); at += pageSize {
		page := bytes.Clone(file[at:][:pageSize])
		clear(file[at:][:pageSize])
		gotA, gotB, err := readTables(damaged(t, file))
		switch {
		case errors.Is(err, errDamaged):
			found++
		case err != nil || !maps.Equal(a, gotA) || !maps.Equal(b, gotB):
			t.Errorf("page %d: got %v, and %d and %d items", at/pageSize, err, len(gotA), len(gotB))
		}
		copy(file[at:], page)
	}
	if found < 20 {
		t.Errorf("no more than %d pages mattered", found)
	}
}

func TestAChangedValueIsDamaged(t *testing.T) {
	t.Parallel()
	path := newTables(t)
	must(t, onTables(path, write, putPair("key", "10.0.0.1")))
	file, err := os.ReadFile(path)
	must(t, err)
	file = bytes.ReplaceAll(file, []byte("10.0.0.1"), []byte("10.0.0.2"))
	for name, do := range map[string]func(*table){
		"Get":  func(a *table) { a.get([]byte("key")) },
		"Ceil": func(a *table) { a.ceil(nil) },
	} {
		err := onTables(damaged(t, file), write, func(a, _ *table) error {
			do(a)
			return nil
		})
		if !errors.Is(err, errDamaged) {
			t.Errorf("%s: got %v, want errDamaged", name, err)
		}
	}
}

// A page that is lost from the list of free pages harms no table, so that nothing but
// bbolt's own check finds it.
func TestCheckFindsWhatNoReadingMeets(t *testing.T) {
	t.Parallel()
	file, _, _ := sample(t)
	if err := checkPages(damaged(t, file)); err != nil {
		t.Fatalf("a sound file: %v", err)
	}
	for at := 2 * pageSize; at < len(file); at += pageSize {
		page := file[at:][:pageSize]
		n := binary.NativeEndian.Uint16(page[countAt:])
		if binary.NativeEndian.Uint16(page[flagsAt:]) == freelistFlag && n > 0 {
			binary.NativeEndian.PutUint16(page[countAt:], n-1)
		}
	}
	path := damaged(t, file)
	if _, _, err := readTables(path); err != nil {
		t.Errorf("reading: %v", err)
	}
	if err := checkPages(path); !errors.Is(err, errDamaged) {
		t.Errorf("check returns %v, want errDamaged", err)
	}
}
