// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// Event is a change that the kernel told: of a link, of something else in a namespace, or of
// an RDMA device. Unknown says that messages were lost.
type Event struct {
	NSID          int32  // the number of the namespace, for the node's own one -1
	Link          string // the name of a link, "" for everything else
	Gone          bool   // it was removed
	RDMA, Unknown bool
}

// Watcher hears the changes of a node. One socket hears all namespaces, and keeps none of
// them: the RDMA device of a pod comes back when its namespace ends.
type Watcher struct {
	conn          *rtnl.Conn
	network, rdma *listener // rdma is nil if this kernel tells nothing about RDMA devices
	calls         *os.File
}

// Watch opens the sockets, in the namespace of the calling thread. It needs CAP_NET_ADMIN and
// CAP_NET_BROADCAST. The caller must Close the Watcher.
func Watch(file calls.File) (w *Watcher, err error) {
	w = &Watcher{}
	defer func() {
		if err != nil {
			w.Close()
			err = cnierr.New(cnierr.IO, "listen to the kernel", "", netns.NeedsRoot, "%w", err)
		}
	}()
	if w.conn, err = rtnl.Dial(); err != nil {
		return w, err
	}
	if w.network, err = listenNetwork(); err != nil {
		return w, err
	}
	if w.rdma, err = listen(unix.NETLINK_RDMA, groupNotify); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPROTONOSUPPORT) {
		return w, err
	}
	w.calls, err = watch(file.Dir)
	return w, err
}

// Close ends Run.
func (w *Watcher) Close() {
	if w.conn != nil {
		w.conn.Close()
	}
	w.network.close()
	w.rdma.close()
	if w.calls != nil {
		_ = w.calls.Close()
	}
}

// Number is Config's.
func (w *Watcher) Number(ctx context.Context, path string, id netns.ID) (int32, error) {
	n, err := netns.Open(netns.Find(path, id))
	if err != nil {
		return own, err
	}
	defer n.Close()
	return w.conn.GiveNSID(ctx, n.FD())
}

// Run passes everything that it hears to a healer until the Watcher is closed.
func (w *Watcher) Run(ctx context.Context, h *Healer) {
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nsid, msgs, err := w.network.next()
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				h.Note(Event{Unknown: true})
				continue
			}
			for _, m := range msgs {
				h.Note(changeOf(nsid, m))
			}
		}
	})
	if w.rdma != nil {
		all.Go(func() {
			for {
				if _, _, err := w.rdma.next(); errors.Is(err, os.ErrClosed) {
					return
				}
				h.Note(Event{RDMA: true})
			}
		})
	}
	all.Go(func() {
		for {
			if err := changed(w.calls); err != nil {
				return
			}
			h.Called(ctx)
		}
	})
	all.Wait()
}

// watch opens an inotify descriptor that tells of writes to files in a folder.
func watch(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, "calls"))
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY); err != nil {
		return nil, errors.Join(&os.PathError{Op: "watch", Path: dir, Err: err}, f.Close())
	}
	return f, nil
}

// changed waits until the file of the calls was written to. Names end with a zero
// (inotify(7)).
func changed(f io.Reader) error {
	b := make([]byte, 64<<10)
	for {
		n, err := f.Read(b)
		if err != nil || bytes.Contains(b[:n], []byte("calls\x00")) {
			return err
		}
	}
}
