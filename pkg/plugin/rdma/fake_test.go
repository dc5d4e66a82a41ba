// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// node is the RDMA subsystem of a kernel: it answers the messages of nldev as
// Linux does, for the namespaces of a host and of one pod. Soft-RoCE in
// integration/vm shows that Linux does so.
type node struct {
	exclusive bool
	noRDMA    bool
	devices   []*hca
	entered   bool  // the calling thread is in the pod's namespace
	refuse    error // what a move ends with
	deaf      error // what the question about the mode ends with
	trips     int
	files     string // sysfs and configfs, which the two namespaces share here
	opened    int    // sockets and mounts that are not closed
	failAt    int    // which call from now on ends with an error; 0: none
}

// call returns the error of a call of the kernel that fails.
func (n *node) call() error {
	if n.failAt == 0 {
		return nil
	}
	if n.failAt--; n.failAt == 0 {
		return unix.EIO
	}
	return nil
}

// hca is a device of a node.
type hca struct {
	nldev.Device
	in   plan.Place // elsewhere: neither
	qps  []nldev.Resource
	back time.Time // when the kernel brings it back to the host; zero: never
}

// where returns the namespace that has the device now.
func (h *hca) where() plan.Place {
	if !h.back.IsZero() && !time.Now().Before(h.back) {
		return plan.Host
	}
	return h.in
}

const elsewhere plan.Place = 2

// roce returns a device with one active port on a network interface.
func roce(index uint32, name string, netdev int32, ndev string) *hca {
	return &hca{in: plan.Host, Device: nldev.Device{
		Index: index, Name: name, GUID: fmt.Sprintf("5054:00ff:fe00:%04x", index), Protocol: "roce",
		Ports: []nldev.Port{{Number: 1, State: nldev.Active, NetdevIndex: netdev, Netdev: ndev}},
	}}
}

// device returns the device of a node as a plan has it.
func (h *hca) device() plan.RDMADevice {
	return plan.RDMADevice{Name: h.Name, Index: h.Index, GUID: h.GUID, Port: 1}
}

// subsystem returns a Subsystem of the node.
func (n *node) subsystem(t *testing.T, sys fs.FS, change ...func(*Config)) *Subsystem {
	t.Helper()
	c := Config{Sys: sys, Enter: n.enter, Netns: "p", Log: slog.New(slog.DiscardHandler), Proc: fstest.MapFS{}}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	s.c.Dial, s.mount = n.dial, n.mount
	t.Cleanup(func() {
		s.Close()
		if n.opened != 0 {
			t.Errorf("%d sockets and mounts are left open", n.opened)
		}
	})
	return s
}

func podGone(c *Config) { c.Enter = nil }

func (n *node) enter(fn func() error) error {
	if err := n.call(); err != nil {
		return err
	}
	n.entered = true
	defer func() { n.entered = false }()
	return fn()
}

// now returns the namespace of the calling thread.
func (n *node) now() plan.Place {
	if n.entered {
		return plan.Pod
	}
	return plan.Host
}

func (n *node) dial() (*nldev.Conn, error) {
	if n.noRDMA {
		return nil, unix.EPROTONOSUPPORT
	}
	if err := n.call(); err != nil {
		return nil, err
	}
	n.opened++
	return nldev.New(socket{n, n.now()}), nil
}

// mount returns the node's files. Only the namespace that has a device sees it
// in configfs.
func (n *node) mount(fstype string) (tree, error) {
	if n.files == "" {
		return tree{}, unix.ENODEV
	}
	if err := n.call(); err != nil {
		return tree{}, err
	}
	n.opened++
	return tree{path: filepath.Join(n.files, fstype), close: func() { n.opened-- }}, nil
}

// socket is a NETLINK_RDMA socket of one namespace.
type socket struct {
	*node
	side plan.Place
}

func (s socket) Close() { s.opened-- }

func (s socket) Dump(ctx context.Context, r nlsock.Request) ([][]byte, error) {
	s.trips++
	if err := errors.Join(ctx.Err(), s.call()); err != nil {
		return nil, err
	}
	var out [][]byte
	for _, d := range s.devices {
		if r.Type&0x3ff == 10 {
			if args := maps.Collect(nlsock.Attributes(r.Body)); d.Index == nlsock.Number(args[1]) && s.sees(d) {
				out = append(out, attribute(nil, 19, qps(d)))
			}
			continue
		}
		if s.sees(d) {
			out = append(out, row(d))
		}
	}
	return out, nil
}

// qps returns the table of the queue pairs of a device.
func qps(d *hca) []byte {
	var out []byte
	for _, q := range d.qps {
		entry := attribute(nil, 26, []byte{q.Type})
		if q.PID != 0 {
			entry = nlsock.AppendNumber(entry, 28, q.PID)
		}
		if q.Module != "" {
			entry = nlsock.AppendText(entry, 29, q.Module)
		}
		out = attribute(out, 20, entry)
	}
	return out
}

func (s socket) sees(d *hca) bool { return !s.exclusive || d.where() == s.side }

func (s socket) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	s.trips++
	if err := errors.Join(ctx.Err(), s.call()); err != nil {
		return nil, err
	}
	var out []nlsock.Reply
	for _, r := range reqs {
		out = append(out, s.answer(r))
	}
	return out, nil
}

// attribute appends an attribute of any size.
func attribute(b []byte, typ uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, make([]byte, -len(b)&3)...)
}

func row(d *hca) []byte {
	b := nlsock.AppendText(nlsock.AppendNumber(nil, 1, d.Index), 2, d.Name)
	guid, err := strconv.ParseUint(strings.ReplaceAll(d.GUID, ":", ""), 16, 64)
	if err != nil {
		panic(err)
	}
	b = attribute(b, 6, binary.NativeEndian.AppendUint64(nil, guid))
	b = nlsock.AppendNumber(b, 3, uint32(len(d.Ports)))
	return nlsock.AppendText(b, 67, d.Protocol)
}

