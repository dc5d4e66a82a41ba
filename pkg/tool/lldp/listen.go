// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lldp

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Interval is how often a switch sends a frame unless it is configured otherwise (IEEE
// 802.1AB, msgTxInterval).
const Interval = 30 * time.Second

// frameLimit is the most bytes of a frame that we read.
const frameLimit = 9216

// nearest is the group address of LLDP that no switch forwards.
func nearest() [6]byte { return [6]byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e} }

// Listen returns the neighbours of links in the network namespace of the calling thread,
// by the names of the links. It returns when it has one of each link, or when the context
// ends, which is no error. A link that is down, or on which no switch sends LLDP, has
// none. Each link has a packet socket until Listen returns. The errors are about single
// links, cnierr.IO: the socket needs CAP_NET_RAW.
func Listen(ctx context.Context, links []string) (map[string]Neighbour, error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	heard, faults := map[string]Neighbour{}, []error{}
	for _, link := range links {
		conn, err := open(link)
		if err != nil {
			mu.Lock()
			faults = append(faults, failed(link, err))
			mu.Unlock()
			continue
		}
		all.Go(func() {
			defer conn.Close()
			n, err := first(ctx, conn)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				heard[link] = n
			case !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.ENETDOWN):
				faults = append(faults, failed(link, err))
			}
		})
	}
	all.Wait()
	return heard, errors.Join(faults...)
}

// Behind returns the neighbour of all links of a NIC: the slaves of a bond can be on several
// switches, which are named together. It returns nil if none was heard.
func Behind(links []string, heard map[string]Neighbour) *Neighbour {
	var out *Neighbour
	for _, link := range links {
		n, ok := heard[link]
		switch {
		case !ok:
		case out == nil:
			out = &n
		default:
			if n.Switch != out.Switch {
				out.Switch += " + " + n.Switch
			}
			out.Port += " + " + n.Port
		}
	}
	return out
}

// open opens a socket that gets the LLDP frames of a link.
func open(link string) (*packet.Conn, error) {
	index, err := indexOf(link)
	if err != nil {
		return nil, err
	}
	filter, err := bpf.Assemble(lldpAlone())
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(&net.Interface{Index: index, Name: link}, packet.Raw, etherType, &packet.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	if err := join(conn, index); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// indexOf asks for one interface. net.InterfaceByName would dump all of them.
func indexOf(link string) (int, error) {
	r, err := unix.NewIfreq(link)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, err
	}
	return int(r.Uint32()), nil
}

// lldpAlone passes LLDP frames that came from the link. The socket sees no other EtherType, but
// frames to other groups, and what a program on this machine sends.
func lldpAlone() []bpf.Instruction {
	group := nearest()
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 7},
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherType, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0180c200, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(group[4])<<8 | uint32(group[5]), SkipTrue: 1},
		bpf.RetConstant{Val: frameLimit},
		bpf.RetConstant{Val: 0},
	}
}

// join opens the NIC's filter of addresses for the group. The membership ends with the
// socket.
func join(conn *packet.Conn, index int) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	group := nearest()
	m := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group))}
	copy(m.Address[:], group[:])
	joined := errors.New("not run")
	err = rc.Control(func(fd uintptr) {
		joined = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, m)
	})
	return errors.Join(err, joined)
}

// first returns the neighbour of the first frame that names one. The error is
// os.ErrDeadlineExceeded if the context ends before.
func first(ctx context.Context, conn *packet.Conn) (Neighbour, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed socket
	})
	defer stop()
	frame := make([]byte, frameLimit)
	for {
		size, _, err := conn.ReadFrom(frame)
		if err != nil {
			return Neighbour{}, err
		}
		if n, err := Parse(frame[:size]); err == nil {
			return n, nil
		}
	}
}

func failed(link string, err error) error {
	hint := "check that the interface is there: ip link"
	if errors.Is(err, unix.EPERM) {
		hint = "run it as root, or give it CAP_NET_RAW"
	}
	return cnierr.New(cnierr.IO, "listen for LLDP on", link, hint, "%w", err)
}
