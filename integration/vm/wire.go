// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
)

// Wire joins the NICs of machines as a hub does: each gets what the others send, and
// never its own frames back. It loses the frames of a machine that does not read
// them, so a machine that is booting does not stop the others. The zero Wire is
// ready.
type Wire struct {
	mu    sync.Mutex
	ports []*port
}

// port is a NIC on the wire. QEMU's stream of frames has the length before
// each, in four bytes.
type port struct {
	conn  net.Conn
	queue chan []byte
}

// A burst of RoCE at MTU 4096 fits in.
const queueLen = 1024

// join adds a NIC and returns QEMU's end of its cable. The port is gone when
// that is closed everywhere.
func (w *Wire) join() (*os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "wire"), os.NewFile(uintptr(fds[1]), "wire")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	p := &port{conn: conn, queue: make(chan []byte, queueLen)}
	w.mu.Lock()
	w.ports = append(w.ports, p)
	w.mu.Unlock()
	go p.write()
	go func() {
		p.read(w)
		w.leave(p)
	}()
	return theirs, nil
}

// read hands the port's frames to the others until the cable is cut.
func (p *port) read(w *Wire) {
	in := bufio.NewReaderSize(p.conn, 1<<16)
	for {
		head, err := in.Peek(4)
		if err != nil {
			return
		}
		frame := make([]byte, 4+int(binary.BigEndian.Uint32(head)))
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		w.send(p, frame)
	}
}

func (w *Wire) send(from *port, frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.ports {
		if p == from {
			continue
		}
		select {
		case p.queue <- frame:
		default:
		}
	}
}

func (w *Wire) leave(p *port) {
	w.mu.Lock()
	w.ports = slices.DeleteFunc(w.ports, func(q *port) bool { return q == p })
	w.mu.Unlock()
	close(p.queue)
}

// write ends when the port has left. What cannot be written is lost, as on a
// cut cable.
func (p *port) write() {
	defer p.conn.Close()
	for frame := range p.queue {
		_, _ = p.conn.Write(frame)
	}
}
