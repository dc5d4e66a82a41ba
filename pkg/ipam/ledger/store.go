// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/ipam/kv"
)

const (
	dbName   = "leases.db"
	lockName = "leases.lock"
)

// ErrNone says that there is no database of this boot.
var ErrNone = errors.New("no lease database")

// Store is the database of a node on disk: who may open it when, where it
// comes from, and when it is thrown away or rebuilt. Each method opens it, runs one
// transaction and closes it, alone among all goroutines and processes. They
// wait for one another as long as the context allows, then return code 11.
// They return code 107 for a database that cannot be read and code 5 when the
// file system fails, and have then changed nothing.
//
// The boot id stands in the database and in the lock file. The second makes
// that a database of another boot need not be readable to be thrown away:
// after a power failure, NoSync leaves anything on a disk that is no tmpfs. A
// lock file without a boot id makes the database one that cannot be read.
type Store struct {
	Dir    string // made if need be
	BootID string
	Now    func() time.Duration // CLOCK_BOOTTIME
}

func (s Store) db() string   { return filepath.Join(s.Dir, dbName) }
func (s Store) lock() string { return filepath.Join(s.Dir, lockName) }

// Update runs fn on the database, which it makes if there is none. It commits
// when fn returns nil and has changed something.
func (s Store) Update(ctx context.Context, fn func(*Ledger) error) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return s.classify(err)
	}
	lock, err := lockFile(ctx, s.lock(), os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return s.classify(err)
	}
	defer lock.Close()
	if err := s.prepare(lock); err != nil {
		return s.classify(err)
	}
	err = s.transact(os.O_RDWR, kv.Write, fn)
	switch {
	case errors.Is(err, ErrNone): // the database says so, the lock does not
		err = s.create()
	case errors.Is(err, kv.ErrHollow):
		err = s.compact()
	default:
		return s.classify(err)
	}
	if err == nil {
		err = s.transact(os.O_RDWR, kv.WriteHollow, fn)
	}
	return s.classify(err)
}

// Existing is Update for calls that only take away: without a database of this
// boot it returns ErrNone and makes nothing.
func (s Store) Existing(ctx context.Context, fn func(*Ledger) error) error {
	return s.ifAny(ctx, os.O_RDWR, unix.LOCK_EX, func() error { return s.transact(os.O_RDWR, kv.WriteHollow, fn) })
}

// View runs fn, which must change nothing, on the database. It makes and
// changes no file. Without a database of this boot it returns ErrNone.
func (s Store) View(ctx context.Context, fn func(*Ledger) error) error {
	return s.ifAny(ctx, os.O_RDONLY, unix.LOCK_SH, func() error { return s.transact(os.O_RDONLY, kv.Read, fn) })
}

// Try runs fn on a copy of the database, or on an empty one if there is none,
// and forgets what it has done.
func (s Store) Try(ctx context.Context, fn func(*Ledger) error) error {
	file, err := s.private(ctx)
	if err != nil {
		return s.classify(err)
	}
	return s.classify(kv.Transact(file, kv.Forget, s.bind(fn)))
}

// ifAny runs fn while it has the lock, if there is one and it is of this boot.
func (s Store) ifAny(ctx context.Context, flags, how int, fn func() error) error {
	return s.locked(ctx, flags, how, func(lock *os.File) error {
		if err := s.ours(lock); err != nil {
			return err
		}
		return fn()
	})
}

// locked runs fn while it has the lock, if there is one.
func (s Store) locked(ctx context.Context, flags, how int, fn func(lock *os.File) error) error {
	lock, err := lockFile(ctx, s.lock(), flags, how)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return s.classify(err)
	}
	defer lock.Close()
	return s.classify(fn(lock))
}

// ours returns ErrNone if the lock file says that the database is one of
// another boot, and damage if it does not say anything that can be read.
func (s Store) ours(lock *os.File) error {
	boot, err := s.boot(lock)
	if err == nil && boot != s.BootID && boot != "" {
		err = ErrNone
	}
	return err
}

// boot returns the boot id that the lock file has, or none if it is new. What
// is no boot id may have been this boot's, so that it is damage and no reason
// to throw a database away. Where there is none, nothing can be lost.
func (s Store) boot(lock *os.File) (string, error) {
	b, err := io.ReadAll(lock)
	if err != nil {
		return "", err
	}
	id := string(b)
	if id == "" || id == s.BootID || isBootID(id) {
		return id, nil
	}
	if _, err := os.Stat(s.db()); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return "", kv.Damagef("%s has no boot ID", lockName)
}

