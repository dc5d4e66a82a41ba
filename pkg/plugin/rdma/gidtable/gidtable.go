// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package gidtable reads the GID table of a port of an RDMA device from sysfs.
//
// It changes nothing. The name of an entry's interface is valid only in its own
// namespace: the interface of every pod is net1. So a name alone does not say that an
// entry is that of a pod. Package rdma uses it and knows the devices. Read this file
// first, then own.go for which entry is that of a pod.
package gidtable

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// The types of an Entry, as sysfs calls them (gid_type_str). RoCE v2 is on UDP and
// can be routed. RoCE v1 has entries of the same GIDs, and its type is also that of
// InfiniBand.
const (
	RoCEv1 = "IB/RoCE v1"
	RoCEv2 = "RoCE v2"
)

// Entry is an entry of a GID table that is in use.
type Entry struct {
	Index  int
	GID    netip.Addr // an IPv4 address that is mapped into IPv6 is unmapped
	Type   string     // RoCEv2, RoCEv1
	Netdev string     // its name in its own namespace; "" when it has none
}

// Table is the GID table of a port. Linux 6.18 has no netlink message for it, and the
// ioctl needs a context of the driver (ib_uverbs_get_ucontext).
type Table struct {
	sys fs.FS
	dir string
}

// New returns the table of a port. sys is the root of sysfs, as the namespace of the
// device sees it.
func New(sys fs.FS, device string, port uint32) Table {
	return Table{sys, fmt.Sprintf("class/infiniband/%s/ports/%d", device, port)}
}

// ErrNone means that a port has no table: there is no such device.
var ErrNone = errors.New("no GID table")

// errEnd is returned for the index after the last one.
var errEnd = errors.New("the table has no such index")

// port is the folder of a port, open while its table is read.
type port struct {
	Table
	folder fs.File
}

func (t Table) open() (port, error) {
	folder, err := t.sys.Open(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return port{}, fmt.Errorf("%w in /sys/%s", ErrNone, t.dir)
	}
	return port{t, folder}, err
}

// gid returns the GID at an index. It returns the zero value if the index is unused.
func (p port) gid(place int) (netip.Addr, error) {
	b, err := p.read("gids/" + strconv.Itoa(place))
	if errors.Is(err, fs.ErrNotExist) {
		return netip.Addr{}, errEnd
	}
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(b)
	if err != nil {
		return netip.Addr{}, err
	}
	if a == netip.IPv6Unspecified() {
		return netip.Addr{}, nil
	}
	return a.Unmap(), nil
}

// kind returns the type of an entry; "" if it was removed meanwhile: the read fails with
// EINVAL (show_port_gid_attr_gid_type).
func (p port) kind(place int) string { return p.attribute("types", place) }

// netdev returns the interface of an entry, by its name in its own namespace.
func (p port) netdev(place int) string { return p.attribute("ndevs", place) }

func (p port) attribute(folder string, place int) string {
	b, err := p.read("gid_attrs/" + folder + "/" + strconv.Itoa(place))
	if err != nil {
		return ""
	}
	return b
}

// read reads a file of one line. It uses one read, because sysfs gives the whole file at
// once.
func (p port) read(name string) (string, error) {
	var line [64]byte // a GID needs 40
	n, err := p.readInto(line[:], name)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(line[:n])), nil
}

