// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package uverbs opens an RDMA device as programs do, but without their library: it gets the
// device's events, and asks for its GID table.
//
// It makes nothing on the device. What it opens ends with the process. The numbers are those
// of include/uapi/rdma: ib_user_verbs.h, rdma_user_ioctl_cmds.h and ib_user_ioctl_cmds.h.
package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// Device is an open device file.
type Device struct{ file, events int }

// requests are what the libraries of drivers send when a program opens a device. A driver
// refuses what is not its own with EINVAL.
func requests() [][]byte {
	mlx5 := make([]byte, 32) // mlx5_ib_alloc_ucontext_req_v2
	mlx5[0] = 16             // total_num_bfregs
	irdma := make([]byte, 8) // irdma_alloc_ucontext_req
	irdma[4] = 5             // userspace_ver
	return [][]byte{nil, mlx5, irdma}
}

// Open opens a device file, such as /dev/infiniband/uverbs0. The caller must Close it.
func Open(name string) (*Device, error) {
	file, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	for _, request := range requests() {
		var events int
		if events, err = context(file, request); err == nil {
			return &Device{file, events}, nil
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	_ = unix.Close(file) // nothing was made with it
	return nil, fmt.Errorf("use %s without the library of its driver: %w", name, err)
}

// context makes a context of the driver, and returns the file that has the events
// (IB_USER_VERBS_CMD_GET_CONTEXT, which is 0).
func context(file int, request []byte) (events int, err error) {
	out := make([]byte, 512) // the driver adds a part of its own
	var pin runtime.Pinner
	defer pin.Unpin()
	b := make([]byte, 4, 16+len(request))
	b = binary.NativeEndian.AppendUint16(b, uint16(cap(b)/4))
	b = binary.NativeEndian.AppendUint16(b, uint16(len(out)/4))
	b = binary.NativeEndian.AppendUint64(b, address(&pin, out))
	if _, err := unix.Write(file, append(b, request...)); err != nil {
		return 0, err
	}
	return int(binary.NativeEndian.Uint32(out)), nil
}

// address returns the address of a buffer, for the kernel.
func address(pin *runtime.Pinner, b []byte) uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b)) //nolint:gosec // it is pinned while the kernel has it
	pin.Pin(p)
	return uint64(uintptr(p))
}

// Close closes the device.
func (d *Device) Close() {
	_ = unix.Close(d.events) // nothing was written to them
	_ = unix.Close(d.file)
}

// GIDChange is the event for an entry of a GID table that comes or goes (IB_EVENT_GID_CHANGE).
const GIDChange = 18

// Next waits for the next event, at most for a time, and returns its kind (enum
// ib_event_type). came is false if none came.
func (d *Device) Next(wait time.Duration) (kind uint32, came bool, err error) {
	poll := []unix.PollFd{{Fd: int32(d.events), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(wait.Milliseconds()))
	if errors.Is(err, unix.EINTR) { // the runtime of Go sends signals to its threads
		return d.Next(wait)
	}
	if n == 0 || err != nil {
		return 0, false, err
	}
	event := make([]byte, 16) // ib_uverbs_async_event_desc
	_, err = unix.Read(d.events, event)
	return binary.NativeEndian.Uint32(event[8:]), err == nil, err
}

// Entry is an entry of a GID table, as programs get it.
type Entry struct {
	Index  int
	GID    netip.Addr // an IPv4 address that is mapped into IPv6 is unmapped
	Type   string     // as gidtable.Entry has it
	Netdev int32      // the index of its interface in the namespace of that
}

const (
	entrySize = 32   // ib_uverbs_gid_entry
	most      = 2000 // entries: the size of an answer has 16 bits
)

func parse(b []byte) (port uint32, e Entry) {
	e.GID = netip.AddrFrom16([16]byte(b)).Unmap()
	e.Index, port = int(binary.NativeEndian.Uint32(b[16:])), binary.NativeEndian.Uint32(b[20:])
	e.Type, e.Netdev = gidtable.RoCEv1, int32(binary.NativeEndian.Uint32(b[28:]))
	if binary.NativeEndian.Uint32(b[24:]) == 2 { // IB_UVERBS_GID_TYPE_ROCE_V2
		e.Type = gidtable.RoCEv2
	}
	return port, e
}

// Table returns the GID table of a port, in one call (UVERBS_METHOD_QUERY_GID_TABLE).
func (d *Device) Table(port uint32) (out []Entry, err error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	entries, n := make([]byte, most*entrySize), make([]byte, 8)
	err = d.query(5, number(0, entrySize), answer(&pin, 2, entries), answer(&pin, 3, n))
	for i := range int(binary.NativeEndian.Uint64(n)) {
		if p, e := parse(entries[i*entrySize:]); p == port {
			out = append(out, e)
		}
	}
	return out, err
}

// Entry returns one entry (UVERBS_METHOD_QUERY_GID_ENTRY). Errors: ENODATA if it is unused.
func (d *Device) Entry(port uint32, index int) (Entry, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	b := make([]byte, entrySize)
	err := d.query(6, number(0, uint64(port)), number(1, uint64(index)), number(2, 0), answer(&pin, 3, b))
	_, e := parse(b)
	return e, err
}

// call is ib_uverbs_ioctl_hdr.
type call struct {
	length, object, method, count uint16
	_                             uint64
	driver, _                     uint32
	attrs                         [4]attr
}

// attr is ib_uverbs_attr.
type attr struct {
	id, length, flags, _ uint16
	data                 uint64
}

const mandatory = 1 // UVERBS_ATTR_F_MANDATORY

func number(id uint16, n uint64) attr { return attr{id: id, length: 8, flags: mandatory, data: n} }

func answer(pin *runtime.Pinner, id uint16, b []byte) attr {
	return attr{id: id, length: uint16(len(b)), flags: mandatory, data: address(pin, b)}
}

const (
	verbsIOCTL = 0xc0181b01 // RDMA_VERBS_IOCTL
	drivers    = 64         // more than enum rdma_driver_id has
)

// query calls a method of UVERBS_OBJECT_DEVICE, which is 0. A call names the driver of the
// device, or it is EINVAL. Only the driver's library knows the number, so this tries all.
func (d *Device) query(method uint16, attrs ...attr) error {
	c := call{method: method, count: uint16(len(attrs))}
	c.length = uint16(unsafe.Offsetof(c.attrs)) + c.count*uint16(unsafe.Sizeof(attr{}))
	copy(c.attrs[:], attrs)
	for ; c.driver < drivers; c.driver++ {
		_, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(d.file), verbsIOCTL, uintptr(unsafe.Pointer(&c))) //nolint:gosec // as ioctl(2) has it
		if err == 0 {
			return nil
		}
		if err != unix.EINVAL {
			return err
		}
	}
	return unix.EINVAL
}
