// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package kv keeps sorted keys and values in named tables of one file, which
// is a bbolt database that is opened for one transaction at a time.
//
// A file that bbolt cannot read is ErrDamaged, and never a panic of the caller; Tx.Check
// and Transact say what is not caught. The package neither locks nor names files, and
// knows nothing of leases; package ledger does. Read this file first.
package kv

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

// ErrHollow says that a file has so many free pages that it should be copied.
var ErrHollow = errors.New("too many free pages")

// pageSize is set when a file is made, so that it is the same on every kernel.
const pageSize = 4096

// maxHollow is how many free pages a file may have: bbolt reads and writes the list of all
// in each transaction, so one peak of use would make all later ones slower.
const maxHollow = 512

// reserve is how many bytes behind its last page a file has space for after each Write. bbolt
// writes each page that changes to another place, so without space nothing could be deleted.
const reserve = 64 * pageSize

// fillPercent is how full a page is after a copy: about as full as random inserts leave it.
// Each of the next inserts would split a fuller one.
const fillPercent = 0.7

// Mode says how a transaction may end.
type Mode int

// The modes.
const (
	Read        Mode = iota // no change: the file may be open for reading only
	Write                   // it is committed, but a hollow file is ErrHollow; the file gets its reserve
	WriteHollow             // it is committed, also on a full file system
	Forget                  // it is rolled back
)

// Tx is a transaction.
type Tx struct {
	tx     *bolt.Tx
	tables []*Table
}

// Table opens a table. A missing table is damage.
func (tx *Tx) Table(name string) *Table {
	b := tx.tx.Bucket([]byte(name))
	if b == nil {
		Fail(Damagef("there is no table %s", name))
	}
	t := &Table{name: name, bucket: b}
	tx.tables = append(tx.tables, t)
	return t
}

// Check returns what bbolt finds wrong with the pages of the file, as ErrDamaged. Call
// it only after all tables have been read: bbolt checks in a goroutine of its own, and
// there a fault on memory behind the end of the file ends the process.
func (tx *Tx) Check() error {
	var first error
	for err := range tx.tx.Check() { // to the end: bbolt's goroutine waits for the reader
		if first == nil {
			first = Damagef("%v", err)
		}
	}
	return first
}

// changed says whether there is anything to commit.
func (tx *Tx) changed() bool {
	return slices.ContainsFunc(tx.tables, func(t *Table) bool { return t.changes > 0 })
}

// Fail ends the transaction in which it is called, with a panic: Transact or Create rolls
// back and returns err. So neither this package nor its users have an error for each read
// of a file that may be damaged, on which bbolt panics anyway.
func Fail(err error) { panic(failure{err}) }

type failure struct{ error }

// attempt returns the error of fn, also that of a Fail.
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

// Transact runs fn in one transaction on a file, and closes the file. It
// commits the changes of fn if fn returns nil and the mode allows it.
//
// bbolt panics on most damage, and faults on memory that is mapped from a file that is too
// short. Transact returns ErrDamaged for both. It does not catch pages that lead back to
// themselves: bbolt follows them until the process has no stack or no memory left.
func Transact(file *os.File, m Mode, fn func(*Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			// Closing the database would wait for locks that the panic left
			// locked. The mapping is lost. It keeps the file open, so the flock
			// has to be released by hand.
			err = errors.Join(Damagef("%v", p), unix.Flock(int(file.Fd()), unix.LOCK_UN), file.Close())
		}
	}()
	if err := notEmpty(file); err != nil {
		return errors.Join(err, file.Close())
	}
	db, err := open(file, m)
	if err != nil {
		return err
	}
	if m == Write && db.Stats().FreePageN > maxHollow {
		return errors.Join(ErrHollow, db.Close())
	}
	tx, err := db.Begin(m != Read)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	ours := &Tx{tx: tx}
	err = attempt(func() error { return fn(ours) })
	if err != nil || !ours.changed() || m == Forget {
		return errors.Join(err, tx.Rollback(), db.Close())
	}
	end := tx.Size()
	if m == Write {
		err = allocate(file, end)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(), db.Close())
	}
	err = tx.Commit()
	if err == nil && m == Write {
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
		err = Damagef("the file has %d bytes", info.Size())
	}
	return err
}

// Create makes an empty file a database with empty tables, lets fn fill them,
// and closes the file.
func Create(file *os.File, names []string, fn func([]*Table)) error {
	db, err := open(file, WriteHollow)
	if err != nil {
		return err
	}
	err = attempt(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			tables := make([]*Table, len(names))
			for i, name := range names {
				b, err := tx.CreateBucket([]byte(name))
				if err != nil {
					return err
				}
				b.FillPercent = fillPercent
				tables[i] = &Table{name: name, bucket: b}
			}
			fn(tables)
			return nil
		})
	})
	return errors.Join(err, db.Close())
}

// Copy puts the open tables into an empty file, with only the pages that they
// need, and closes that file.
func (tx *Tx) Copy(file *os.File) error {
	names := make([]string, len(tx.tables))
	for i, t := range tx.tables {
		names[i] = t.name
	}
	return Create(file, names, func(to []*Table) {
		for i, t := range tx.tables {
			for it := range t.In(nil) {
				to[i].Put(it.Key, it.Value)
			}
		}
	})
}

// open opens a file with bbolt. bbolt closes the file, also when it returns an
// error.
func open(file *os.File, m Mode) (*bolt.DB, error) {
	db, err := bolt.Open(file.Name(), 0o600, &bolt.Options{
		// The caller has the file alone. Only a foreign program, such as
		// bbolt's own tool, may have it open.
		Timeout:    time.Second,
		ReadOnly:   m == Read,
		NoSync:     true, // the content of the page cache survives a kill
		NoGrowSync: true,
		PageSize:   pageSize,
		OpenFile:   func(string, int, os.FileMode) (*os.File, error) { return file, nil },
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, ErrBusy
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, bolterrors.ErrChecksum):
		return nil, Damagef("%v", err)
	}
	return db, err
}

// ErrBusy says that another program has opened the file.
var ErrBusy = errors.New("another program has it open")

// ErrDamaged is the cause of every error about the content of a file. Errors of
// the file system do not have it.
var ErrDamaged = errors.New("damaged")

// Damagef returns an error about the content of a file.
func Damagef(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
}