// isBootID says whether a text is a UUID in the kernel's form ("%pU" in
// lib/vsprintf.c), as /proc/sys/kernel/random/boot_id has it.
func isBootID(id string) bool {
	digitsToZero := func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return '0'
		}
		return r
	}
	return strings.Map(digitsToZero, id) == "00000000-0000-0000-0000-000000000000"
}

// prepare makes sure that there is a database and that it is not, as far as
// the lock file knows, one of another boot. A kill between any two steps leaves
// something that the next call prepares again.
func (s Store) prepare(lock *os.File) error {
	boot, err := s.boot(lock)
	if err != nil {
		return err
	}
	if boot != s.BootID {
		if err := s.restart(lock, boot); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.db()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.create()
}

// restart throws away the database of another boot. The id of this boot is on
// the disk before a database of this boot can be; the sync happens once for
// each boot and costs nothing on tmpfs. A lock file without any id is a new
// one: whoever removed the old one has not ended the leases.
func (s Store) restart(lock *os.File, boot string) error {
	if boot != "" {
		for _, name := range []string{s.db(), s.Damaged()} {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return s.sign(lock)
}

// sign writes the id of this boot into the lock file.
func (s Store) sign(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return err
	}
	if _, err := lock.WriteAt([]byte(s.BootID), 0); err != nil {
		return err
	}
	return lock.Sync()
}

// transact opens the database and runs fn in one transaction.
func (s Store) transact(flags int, m kv.Mode, fn func(*Ledger) error) error {
	file, err := os.OpenFile(s.db(), flags|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return err
	}
	return kv.Transact(file, m, s.bind(fn))
}

// bind gives fn the tables of a transaction.
func (s Store) bind(fn func(*Ledger) error) func(*kv.Tx) error {
	return func(tx *kv.Tx) error {
		l, err := open(tx, s.BootID, s.Now())
		if err != nil {
			return err
		}
		return fn(l)
	}
}

// create puts an empty database in the place of what there may be.
func (s Store) create() error { return s.replace(s.blank) }

// compact makes the database anew without free pages.
func (s Store) compact() error { return s.replace(s.copyTo) }

// replace makes a database with fn, which may close the file, under another
// name first, so that a kill cannot leave half of one.
func (s Store) replace(fn func(*os.File) error) error {
	name := s.db() + ".new"
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := fn(file); err != nil {
		return errors.Join(err, os.Remove(name)) // the file system may be full
	}
	return os.Rename(name, s.db())
}

func (s Store) blank(file *os.File) error {
	return kv.Create(file, tableNames(), func(tables []*kv.Table) error { return found(tables, s.BootID) })
}

func (s Store) copyTo(file *os.File) error {
	return s.transact(os.O_RDONLY, kv.Read, func(l *Ledger) error { return l.tx.Copy(file) })
}

// private copies the database into memory that goes with the returned file, so
// that a transaction can be tried out. Without a database it is an empty one.
func (s Store) private(ctx context.Context) (*os.File, error) {
	fd, err := unix.MemfdCreate(dbName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), s.db())
	// Whoever fills a file closes it.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	other := os.NewFile(uintptr(dup), s.db())
	defer other.Close()
	err = s.View(ctx, func(l *Ledger) error { return l.tx.Copy(other) })
	if errors.Is(err, ErrNone) {
		err = s.blank(other)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// classify turns an error into one with a code, unless it has one or is
// ErrNone. What is wrong with the database is 107, what is wrong with the file
// system 5.
func (s Store) classify(err error) error {
	var coded *cnierr.Error
	var path *fs.PathError
	switch {
	case err == nil, errors.Is(err, ErrNone), errors.As(err, &coded):
		return err
	case errors.Is(err, kv.ErrDamaged):
		return cnierr.New(cnierr.Unreadable, "read lease database", s.db(),
			"run rocectl --state-dir "+s.Dir+" repair on the node: it shows what it would rebuild, and does it with --yes", "%w", err)
	case errors.Is(err, kv.ErrBusy):
		return cnierr.New(cnierr.TryAgain, "lock leases", s.db(), "close the program that has the lease database open", "%w", err)
	case errors.As(err, &path):
		return &cnierr.Error{Code: cnierr.IO, Op: path.Op, Subject: path.Path, Err: path.Err}
	}
	return &cnierr.Error{Code: cnierr.IO, Op: "use lease database", Subject: s.db(), Err: err}
}
