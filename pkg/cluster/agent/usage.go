// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// meter knows the leases of the node. It reads them when their file has changed.
type meter struct {
	book *ipam.Book
	dir  string
	now  func() time.Duration

	seen   fs.FileInfo // of the file, when it was last looked at
	steady bool        // it was the same twice

	mu      sync.Mutex
	known   bool // the leases were read once
	entries []ipam.Entry
	at      time.Duration // when entries were read
}

// read reads the leases if their file has changed. Only one goroutine may call it.
func (m *meter) read(ctx context.Context) error {
	path := filepath.Join(m.dir, "leases.db")
	now, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cnierr.New(cnierr.IO, "look at", path, "", "%w", err)
	}
	unchanged := m.seen != nil && now != nil && os.SameFile(m.seen, now) && m.seen.ModTime().Equal(now.ModTime()) && m.seen.Size() == now.Size()
	if unchanged && m.steady {
		return nil
	}
	at := m.now()
	entries, err := m.book.List(ctx, "")
	if err != nil {
		return err
	}
	// A write in the same tick of the file system's clock does not change the times
	// of the file. So read reads a file once more when the file has stopped changing.
	m.seen, m.steady = now, unchanged
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries, m.at, m.known = entries, at, true
	return nil
}

// last returns the result of the last read, and its age.
func (m *meter) last() (entries []ipam.Entry, since time.Duration, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries, m.now() - m.at, m.known
}

// usage returns the sum over blocks of a pool, and whether the leases are known. Leases of
// host indexes that were taken out of the pool do not count: the next pod cannot use them.
func (m *meter) usage(name string, s block.Space, blocks []block.Block) (block.Usage, bool) {
	entries, since, known := m.last()
	key := pool.OfRailPool(name)
	open := map[int]bool{} // by slot
	for _, b := range blocks {
		for number := range s.Open(b.Spec.Index) {
			open[number] = true
		}
	}
	leased, quarantined := map[int]bool{}, map[int]bool{}
	for _, e := range entries {
		if !e.Of(key) { // a network may have thousands of others
			continue
		}
		_, number, ok := s.Find(e.Addr)
		switch {
		case !ok || !open[number]:
		case e.InUse():
			leased[number] = true
		case e.Age+since < s.Quarantine():
			quarantined[number] = true
		}
	}
	for number := range leased {
		delete(quarantined, number)
	}
	return block.Usage{Size: len(open), Used: len(leased), Quarantined: len(quarantined), Free: len(open) - len(leased) - len(quarantined)}, known
}
