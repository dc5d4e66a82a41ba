// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nodefile reads and writes the node file, which says which addresses of a
// RailPool a node may lease, and the file with the CIDRs of the cluster's Services.
// rocectl agent writes them, and the plugins read them in ADD.
//
// It does not know Kubernetes, and not how the node got the addresses. A reader never
// sees a part of a file. It returns subnets in the form of ipam.subnets in package conf.
// Read this file first. form.go has the format and the agent's side, services.go the CIDRs
// of Services, and sticky.go the request for sticky addresses, which goes over a socket of
// the agent.
package nodefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Store is the files of a node's pools, in its state folder.
type Store struct {
	Dir string
	// BootID is that of the running kernel. While the node was off, it may have lost
	// what it owned. So after a boot the agent must look before it writes the file
	// again.
	BootID string
}

// File is what a node may lease of one pool.
type File struct {
	Pool       string
	Quarantine time.Duration
	// Rails has the subnets of each rail. Ranges are the addresses that the node
	// owns. Exclude and Gateway are addresses of these that it must not lease.
	Rails [][]pool.Subnet
	// Sticky says that the pool has sticky addresses: a pod that comes back under its
	// name keeps its addresses. ADD requests them with Ask. Rails has none of them.
	Sticky bool
}

func (s Store) path(poolName string) string { return filepath.Join(s.pools(), ranges(poolName)) }

func ranges(poolName string) string { return filepath.Join(poolName, "ranges") }

// pools is the folder of the agent, which can change everything below it.
func (s Store) pools() string { return filepath.Join(s.Dir, "pools") }

const reading = "read ranges of pool"

// Read reads the file of a pool. Errors: TryAgain while there is no file of this
// boot; IO; Unreadable for an invalid file, with all of its faults.
func (s Store) Read(poolName string) (File, error) {
	path := s.path(poolName)
	b, err := s.content(ranges(poolName))
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

func notYet(poolName, hint, format string, path string) error {
	return cnierr.New(cnierr.TryAgain, reading, poolName, "check that rocectl agent runs on this node; if it does, "+hint,
		"the node has no addresses of the pool yet: "+format, path)
}

type formError struct{ error }

func (e formError) Unwrap() error { return e.error }

// content reads a file of the agent's folder. The plugin runs with all rights of the node,
// so it follows no link that the agent's container has made.
func (s Store) content(name string) ([]byte, error) {
	b, err := trusted.ReadBelow(s.pools(), name)
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err // the callers name the path
	}
	if errors.Is(err, trusted.ErrIrregular) || errors.Is(err, trusted.ErrTooLong) {
		err = formError{err}
	}
	return b, err
}

// Subnets returns the subnets of each rail, in the form that conf.Request.WithSubnets
// takes. It excludes everything outside of the node's ranges. Otherwise a pod could
// request an address of another node by its number, because a requested address may
// lie outside of ranges.
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

// Pools returns the names of the pools that have a file, in order. The file may be of
// any boot. Errors: IO.
func (s Store) Pools() ([]string, error) {
	entries, err := os.ReadDir(s.pools())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cnierr.New(cnierr.IO, "list the pools in", s.pools(), "", "%w", err)
	}
	var out []string
	for _, e := range entries {
		if _, err := os.Lstat(s.path(e.Name())); err == nil && e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Quarantines returns the quarantine of each RailPool that has a valid file, by the name
// of the pool that has its leases. Errors: IO.
func (s Store) Quarantines() (map[string]time.Duration, error) {
	pools, err := s.Pools()
	out := map[string]time.Duration{}
	for _, name := range pools {
		if f, err := s.Read(name); err == nil { // the readers of a file report its faults
			out[pool.OfRailPool(name)] = f.Quarantine
		}
	}
	return out, err
}
