// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package record stores what this node did for each attachment, in atomic, locked,
// versioned files.
//
// A record is written before the first change and deleted after the last change is
// undone. So DEL finds what may have to be undone, no matter when a process dies. The
// package never interprets a plan. Read this file for the format, lock.go for who may
// write when.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// version is the number of the format. A record of any other version is unreadable: a
// guess could undo the wrong thing.
const version = 3

// Record is what is known about one attachment.
type Record struct {
	Version int    `json:"version"` // first in the file, so it is read before what another version may have changed
	BootID  string `json:"bootID"`
	Network string `json:"network"`
	conf.Attachment
	Pod     conf.Pod        `json:"pod,omitzero"`
	Netns   string          `json:"netns"`
	NetnsID netns.ID        `json:"netnsID"`
	IPAM    string          `json:"ipam,omitempty"`   // ipam.type
	Pool    string          `json:"pool,omitempty"`   // the name of the pool in the lease database, of our own pools
	Config  json.RawMessage `json:"config,omitempty"` // what another IPAM plugin needs for DEL
	Digest  string          `json:"digest,omitempty"` // of the configuration
	// LeftOut says which rails were left out, and why.
	LeftOut []string `json:"leftOut,omitempty"`
	// Trace is traceparent of the ADD (W3C Trace Context), if the runtime traces.
	Trace string `json:"trace,omitempty"`
	// Committed says that ADD finished. An uncommitted record may describe
	// more than was done, never less.
	Committed bool          `json:"committed"`
	Saved     time.Duration `json:"saved"` // CLOCK_BOOTTIME
	Plan      plan.Plan     `json:"plan"`
}

// Who names the pod of a record, or its container if the record has no pod.
func (r Record) Who() string {
	if r.Pod.Name == "" {
		return fmt.Sprintf("container %q", r.ContainerID)
	}
	return fmt.Sprintf("pod %q", r.Pod.String())
}

// Store is a folder of records. The folder and its files are made on first
// use, 0700 and 0600.
type Store struct {
	// Dir is the state folder; records live in Dir/attachments.
	Dir string
	// BootID is that of the running kernel.
	BootID string
}

// ErrNotExist is returned by Load when there is no record.
var ErrNotExist = errors.New("no record of the attachment")

// Save writes a record in one step: a reader finds the whole record or none. The
// caller holds the container's lock. Errors: cnierr.IO, and cnierr.BadConfig for a
// record that is too long for Load.
func (s Store) Save(r Record) error {
	r.Version, r.BootID = version, s.BootID
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record of %s/%s: %w", r.ContainerID, r.IfName, err)
	}
	path := s.path(r.Attachment)
	if len(b) > trusted.MaxSize {
		return cnierr.New(cnierr.BadConfig, "write record", path, "make the configuration shorter: fewer rails, subnets or routes",
			"it has %d bytes, the limit is %d", len(b), trusted.MaxSize)
	}
	if err := trusted.Replace(path, b, 0o600); err != nil {
		return ioError("write record", path, err)
	}
	return nil
}

// Load reads the record of an attachment. A record of another boot is returned
// without operations, not committed and of time 0, because nothing that it describes has survived.
// A record of another attachment than its path says is unreadable.
// Errors: ErrNotExist, cnierr.Unreadable, cnierr.IO.
func (s Store) Load(at conf.Attachment) (Record, error) {
	path := s.path(at)
	b, err := trusted.ReadInside(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, ErrNotExist
	}
	if errors.Is(err, trusted.ErrIrregular) || errors.Is(err, trusted.ErrTooLong) {
		return Record{}, unreadable(path, err)
	}
	if err != nil {
		return Record{}, ioError("read record", path, err)
	}
	r, err := s.decode(path, b)
	if err == nil && (r.Attachment != at) {
		return Record{}, unreadable(path, fmt.Errorf("it is the record of interface %q of container %q", r.IfName, r.ContainerID))
	}
	return r, err
}

func unreadable(path string, err error) error {
	return cnierr.New(cnierr.Unreadable, "read record", path,
		"delete the pod: DEL removes what carries its mark; keep the file for a bug report", "%w", err)
}

