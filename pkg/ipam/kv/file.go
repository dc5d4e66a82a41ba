// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package kv keeps sorted keys and values in named tables of one file, which
// is a bbolt database that is opened for one transaction at a time.
//
// It never believes what it reads: whatever has happened to the file, a
// transaction sees what was committed last or fails with ErrDamaged. It neither
// locks nor names files, and knows nothing of leases; package ledger does. Read
// this file first, then pages.go for what bbolt itself does not check.
package kv

import (
	"errors"
	"os"
	"runtime/debug"
	"time"
	"unsafe"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// ErrHollow says that a file has so many free pages that it should be copied.
var ErrHollow = errors.New("too many free pages")

// maxHollow is how many free pages a file may have. bbolt reads and writes the
// list of all of them in each transaction, so that one peak of use would make
// all later transactions slower.
const maxHollow = 512

// fillPercent is how full a page is after a copy: about as full as random
// inserts leave it. Fuller, each of the next inserts would split one.
const fillPercent = 0.7

// Mode says what may become of a transaction.
type Mode int

// The modes.
const (
	Read        Mode = iota // nothing: the file may be open for reading only
	Write                   // it is committed, but a hollow file is ErrHollow
	WriteHollow             // it is committed
	Forget                  // it is rolled back
)

// Tx is a transaction.
type Tx struct {
	tx     *bolt.Tx
	pages  *pages
	tables []*Table
}

// Table opens a table. That there is none is damage.
func (tx *Tx) Table(name string) (*Table, error) {
	if err := tx.pages.bucket(name); err != nil {
		return nil, err
	}
	t := &Table{name: name, bucket: tx.tx.Bucket([]byte(name)), pages: tx.pages}
	tx.tables = append(tx.tables, t)
	return t, nil
}

// changed says whether there is anything to commit.
func (tx *Tx) changed() bool {
	for _, t := range tx.tables {
		if t.changes > 0 {
			return true
		}
	}
	return false
}

// Transact runs fn in one transaction on a file, and closes the file. It
// commits what fn has changed if fn returns nil and the mode allows it.
//
// It is the one place where bbolt touches a file that may be damaged: what
// escapes the checks of pages makes bbolt panic, or fault on memory mapped
// from a file that is too short, and is ErrDamaged here.
func Transact(file *os.File, m Mode, fn func(*Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			// Closing the database would wait for locks that the panic left
			// taken. The mapping is lost, and as it keeps the file open, the
			// flock has to be given back by hand.
			err = errors.Join(Damagef("%v", p), unix.Flock(int(file.Fd()), unix.LOCK_UN), file.Close())
		}
	}()
	p, err := readPages(file)
	if err == nil && m == Write && len(p.free) > maxHollow {
		err = ErrHollow
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	db, err := open(file, m)
	if err != nil {
		return err
	}
	// The mapping stays where it is until the commit.
	p.mem = unsafe.Slice((*byte)(unsafe.Add(nil, db.Info().Data)), p.high*pageSize)
	tx, err := db.Begin(m != Read)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	ours := &Tx{tx: tx, pages: p}
	err = fn(ours)
	if err == nil && ours.changed() && m != Forget {
		return errors.Join(tx.Commit(), db.Close())
	}
	return errors.Join(err, tx.Rollback(), db.Close())
}

// Create makes an empty file a database with empty tables, lets fn fill them,
// and closes the file.
func Create(file *os.File, names []string, fn func([]*Table) error) error {
	db, err := open(file, WriteHollow)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		tables := make([]*Table, len(names))
		for i, name := range names {
			b, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			b.FillPercent = fillPercent
			tables[i] = &Table{name: name, bucket: b}
		}
		return fn(tables)
	})
	return errors.Join(err, db.Close())
}

// Copy puts the open tables into an empty file, with no page more than they
// need, and closes that file.
func (tx *Tx) Copy(file *os.File) error {
	names := make([]string, len(tx.tables))
	for i, t := range tx.tables {
		names[i] = t.name
	}
	return Create(file, names, func(to []*Table) error {
		for i, t := range tx.tables {
			for it, err := range t.In(Span{}) {
				if err != nil {
					return err
				}
				if err := to[i].Put(it.Key, it.Value); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// open opens a file with bbolt, which closes it, also if it returns an error.
func open(file *os.File, m Mode) (*bolt.DB, error) {
	db, err := bolt.Open(file.Name(), 0o600, &bolt.Options{
		// Whoever calls us is alone with the file but for other programs, such
		// as bbolt's own tool.
		Timeout:      time.Second,
		ReadOnly:     m == Read,
		NoSync:       true, // what the page cache has survives a kill
		NoGrowSync:   true,
		NoStatistics: true,
		PageSize:     pageSize,
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return file, nil },
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, ErrBusy
	}
	return db, err
}

// ErrBusy says that another program has opened the file.
var ErrBusy = errors.New("another program has it open")
