// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"cmp"
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

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

const (
	dbName   = "leases.db"
	lockName = "leases.lock"
)

// ErrNone says that there is no database of this boot.
var ErrNone = errors.New("no lease database")

// Store is the database of a node on disk. Each method opens the database, runs one
// transaction and closes it. In that time it is alone among all goroutines and processes.
// Methods wait for one another as long as the context allows, and then return code 11. They
// return code 107 for a database that cannot be read, and code 5 when the file system fails.
// They have then changed nothing.
//
// The boot id is in the database and in the lock file. Because of the second one, a
// database of another boot can be thrown away without reading it: after a power
// failure, NoSync may leave any content on a disk that is not tmpfs. If the lock file
// has no boot id, the database counts as one that cannot be read.
type Store struct {
	Dir    string // made if it does not exist
	BootID string
	Now    func() time.Duration // CLOCK_BOOTTIME
}

func (s Store) db() string   { return filepath.Join(s.Dir, dbName) }
func (s Store) lock() string { return filepath.Join(s.Dir, lockName) }

// Update runs fn on the database. It makes the database if there is none. It
// commits when fn returns nil and has changed something.
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
	err = s.transact(os.O_RDWR, write, fn)
	switch {
	case errors.Is(err, ErrNone): // the database says so, though the lock file did not
		err = s.replace(s.blank)
	case errors.Is(err, errHollow):
		err = s.replace(s.copyTo)
	default:
		return s.classify(err)
	}
	if err == nil {
		err = s.transact(os.O_RDWR, writeHollow, fn)
	}
	return s.classify(err)
}

// Existing is Update for calls that only take something away. Without a
// database of this boot it returns ErrNone and makes nothing.
func (s Store) Existing(ctx context.Context, fn func(*Ledger) error) error {
	return s.ifAny(ctx, os.O_RDWR, unix.LOCK_EX, func() error { return s.transact(os.O_RDWR, writeHollow, fn) })
}

// View runs fn on the database. fn must change nothing. View makes and changes
// no file. Without a database of this boot it returns ErrNone.
func (s Store) View(ctx context.Context, fn func(*Ledger) error) error {
	return s.ifAny(ctx, os.O_RDONLY, unix.LOCK_SH, func() error { return s.transact(os.O_RDONLY, read, fn) })
}

// Try runs fn on a copy of the database, or on an empty one if there is none.
// It drops what fn has changed.
func (s Store) Try(ctx context.Context, fn func(*Ledger) error) error {
	file, err := s.private(ctx)
	if err != nil {
		return s.classify(err)
	}
	return s.classify(transact(file, forget, s.bind(fn)))
}

// ifAny runs fn under the lock, if there is a lock file and it is of this boot.
func (s Store) ifAny(ctx context.Context, flags, how int, fn func() error) error {
	return s.locked(ctx, flags, how, func(lock *os.File) error {
		if err := s.ours(lock); err != nil {
			return err
		}
		return fn()
	})
}

// locked runs fn under the lock, if there is a lock file.
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

// ours returns ErrNone if the lock file says that the database is of another
// boot. It returns damage if the lock file cannot be read.
func (s Store) ours(lock *os.File) error {
	boot, err := s.boot(lock)
	if err == nil && boot != s.BootID && boot != "" {
		err = ErrNone
	}
	return err
}

// boot returns the boot id in the lock file, or "" if the file is new. Text
// that is not a boot id may come from this boot. So it is damage, and no reason
// to throw a database away. Where there is no database, nothing can be lost.
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
	return "", damagef("%s has no boot ID", lockName)
}

// isBootID says whether a text is a UUID in the kernel's form ("%pU" in
// lib/vsprintf.c), as in /proc/sys/kernel/random/boot_id.
func isBootID(id string) bool {
	digitsToZero := func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return '0'
		}
		return r
	}
	return strings.Map(digitsToZero, id) == "00000000-0000-0000-0000-000000000000"
}

// prepare makes sure that a database exists and that, as far as the lock file
// knows, it is of this boot. If the process is killed between two steps, the
// next call prepares again.
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
	return s.replace(s.blank)
}