func (s Store) decode(path string, b []byte) (Record, error) {
	var r Record
	err := json.Unmarshal(b, &r)
	switch {
	case r.Version > version:
		return Record{}, cnierr.New(cnierr.Unreadable, "read record", path, "install the version of roce-cni that wrote it, or newer",
			"a newer version wrote it: format %d, and this version reads %d", r.Version, version)
	case err != nil:
		return Record{}, unreadable(path, err)
	case r.Version != version:
		return Record{}, unreadable(path, fmt.Errorf("it has format %d, and this version reads %d", r.Version, version))
	}
	if r.BootID != s.BootID {
		r.Plan.Ops, r.Committed, r.Saved = nil, false, 0
	}
	return r, nil
}

// Delete removes the record of an attachment. A missing record counts as success. The
// caller holds the container's lock. Errors: cnierr.IO.
func (s Store) Delete(at conf.Attachment) error {
	path := s.path(at)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("delete record", path, err)
	}
	return nil
}

// List returns the attachments that have a record, ordered by container and
// interface; none if there is no folder. Errors: cnierr.IO.
func (s Store) List() ([]conf.Attachment, error) {
	containers, err := s.containers()
	if err != nil {
		return nil, err
	}
	var keys []conf.Attachment
	for _, id := range containers {
		of, err := s.Of(id)
		if err != nil {
			return nil, err
		}
		keys = append(keys, of...)
	}
	return keys, nil
}

// All returns the records of all attachments but the named ones, ordered by container and
// interface. A record that another call deletes meanwhile is left out. A record that cannot
// be read comes with its error, and has only its attachment. If the folder cannot be listed,
// there is only that error, with an empty record. Errors: as of Load and List.
func (s Store) All(but ...conf.Attachment) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		keys, err := s.List()
		if err != nil {
			yield(Record{}, err)
			return
		}
		for _, k := range keys {
			if slices.Contains(but, k) {
				continue
			}
			r, err := s.Load(k)
			if errors.Is(err, ErrNotExist) {
				continue
			}
			if err != nil {
				r = Record{Attachment: k}
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Of returns the attachments of a container that have a record, ordered by interface;
// none if there is no folder. Errors: cnierr.IO.
func (s Store) Of(id conf.ContainerID) ([]conf.Attachment, error) {
	files, err := readDir(s.folder(id))
	if err != nil {
		return nil, err
	}
	var keys []conf.Attachment
	for _, f := range files {
		if ifName, ok := strings.CutSuffix(f.Name(), suffix); ok {
			keys = append(keys, conf.Attachment{ContainerID: id, IfName: conf.LinkName(ifName)})
		}
	}
	return keys, nil
}

// containers returns the containers that have a folder. It ignores files beside the
// folders, because they are not ours.
func (s Store) containers() ([]conf.ContainerID, error) {
	entries, err := readDir(s.root())
	if err != nil {
		return nil, err
	}
	var ids []conf.ContainerID
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, conf.ContainerID(e.Name()))
		}
	}
	return ids, nil
}

// readDir lists a folder by name; a folder that is gone is empty.
func readDir(path string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, ioError("list records", path, err)
	}
	return entries, nil
}

const suffix = ".json"

func (s Store) root() string { return filepath.Join(s.Dir, "attachments") }

func (s Store) folder(id conf.ContainerID) string { return filepath.Join(s.root(), string(id)) }

func (s Store) path(at conf.Attachment) string {
	return filepath.Join(s.folder(at.ContainerID), string(at.IfName)+suffix)
}

func ioError(op, path string, err error) error {
	return cnierr.New(cnierr.IO, op, path, "", "%w", err)
}

// Sweep removes what killed calls left before they had written a record. It looks
// only at containers without record on which no process works. Nothing else was done
// for them, because the record comes first. Errors: cnierr.IO, cnierr.TryAgain.
func (s Store) Sweep(ctx context.Context) error {
	containers, err := s.containers()
	errs := []error{err}
	for _, id := range containers {
		errs = append(errs, s.sweep(ctx, id))
	}
	return errors.Join(errs...)
}

func (s Store) sweep(ctx context.Context, id conf.ContainerID) error {
	if of, err := s.Of(id); len(of) > 0 || err != nil {
		return err
	}
	release, ok, err := s.TryLock(ctx, id)
	if !ok || err != nil {
		return err
	}
	release() // removes the folder, unless there is a record now
	return nil
}
