// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/rdma/nldev"
)

// world is a node that was recorded, of which each part can be changed.
type world struct {
	t        *testing.T
	files    fstest.MapFS
	denied   []string // files that cannot be read
	links    []netlink.Link
	linksErr error
	rdma     nldev.System
	rdmaErr  error
	chars    map[string][]string
}

// healthy returns a node on which all is well.
func healthy(t *testing.T) *world {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/healthy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, files: fstest.MapFS{}, chars: map[string][]string{}}
	for _, f := range archive.Files {
		w.write(f.Name, string(f.Data))
	}
	for i, name := range []string{"ens1f0np0", "ens2f0np0"} {
		w.links = append(w.links, &netlink.Device{LinkAttrs: netlink.LinkAttrs{
			Index: i + 2, Name: name, MTU: 9000, Flags: net.FlagUp, OperState: netlink.OperUp,
		}})
		device := fmt.Sprintf("mlx5_%d", i)
		w.rdma.Devices = append(w.rdma.Devices, nldev.Device{
			Index: uint32(i), Name: device, Protocol: roce,
			Ports: []nldev.Port{{Number: 1, State: nldev.Active, NetdevIndex: int32(i + 2), Netdev: name}},
		})
		for _, file := range []string{"uverbs", "umad", "issm"} {
			w.chars[device] = append(w.chars[device], fmt.Sprintf("/dev/infiniband/%s%d", file, i))
		}
		w.chars[device] = append(w.chars[device], "/dev/infiniband/rdma_cm")
		w.gids(device, 256, 4)
	}
	return w
}

// node returns the node for a check.
func (w *world) node() Node {
	root := deniedFS{w.files, w.denied}
	return Node{
		Root: root,
		Sysctl: func(name string) (string, error) {
			b, err := fs.ReadFile(root, "proc/sys/"+strings.ReplaceAll(name, ".", "/"))
			return strings.TrimSpace(string(b)), err
		},
		CharDevices: func(device string) []string { return w.chars[device] },
		Links:       func() ([]netlink.Link, error) { return w.links, w.linksErr },
		RDMA:        func(context.Context) (nldev.System, error) { return w.rdma, w.rdmaErr },
	}
}

func (w *world) write(name, content string) { w.files[name] = &fstest.MapFile{Data: []byte(content)} }

// remove removes a file, or a folder with all that is in it.
func (w *world) remove(name string) {
	w.t.Helper()
	before := len(w.files)
	for f := range w.files {
		if f == name || strings.HasPrefix(f, name+"/") {
			delete(w.files, f)
		}
	}
	if len(w.files) == before {
		w.t.Fatalf("the node has no %s", name)
	}
}

// deny makes a file, or a folder with all that is in it, unreadable.
func (w *world) deny(name string) { w.denied = append(w.denied, name) }

// gids gives a port a table, of whose entries the first ones are used: RoCE v1 and
// v2 by turns, as mlx5 has them.
func (w *world) gids(device string, size, used int) {
	dir := "sys/class/infiniband/" + device + "/ports/1/"
	maps.DeleteFunc(w.files, func(name string, _ *fstest.MapFile) bool {
		return strings.HasPrefix(name, dir+"gids/") || strings.HasPrefix(name, dir+"gid_attrs/")
	})
	for i := range size {
		gid := "0000:0000:0000:0000:0000:0000:0000:0000"
		if i < used {
			gid = fmt.Sprintf("0000:0000:0000:0000:0000:ffff:ac10:%04x", i/2+1)
			w.write(fmt.Sprintf("%sgid_attrs/types/%d", dir, i), []string{"IB/RoCE v1", "RoCE v2"}[i%2])
		}
		w.write(fmt.Sprintf("%sgids/%d", dir, i), gid)
	}
}

// link returns an interface to change it.
func (w *world) link(i int) *netlink.LinkAttrs { return w.links[i].Attrs() }

// port returns the first port of a device to change it.
func (w *world) port(device int) *nldev.Port { return &w.rdma.Devices[device].Ports[0] }

// deniedFS refuses what the node does not let its reader see.
type deniedFS struct {
	fs.FS
	denied []string
}

func (d deniedFS) Open(name string) (fs.File, error) {
	if slices.ContainsFunc(d.denied, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.FS.Open(name)
}

var errRefused = errors.New("operation not permitted")

// answers runs all checks.
func (w *world) answers() []Answer { return slices.Collect(Run(w.t.Context(), w.node(), Checks())) }