func (p port) readInto(line []byte, name string) (int, error) {
	if folder, ok := p.folder.(*os.File); ok {
		return readAt(folder, name, line)
	}
	f, err := p.sys.Open(p.dir + "/" + name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Read(line)
}

// readAt reads a file below a folder. Package os needs seven system calls in place of three,
// and sysfs follows the links of the whole path: that takes three times as long.
func readAt(folder *os.File, name string, into []byte) (int, error) {
	failed := func(op string, err error) error {
		return &fs.PathError{Op: op, Path: folder.Name() + "/" + name, Err: err}
	}
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, failed("open", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written to it
	n, err := unix.Read(fd, into)
	if err != nil {
		return 0, failed("read", err)
	}
	return n, nil
}

// places calls fn with each index and its GID, until the end of the table or until fn
// returns false.
func (t Table) places(fn func(p port, place int, gid netip.Addr) bool) error {
	p, err := t.open()
	if err != nil {
		return err
	}
	defer p.folder.Close()
	for i := 0; ; i++ {
		gid, err := p.gid(i)
		if errors.Is(err, errEnd) && i > 0 {
			return nil
		}
		if errors.Is(err, errEnd) {
			return fmt.Errorf("%w in /sys/%s", ErrNone, t.dir)
		}
		if err != nil {
			return fmt.Errorf("index %d: %w", i, err)
		}
		if !fn(p, i, gid) {
			return nil
		}
	}
}

// Before returns the entries with an index below limit, as Entries does, and the size
// of the table, or limit if the table is larger.
func (t Table) Before(limit int) ([]Entry, int, error) {
	var out []Entry
	size := 0
	err := t.places(func(p port, place int, gid netip.Addr) bool {
		size = place + 1
		if gid.IsValid() {
			out = append(out, Entry{Index: place, GID: gid, Type: p.kind(place), Netdev: p.netdev(place)})
		}
		return size < limit
	})
	return out, size, err
}

// Entries returns all entries of the table in order, and the size of the table. It
// reads one file for each index, and two more for each entry. Errors: ErrNone; those
// of sysfs as they are.
func (t Table) Entries() ([]Entry, int, error) { return t.Before(math.MaxInt) }

// Full says whether a table has less than two free places. It reads one file for each index up
// to the second free one. Errors are those of Entries.
func (t Table) Full() (bool, error) {
	free := 0
	err := t.places(func(_ port, _ int, gid netip.Addr) bool {
		if !gid.IsValid() {
			free++
		}
		return free < 2
	})
	return free < 2, err
}

// Merge joins the entries that two namespaces see of one table, and says whether they see
// different GID indexes in use. The upstream kernel shows all namespaces the same entries.
// With NVIDIA's driver (MLNX_OFED, DOCA-OFED) an entry reads as zero, like an unused index,
// if its interface is in another namespace than the reading thread
// (rdma_check_gid_user_access).
func Merge(a, b []Entry) (all []Entry, differ bool) {
	at := map[int]Entry{}
	for _, e := range a {
		at[e.Index] = e
	}
	for _, e := range b {
		if at[e.Index].Netdev == "" { // an entry that is being added or removed has no interface
			at[e.Index] = e
		}
	}
	for _, i := range slices.Sorted(maps.Keys(at)) {
		all = append(all, at[i])
	}
	return all, len(all) != len(a) || len(all) != len(b)
}

// Of returns the RoCE v2 entries of an address that have an interface. An entry that
// the kernel is removing has none.
func Of(entries []Entry, addr netip.Addr) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool {
		return e.GID != addr || e.Type != RoCEv2 || e.Netdev == ""
	})
}

// Width returns how many entries an address takes in a table: one if the NIC has RoCE v2
// alone, or two. A table without entries does not tell, so it is two.
func Width(entries []Entry) int {
	if len(entries) == 0 || slices.ContainsFunc(entries, func(e Entry) bool { return e.Type == RoCEv1 }) {
		return 2
	}
	return 1
}

// Room says how many more pods free entries are enough for. width is how many entries
// an address takes. A pod with IPv6 has three addresses, because its link-local address
// counts.
func Room(free, width int) string {
	return fmt.Sprintf("room for %d more pods with one IPv4 address, or for %d with an IPv6 address too", free/width, free/(3*width))
}

// Fill says how full a table is, and who has the most entries: an owner of the address, or
// else an interface. The interfaces of all pods can have one name.
func Fill(entries []Entry, size int, owners map[netip.Addr]string) string {
	var v4 int
	of := map[string]int{}
	for _, e := range entries {
		of[cmp.Or(owners[e.GID], e.Netdev, "no interface")]++
		if e.GID.Is4() {
			v4++
		}
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(of[b]-of[a], cmp.Compare(a, b))
	})
	var parts []string
	const most = 3
	others := len(entries)
	for _, o := range names[:min(len(names), most)] {
		parts = append(parts, fmt.Sprintf("%s has %d", o, of[o]))
		others -= of[o]
	}
	if others > 0 {
		parts = append(parts, fmt.Sprintf("%d others have %d", len(names)-most, others))
	}
	out := fmt.Sprintf("%d of %d entries are used, %d by IPv4 addresses", len(entries), size, v4)
	if len(parts) == 0 {
		return out
	}
	return out + ": " + cnierr.Some(parts)
}
