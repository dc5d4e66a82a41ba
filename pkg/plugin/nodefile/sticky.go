// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Answer is the agent's answer to an ADD that requests the addresses of a Key. While
// there is an answer with addresses, the node holds them, and no other node leases
// them. The agent removes an answer before it looks at the leases for the last time.
// An ADD reads the answer once more after it has leased. So the second of the two
// always sees what the first has done.
type Answer struct {
	Key Key
	// Rails has one address of each subnet, as File.Rails. nil: use the ordinary
	// addresses of the node.
	Rails [][]pool.Subnet
	// None is the reason why the pod gets no sticky addresses.
	None string
}

// Granted says whether the answer has addresses.
func (a Answer) Granted() bool { return len(a.Rails) > 0 }

// Equal says whether two answers are the same.
func (a Answer) Equal(b Answer) bool { return reflect.DeepEqual(a, b) }

// Only returns the file with only the addresses of an answer.
func (f File) Only(a Answer) File {
	f.Rails = a.Rails
	return f
}

const (
	answering = "answer a request for sticky addresses"
	asking    = "request sticky addresses"
)

// sticky returns the path of the answers of a pool, or of the answer to a key. wanted
// returns the path of the requests.
func (s Store) sticky(poolName string, name ...string) string {
	return filepath.Join(append([]string{s.Dir, "pools", poolName, "sticky"}, name...)...)
}

func (s Store) wanted(poolName string, name ...string) string {
	return filepath.Join(append([]string{s.Dir, "pools", poolName, "wanted"}, name...)...)
}

// Want requests the addresses of a key from the agent. A second call changes nothing.
// Errors: IO.
func (s Store) Want(poolName string, k Key) error {
	return put(asking, poolName, s.wanted(poolName), k.String(), answerJSON{Version: version, BootID: s.BootID, keyJSON: keyJSON(k)})
}

// Wanted returns the keys of all requests, in no fixed order. It removes and reports
// files that are no requests. It removes requests of another boot without an error.
// Errors: Unreadable and IO, joined. The keys of all other requests are returned even
// then.
func (s Store) Wanted(poolName string) ([]Key, error) {
	var keys []Key
	err := s.each(s.wanted(poolName), func(form answerJSON) error {
		keys = append(keys, Key(form.keyJSON))
		return nil
	})
	return keys, wrap("read requests of pool", poolName, err)
}

// Unwant removes the request for a key. It is no error if there is none. Errors: IO.
func (s Store) Unwant(poolName string, k Key) error {
	return remove(asking, poolName, s.wanted(poolName, k.String()))
}

// Answer returns the answer of this boot to a key; false: there is none. Errors: IO;
// Unreadable for an invalid file.
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

// Answers returns all answers of this boot, in no fixed order. It removes answers of
// another boot. It removes and reports files that are no answers, as Wanted does.
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

// WriteAnswer writes an answer in one step. It returns Bug for an answer that Answer
// would refuse to read. Other errors are IO.
func (s Store) WriteAnswer(poolName string, a Answer) error {
	form := a.form(s.BootID)
	if _, err := form.answer(); err != nil {
		return cnierr.New(cnierr.Bug, answering, poolName, "", "%w", err)
	}
	return put(answering, poolName, s.sticky(poolName), a.Key.String(), form)
}

// RemoveAnswer removes the answer to a key. It is no error if there is none. Errors:
// IO.
func (s Store) RemoveAnswer(poolName string, k Key) error {
	return remove(answering, poolName, s.sticky(poolName, k.String()))
}

// each calls do with each file of this boot in a folder. It removes files of another
// boot and invalid files.
func (s Store) each(dir string, do func(answerJSON) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var faults []error
	for _, e := range entries {
		if !trusted.IsFresh(e.Name()) {
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
	case ours && err == nil, errors.Is(err, unix.ENOENT): // it is gone meanwhile
		return nil
	case err != nil && !errors.As(err, &formError{}): // no fault of the file
		return err
	}
	if gone := os.Remove(path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}