// answer serves a request. Its number is in the low bits of the type.
func (s socket) answer(r nlsock.Request) nlsock.Reply {
	args := map[uint16][]byte{}
	for typ, v := range nlsock.Attributes(r.Body) {
		args[typ] = v
	}
	if r.Type&0x3ff == 6 {
		mode := byte(1)
		if s.exclusive {
			mode = 0
		}
		return nlsock.Reply{Rows: [][]byte{attribute(nil, 66, []byte{mode})}, Err: s.deaf}
	}
	for _, d := range s.devices {
		if d.Index != nlsock.Number(args[1]) || !s.sees(d) {
			continue
		}
		if r.Type&0x3ff == 5 {
			return nlsock.Reply{Rows: [][]byte{s.port(d, nlsock.Number(args[3]))}}
		}
		return nlsock.Reply{Err: s.set(d, args)}
	}
	return nlsock.Reply{Err: unix.EINVAL}
}

// port answers about a port: its interface, the host's, is told only there.
func (s socket) port(d *hca, number uint32) []byte {
	p := d.Ports[number-1]
	b := attribute(nil, 12, []byte{byte(p.State)})
	if p.NetdevIndex == 0 || s.side != plan.Host {
		return b
	}
	return nlsock.AppendText(nlsock.AppendNumber(b, 50, uint32(p.NetdevIndex)), 51, p.Netdev)
}

func (s socket) set(d *hca, args map[uint16][]byte) error {
	if name, ok := args[2]; ok {
		if s.taken(d, nlsock.Text(name), d.where()) {
			return unix.EEXIST
		}
		d.Name = nlsock.Text(name)
		return nil
	}
	switch {
	case !s.exclusive:
		return unix.EOPNOTSUPP
	case s.refuse != nil:
		return s.refuse
	case s.now() != s.side:
		panic("rdma: the thread is not in the namespace of the socket: Linux takes the device from the thread's")
	}
	if s.taken(d, d.Name, plan.Host-d.in) {
		return unix.EEXIST
	}
	d.in = plan.Host - d.in // there are two
	s.reset(d.Name)
	return nil
}

// taken says whether another device of a namespace has a name: Linux 7.3 keeps
// names apart in each namespace.
func (n *node) taken(d *hca, name string, in plan.Place) bool {
	return slices.ContainsFunc(n.devices, func(o *hca) bool { return o != d && o.where() == in && o.Name == name })
}

// reset makes the type of service of a device what it is for a new port.
func (n *node) reset(device string) {
	if n.files == "" {
		return
	}
	if err := os.WriteFile(n.tosFile(device), []byte("0\n"), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) { // /dev/full refuses what is written
		panic(err)
	}
}

// write puts a text into a file of the settings.
func (n *node) write(file, text string) {
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		panic(err)
	}
}

func (n *node) tosFile(device string) string {
	return filepath.Join(n.files, "configfs/rdma_cm", device, "ports/1/default_roce_tos")
}

func (n *node) classFile(device string) string {
	return filepath.Join(n.files, "sysfs/class/infiniband", device, "tc/1/traffic_class")
}

// withSettings gives the node files of the settings of a device.
func (n *node) withSettings(t *testing.T, device, tos, class string) {
	t.Helper()
	n.files = t.TempDir()
	for name, text := range map[string]string{n.tosFile(device): tos, n.classFile(device): class} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must(t, os.WriteFile(name, []byte(text+"\n"), 0o600))
	}
}

// sysfs returns the files of GID tables: one entry "GID TYPE NETDEV" for each
// place, "" for a free one.
func sysfs(device string, places ...string) fstest.MapFS {
	sys := fstest.MapFS{}
	dir := "class/infiniband/" + device + "/ports/1/"
	for i, e := range places {
		gid, rest, _ := strings.Cut(e, " ")
		if e == "" {
			gid = strings.Repeat("0000:", 7) + "0000"
		}
		sys[dir+"gids/"+strconv.Itoa(i)] = &fstest.MapFile{Data: []byte(gid + "\n")}
		if kind, netdev, ok := strings.Cut(rest, ","); ok {
			sys[dir+"gid_attrs/types/"+strconv.Itoa(i)] = &fstest.MapFile{Data: []byte(kind + "\n")}
			sys[dir+"gid_attrs/ndevs/"+strconv.Itoa(i)] = &fstest.MapFile{Data: []byte(netdev + "\n")}
		}
	}
	return sys
}

func merge(all ...fstest.MapFS) fstest.MapFS {
	out := fstest.MapFS{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

func symlink(target string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
}

// counting counts the files that are opened and the links that are read.
type counting struct {
	fstest.MapFS
	n *int
}

func (c counting) Open(name string) (fs.File, error) {
	*c.n++
	return c.MapFS.Open(name)
}

func (c counting) ReadLink(name string) (string, error) {
	*c.n++
	return c.MapFS.ReadLink(name)
}

// ReadFile counts as one.
func (c counting) ReadFile(name string) ([]byte, error) {
	*c.n++
	return c.MapFS.ReadFile(name)
}

func (c counting) ReadDir(name string) ([]fs.DirEntry, error) {
	*c.n++
	return c.MapFS.ReadDir(name)
}

// changing is one file system until a time, and then another.
type changing struct {
	before, after fs.FS
	at            time.Time
}

func (c changing) Open(name string) (fs.File, error) {
	if time.Now().Before(c.at) {
		return c.before.Open(name)
	}
	return c.after.Open(name)
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
