// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// errHollow says that a file has so many free pages that it should be copied.
var errHollow = errors.New("too many free pages")

// A file is a bbolt database with sorted keys and values in named tables, which is opened for
// one transaction at a time. One that bbolt cannot read is errDamaged, and never a panic of
// the caller; transaction.check and transact say what is not caught.

// pageSize is set when a file is made, so that it is the same on every kernel.
const pageSize = 4096

// maxHollow is how many free pages a file may have: bbolt reads and writes the list of all
// in each transaction, so one peak of use would make all later ones slower.
const maxHollow = 512

// reserve is how many bytes behind its last page a file has space for after each write. bbolt
// writes each page that changes to another place, so without space nothing could be deleted.
const reserve = 64 * pageSize

// fillPercent is how full a page is after a copy: about as full as random inserts leave it.
// Each of the next inserts would split a fuller one.
const fillPercent = 0.7

// mode says how a transaction may end.
type mode int

// The modes.
const (
	read        mode = iota // no change: the file may be open for reading only
	write                   // it is committed, but a hollow file is errHollow; the file gets its reserve
	writeHollow             // it is committed, also on a full file system
	forget                  // it is rolled back
)

// transaction is one of bbolt, with the tables that are open in it.
type transaction struct {
	tx     *bolt.Tx
	tables []*table
}

// table opens a table. A missing table is damage.
func (tx *transaction) table(name string) *table {
	b := tx.tx.Bucket([]byte(name))
	if b == nil {
		fail(damagef("there is no table %s", name))
	}
	t := &table{name: name, bucket: b}
	tx.tables = append(tx.tables, t)
	return t
}

// check returns what bbolt finds wrong with the pages of the file, as errDamaged. Call
// it only after all tables have been read: bbolt checks in a goroutine of its own, and
// there a fault on memory behind the end of the file ends the process.
func (tx *transaction) check() error {
	var first error
	for err := range tx.tx.Check() { // to the end: bbolt's goroutine waits for the reader
		if first == nil {
			first = damagef("%v", err)
		}
	}
	return first
}

// changed says whether there is anything to commit.
func (tx *transaction) changed() bool {
	return slices.ContainsFunc(tx.tables, func(t *table) bool { return t.changes > 0 })
}

// fail ends the transaction in which it is called, with a panic: transact or create rolls
// back and returns err. So a read of a file that may be damaged, on which bbolt panics
// anyway, returns no error.
func fail(err error) { panic(failure{err}) }

type failure struct{ error }

// attempt returns the error of fn, also one that it gave to fail.
func attempt(fn func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	return fn()
}

// transact runs fn in one transaction on a file, and closes the file. It
// commits the changes of fn if fn returns nil and the mode allows it.
//
// bbolt panics on most damage, and faults on memory that is mapped from a file that is too
// short. transact returns errDamaged for both. It does not catch pages that lead back to
// themselves: bbolt follows them until the process has no stack or no memory left.
func transact(file *os.File, m mode, fn func(*transaction) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			// Closing the database would wait for locks that the panic left
			// locked. The mapping is lost. It keeps the file open, so the flock
			// has to be released by hand.
			err = errors.Join(damagef("%v", p), unix.Flock(int(file.Fd()), unix.LOCK_UN), file.Close())
		}
	}()
	if err := notEmpty(file); err != nil {
		return errors.Join(err, file.Close())
	}
	db, err := openFile(file, m)
	if err != nil {
		return err
	}
	if m == write && db.Stats().FreePageN > maxHollow {
		return errors.Join(errHollow, db.Close())
	}
	tx, err := db.Begin(m != read)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	ours := &transaction{tx: tx}
	err = attempt(func() error { return fn(ours) })
	if err != nil || !ours.changed() || m == forget {
		return errors.Join(err, tx.Rollback(), db.Close())
	}
	end := tx.Size()
	if m == write {
		err = allocate(file, end)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(), db.Close())
	}
	err = tx.Commit()
	if err == nil && m == write {
		err = allocate(file, end) // bbolt cuts off what is behind when it makes a file larger
	}
	return errors.Join(err, db.Close())
}

// allocate gives a file its reserve behind an end. Where that is not possible, as on NFS, there
// is none.
func allocate(file *os.File, end int64) error {
	err := unix.Fallocate(int(file.Fd()), 0, end, reserve)
	for errors.Is(err, unix.EINTR) { // a signal of the Go runtime: nothing is allocated then (shmem_fallocate)
		err = unix.Fallocate(int(file.Fd()), 0, end, reserve)
	}
	if errors.Is(err, unix.ENOSPC) {
		return &os.PathError{Op: "write", Path: file.Name(), Err: err}
	}
	return nil
}

// notEmpty returns an error for a file that is too short to be a database.
// bbolt would make a new database of an empty file, and the leases would be
// lost.
func notEmpty(file *os.File) error {
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() && info.Size() < 2*pageSize {
		err = damagef("the file has %d bytes", info.Size())
	}
	return err
}

// create makes an empty file a database with empty tables, lets fn fill them,
// and closes the file.
func create(file *os.File, names []string, fn func([]*table)) error {
	db, err := openFile(file, writeHollow)
	if err != nil {
		return err
	}
	err = attempt(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			tables := make([]*table, len(names))
			for i, name := range names {
				b, err := tx.CreateBucket([]byte(name))
				if err != nil {
					return err
				}
				b.FillPercent = fillPercent
				tables[i] = &table{name: name, bucket: b}
			}
			fn(tables)
			return nil
		})
	})
	return errors.Join(err, db.Close())
}

// copy puts the open tables into an empty file, with only the pages that they
// need, and closes that file.
func (tx *transaction) copy(file *os.File) error {
	names := make([]string, len(tx.tables))
	for i, t := range tx.tables {
		names[i] = t.name
	}
	return create(file, names, func(to []*table) {
		for i, t := range tx.tables {
			for it := range t.in(nil) {
				to[i].put(it.Key, it.Value)
			}
		}
	})
}

// openFile opens a file with bbolt. bbolt closes the file, also when it returns an
// error.
func openFile(file *os.File, m mode) (*bolt.DB, error) {
	db, err := bolt.Open(file.Name(), 0o600, &bolt.Options{
		// The caller has the file alone. Only a foreign program, such as
		// bbolt's own tool, may have it open.
		Timeout:    time.Second,
		ReadOnly:   m == read,
		NoSync:     true, // the content of the page cache survives a kill
		NoGrowSync: true,
		PageSize:   pageSize,
		OpenFile:   func(string, int, os.FileMode) (*os.File, error) { return file, nil },
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, errBusy
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, bolterrors.ErrChecksum):
		return nil, damagef("%v", err)
	}
	return db, err
}

// errBusy says that another program has opened the file.
var errBusy = errors.New("another program has it open")

// errDamaged is the cause of every error about the content of a file. Errors of
// the file system do not have it.
var errDamaged = errors.New("damaged")

// damagef returns an error about the content of a file.
func damagef(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errDamaged}, args...)...)
}