// restart throws away the database of another boot. It puts the id of this boot
// on the disk before a database of this boot can exist. The sync happens once
// for each boot and costs nothing on tmpfs. A lock file without any id is new:
// the removal of the old file has not ended the leases.
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
func (s Store) transact(flags int, m mode, fn func(*Ledger) error) error {
	file, err := os.OpenFile(s.db(), flags|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return err
	}
	return transact(file, m, s.bind(fn))
}

// bind passes the tables of a transaction to fn.
func (s Store) bind(fn func(*Ledger) error) func(*transaction) error {
	return func(tx *transaction) error { return fn(open(tx, s.BootID, s.Now())) }
}

// replace makes a database with fn, which may close the file. It uses another
// name first, so that a kill cannot leave half a database.
func (s Store) replace(fn func(*os.File) error) error {
	if err := trusted.Sweep(s.db()); err != nil {
		return err
	}
	file, err := trusted.Fresh(s.db(), 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := fn(file); err != nil {
		return errors.Join(err, os.Remove(file.Name())) // the file system may be full
	}
	return os.Rename(file.Name(), s.db())
}

// blank makes a file an empty database.
func (s Store) blank(file *os.File) error {
	return create(file, tableNames(), func(tables []*table) { found(tables, s.BootID) })
}

// copyTo makes a file the database without free pages.
func (s Store) copyTo(file *os.File) error {
	return s.transact(os.O_RDONLY, read, func(l *Ledger) error { return l.tx.copy(file) })
}

// private copies the database into memory that ends with the returned file, so
// that a transaction can be tried out. Without a database the copy is empty.
func (s Store) private(ctx context.Context) (*os.File, error) {
	fd, err := unix.MemfdCreate(dbName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), s.db())
	// The function that fills a file also closes it.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	other := os.NewFile(uintptr(dup), s.db())
	defer other.Close()
	err = s.View(ctx, func(l *Ledger) error { return l.tx.copy(other) })
	if errors.Is(err, ErrNone) {
		err = s.blank(other)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// classify gives an error a code, unless it has one or is ErrNone. Faults of
// the database are 107, faults of the file system are 5.
func (s Store) classify(err error) error {
	var coded *cnierr.Error
	var path *fs.PathError
	switch {
	case err == nil, errors.Is(err, ErrNone), errors.As(err, &coded):
		return err
	case errors.Is(err, errDamaged):
		return cnierr.New(cnierr.Unreadable, "read lease database", s.db(),
			"run rocectl repair on the node: it shows what it would rebuild, and does it with --yes", "%w", err)
	case errors.Is(err, errNewer):
		return cnierr.New(cnierr.Unreadable, "read lease database", s.db(), "install the version of roce-cni that wrote it, or newer", "%w", err)
	case errors.Is(err, errBusy):
		return cnierr.New(cnierr.TryAgain, "lock leases", s.db(), "close the program that has the lease database open", "%w", err)
	case errors.As(err, &path):
		return &cnierr.Error{Code: cnierr.IO, Op: path.Op, Subject: path.Path, Err: path.Err}
	}
	return &cnierr.Error{Code: cnierr.IO, Op: "use lease database", Subject: s.db(), Err: err}
}

// lockFile opens path and takes a lock on it, unix.LOCK_EX or LOCK_SH; see
// flock.Wait.
func lockFile(ctx context.Context, path string, flags, how int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock.Wait(ctx, f, how); err != nil {
			return nil, busy(ctx, path, err)
		}
		// No roce program removes the file. But if the state folder is wiped
		// while we wait, we would get a lock that no other call sees.
		if flock.Current(f, path) {
			return f, nil
		}
		if err := cmp.Or(f.Close(), ctx.Err()); err != nil {
			return nil, busy(ctx, path, err)
		}
	}
}

// busy returns the error of a wait that ctx has ended. It returns any other
// error unchanged.
func busy(ctx context.Context, path string, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return cnierr.New(cnierr.TryAgain, "lock leases", path,
		cnierr.Again+"; fuser -v on the file names the process that holds it", "another call holds it: %w", err)
}
