// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/pool"
)

// Answer is what the agent says to an ADD that asks for the addresses of a Key.
// While there is an answer with addresses the node holds them, and no other node
// leases them. The agent takes an answer away before it looks at the leases for the
// last time, and an ADD reads it once more after it has leased: whoever comes
// second sees what the first has done.
type Answer struct {
	Key Key
	// Rails has one address of each subnet, as File.Rails; nil: use those that the
	// node has for all.
	Rails [][]pool.Subnet
	// None is why there are none.
	None string
}

// Granted says whether the answer has addresses.
func (a Answer) Granted() bool { return len(a.Rails) > 0 }

// Equal says whether two answers are the same.
func (a Answer) Equal(b Answer) bool { return reflect.DeepEqual(a, b) }

// Only returns the file with the addresses of an answer and no others.
func (f File) Only(a Answer) File {
	f.Rails = a.Rails
	return f
}

const (
	answering = "answer a request for sticky addresses"
	asking    = "request sticky addresses"
)

// sticky is where the answers of a pool are, or the one to a key; wanted where the
// requests are.
func (s Store) sticky(poolName string, name ...string) string {
	return filepath.Join(append([]string{s.Dir, "pools", poolName, "sticky"}, name...)...)
}

func (s Store) wanted(poolName string, name ...string) string {
	return filepath.Join(append([]string{s.Dir, "pools", poolName, "wanted"}, name...)...)
}

// Want asks the agent for the addresses of a key. Asked again, it changes nothing.
// Errors: IO.
func (s Store) Want(poolName string, k Key) error {
	return put(asking, poolName, s.wanted(poolName), k.String(), answerJSON{Version: version, BootID: s.BootID, keyJSON: keyJSON(k)})
}

// Wanted returns the keys for which addresses are asked for, in no order that means
// anything. It removes what is no request, and reports it; requests of another
// boot it removes without a word. Errors: Unreadable and IO, joined, beside the
// keys of all others.
func (s Store) Wanted(poolName string) ([]Key, error) {
	var keys []Key
	err := s.each(s.wanted(poolName), func(form answerJSON) error {
		keys = append(keys, Key(form.keyJSON))
		return nil
	})
	return keys, wrap("read requests of pool", poolName, err)
}

// Unwant takes the request for a key away; that there is none is no error. Errors:
// IO.
func (s Store) Unwant(poolName string, k Key) error {
	return remove(asking, poolName, s.wanted(poolName, k.String()))
}

// Answer returns the answer of this boot to a key; false: there is none. Errors:
// IO; Unreadable for what is no answer.
func (s Store) Answer(poolName string, k Key) (Answer, bool, error) {
	form, err := load(s.sticky(poolName, k.String()))
	if errors.Is(err, unix.ENOENT) {
		return Answer{}, false, nil
	}
	var a Answer
	if err == nil {
		a, err = form.answer()
	}
	switch {
	case err != nil:
		return Answer{}, false, wrap("read answer of pool", poolName, err)
	case form.BootID != s.BootID:
		return Answer{}, false, nil
	}
	return a, true, nil
}

// Answers returns all answers of this boot, in no order that means anything. It
// removes those of another boot, and what is no answer, which it reports, as
// Wanted does.
func (s Store) Answers(poolName string) ([]Answer, error) {
	var out []Answer
	err := s.each(s.sticky(poolName), func(form answerJSON) error {
		a, err := form.answer()
		if err == nil {
			out = append(out, a)
		}
		return err
	})
	return out, wrap("read answers of pool", poolName, err)
}

// WriteAnswer puts an answer in place in one step. It refuses what Answer would
// not read, with Bug. Other errors are IO.
func (s Store) WriteAnswer(poolName string, a Answer) error {
	form := a.form(s.BootID)
	if _, err := form.answer(); err != nil {
		return cnierr.New(cnierr.Bug, answering, poolName, "", "%w", err)
	}
	return put(answering, poolName, s.sticky(poolName), a.Key.String(), form)
}

// RemoveAnswer takes the answer to a key away; that there is none is no error.
// Errors: IO.
func (s Store) RemoveAnswer(poolName string, k Key) error {
	return remove(answering, poolName, s.sticky(poolName, k.String()))
}

// each calls do with each file of this boot in a folder, and removes what is of
// another boot, or not what it should be.
func (s Store) each(dir string, do func(answerJSON) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var faults []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), fresh) {
			faults = append(faults, s.one(filepath.Join(dir, e.Name()), do))
		}
	}
	return errors.Join(faults...)
}

// one is each for one file.
func (s Store) one(path string, do func(answerJSON) error) error {
	form, err := load(path)
	ours := err == nil && form.BootID == s.BootID
	if ours {
		err = do(form)
	}
	switch {
	case ours && err == nil, errors.Is(err, unix.ENOENT): // it went meanwhile
		return nil
	case err != nil && !errors.As(err, &formError{}): // not the file's fault
		return err
	}
	if gone := os.Remove(path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}
