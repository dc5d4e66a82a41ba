// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nodefile reads and writes the node file, which says which addresses of a
// RailPool a node may lease. rocectl agent writes it, and the plugins read it in every
// ADD.
//
// It does not know Kubernetes, nor how the node got the addresses. A reader never sees
// a part of a file. It stands between block and conf: what it reads is what
// ipam.subnets would say. Read this file first. form.go has the format, write.go the
// agent's side, and sticky.go the requests and answers for sticky addresses.
package nodefile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/netrange"
	"github.com/roce-cni/roce-cni/pkg/trusted"
)

// Store is the files of a node's pools, in its state folder.
type Store struct {
	Dir string
	// BootID is that of the running kernel. What the node owned before a boot it
	// may have lost while it was off: the agent must look before it writes the
	// file again.
	BootID string
}

// File is what a node may lease of one pool.
type File struct {
	Pool       string
	Quarantine time.Duration
	// Rails has the subnets of each rail. Their Ranges are what the node owns,
	// and Exclude and Gateway what it must not lease of that.
	Rails [][]pool.Subnet
	// Sticky says that pods that come back under their name keep their addresses:
	// they ask for them with Want. None of them is in Rails.
	Sticky bool
}

// path is the file of a pool.
func (s Store) path(poolName string) string {
	return filepath.Join(s.Dir, "pools", poolName, "ranges")
}

const reading = "read ranges of pool"

// Read reads the file of a pool. Errors: TryAgain while there is no file of this boot;
// IO; Unreadable for what is not such a file, with all that is wrong with it.
func (s Store) Read(poolName string) (File, error) {
	path := s.path(poolName)
	b, err := content(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, notYet(poolName, "http://NODE:9482/healthz says what it waits for; kubectl get railpools shows whether the pool exists and has free blocks", "%s is missing", path)
	}
	if err != nil && !errors.As(err, &formError{}) {
		return File{}, cnierr.New(cnierr.IO, reading, poolName, "", "%s: %w", path, err)
	}
	var out File
	var boot string
	if err == nil {
		out, boot, err = parse(b)
	}
	if err == nil && out.Pool != poolName {
		err = fmt.Errorf("it is of pool %q", out.Pool)
	}
	if err != nil {
		return File{}, &cnierr.Error{
			Code: cnierr.Unreadable, Op: reading, Subject: poolName,
			Hint: "remove the file: rocectl agent writes it again", Err: fmt.Errorf("%s: %w", path, err),
		}
	}
	if boot != s.BootID {
		return File{}, notYet(poolName, "it has not reached the API server since the boot: its log and http://NODE:9482/healthz say why", "%s is of another boot", path)
	}
	return out, nil
}

// notYet says that the agent has not written the file.
func notYet(poolName, hint, format string, path string) error {
	return cnierr.New(cnierr.TryAgain, reading, poolName, "check that rocectl agent runs on this node; if it does, "+hint,
		"the node has no addresses of the pool yet: "+format, path)
}

// content reads a file of the state folder.
func content(path string) ([]byte, error) {
	b, err := trusted.ReadInside(path)
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err // the callers name the path
	}
	if errors.Is(err, trusted.ErrIrregular) || errors.Is(err, trusted.ErrTooLong) {
		err = formError{err}
	}
	return b, err
}

// Subnets returns the subnets of each rail as conf.Request.WithSubnets takes
// them. What is outside of the node's ranges is excluded: an address that
// somebody asks for by name may lie outside of ranges, but not in another
// node's.
func (f File) Subnets() [][]pool.Subnet {
	out := make([][]pool.Subnet, 0, len(f.Rails))
	for _, subnets := range f.Rails {
		subnets = slices.Clone(subnets)
		for i, s := range subnets {
			others := netrange.Minus([]netrange.Range{netrange.Of(s.Prefix)}, s.Ranges)
			subnets[i].Exclude = netrange.Minus(slices.Concat(s.Exclude, others), nil)
		}
		out = append(out, subnets)
	}
	return out
}
