// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// world is a node that was recorded, of which each part can be changed.
type world struct {
	t        *testing.T
	files    fstest.MapFS
	targets  map[string]string // of symbolic links
	denied   []string          // files that cannot be read
	links    []rtnl.Link
	vfs      []rtnl.VF // of the first NIC
	linksErr error
	rdma     nldev.System
	rdmaErr  error
	chars    map[string][]string
	addrs    map[string]string // of an interface
	addrsErr error
	programs map[string]string // what they print
	pools    nodefile.Store
	leases   *ipam.Book
	now      time.Duration // since the boot
	peers    int
	settings error
	agent    http.HandlerFunc // nil: no process listens

	routes     []rtnl.Route
	routesErr  error
	rules      []rtnl.Rule
	rulesErr   error
	devlink    []*netlink.DevlinkDevice
	devlinkErr error
	drivers    map[string]nic.Driver // of an interface; none: it does not answer
	qos        map[string]nic.QoS
}

// healthy returns a node on which all is well.
func healthy(t *testing.T) *world {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/healthy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &world{
		t: t, files: fstest.MapFS{}, targets: map[string]string{}, chars: map[string][]string{},
		addrs: map[string]string{"ens1f0np0": "172.16.11.1/24", "ens2f0np0": "172.16.12.1/24"},
		programs: map[string]string{
			"nft":                    "",
			"/opt/cni/bin/roce":      buildversion.BuildString("roce") + "\nCNI protocol versions supported: 0.4.0, 1.0.0, 1.1.0\n",
			"/opt/cni/bin/roce-ipam": buildversion.BuildString("roce-ipam") + "\nCNI protocol versions supported: 0.4.0, 1.0.0, 1.1.0\n",
		},
		pools:   nodefile.Store{Dir: dir, BootID: bootID},
		drivers: map[string]nic.Driver{}, qos: map[string]nic.QoS{},
		routes: []rtnl.Route{route("172.20.0.0/16", 2), route("10.233.0.0/18", 9)},
		agent:  func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, "ok") },
	}
	w.leases = ipam.New(ipam.Config{
		Dir: dir, BootID: bootID, Now: func() time.Duration { return w.now }, Observe: netns.Observe, Log: slog.New(slog.DiscardHandler),
	})
	w.pool(0)
	for _, f := range archive.Files {
		w.write(f.Name, string(f.Data))
	}
	for i, name := range []string{"ens1f0np0", "ens2f0np0"} {
		w.links = append(w.links, rtnl.Link{Index: int32(i + 2), Name: name, MTU: 9000, Flags: unix.IFF_UP})
		device := fmt.Sprintf("mlx5_%d", i)
		w.drivers[name] = nic.Driver{Name: "mlx5_core", Version: "6.8.0-60-generic", Firmware: "22.43.2026"}
		w.qos[name] = lossless()
		w.devlink = append(w.devlink, &netlink.DevlinkDevice{
			BusName: "pci", DeviceName: []string{"0000:0b:00.0", "0000:5e:00.0"}[i],
			Attrs: netlink.DevlinkDevAttrs{Eswitch: netlink.DevlinkDevEswitchAttr{Mode: "legacy"}},
		})
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

// lossless has PFC and ECN for priority 3, and DSCP 24 to 31 there, which is how mlx5 maps them.
func lossless() nic.QoS {
	q := nic.QoS{PFC: 1 << 3, ECN: 1 << 3, TellsECN: true}
	for dscp := range q.DSCP {
		q.DSCP[dscp] = 1 << (dscp / 8)
	}
	return q
}

// route returns a route of the node.
func route(dst string, link int32) rtnl.Route {
	return rtnl.Route{Dst: netip.MustParsePrefix(dst), Index: link, Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN}
}

const bootID = "8d5b6a4e-1f6e-4f6b-9f56-0d7c4d1f2a33"

// pool gives the node the pool "gpu", with 20 addresses, of which some are leased, and the
// CIDRs of Services.
func (w *world) pool(leased int) {
	w.t.Helper()
	subnet := netip.MustParsePrefix("172.20.0.0/16")
	owned := netrange.Range{First: netip.MustParseAddr("172.20.0.16"), Last: netip.MustParseAddr("172.20.0.35")}
	err := w.pools.Write(nodefile.File{Pool: "gpu", Quarantine: time.Minute, Rails: [][]pool.Subnet{{{Prefix: subnet, Ranges: []netrange.Range{owned}}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.pools.WriteServices([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}); err != nil {
		w.t.Fatal(err)
	}
	for i := range leased {
		_, err := w.leases.Acquire(w.t.Context(), ipam.Ask{
			Pool:    pool.OfRailPool("gpu"),
			Subnets: []ipam.Subnet{{Prefix: subnet, Ranges: []netrange.Range{owned}}},
			Owner:   ipam.Owner{ContainerID: fmt.Sprint("c", i), IfName: "net1", Network: "rails"},
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// end releases the addresses of so many pods of pool. They rest then.
func (w *world) end(pods int) {
	w.t.Helper()
	for i := range pods {
		if err := w.leases.Release(w.t.Context(), ipam.Key{ContainerID: fmt.Sprint("c", i), IfName: "net1", Network: "rails"}, netns.Ref{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// setAside has addresses that interfaces of pods without record have.
func (w *world) setAside(addrs ...string) {
	w.t.Helper()
	store := ledger.Store{Dir: w.pools.Dir, BootID: bootID, Now: func() time.Duration { return w.now }}
	err := store.Update(w.t.Context(), func(l *ledger.Ledger) error {
		for _, a := range addrs {
			l.SetAside(ledger.Aside{Addr: netip.MustParseAddr(a)})
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// spoil puts a file that cannot be read as what it should be into the state folder, in
// place of what is there.
func (w *world) spoil(name string) {
	w.t.Helper()
	path := filepath.Join(w.pools.Dir, name)
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, []byte("neither database nor folder"), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

// withoutServices is an agent that does not know the CIDRs of Services.
func (w *world) withoutServices() {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.pools.Dir, "pools", "_services")); err != nil {
		w.t.Fatal(err)
	}
}

// listen starts the agent and returns where it tells its health.
func (w *world) listen() string {
	s := httptest.NewServer(w.agent)
	w.t.Cleanup(s.Close)
	if w.agent == nil {
		s.Close()
	}
	return s.URL + "/healthz"
}

// node returns the node for a check.
func (w *world) node() Node {
	root := rooted{recordedFS{w.files, w.denied, w.targets}, "/"}
	return Node{
		Root: root, Settings: w.settings,
		Sysctl: func(name string) (string, error) {
			if !strings.Contains(name, "/") {
				name = strings.ReplaceAll(name, ".", "/")
			}
			b, err := fs.ReadFile(root, "proc/sys/"+name)
			return strings.TrimSpace(string(b)), err
		},
		CharDevices: func(device string) []string { return w.chars[device] },
		Addrs: func(context.Context) (out []rtnl.Address, err error) {
			for _, l := range w.links {
				if a, err := netip.ParsePrefix(w.addrs[l.Name]); err == nil {
					out = append(out, rtnl.Address{Index: l.Index, Prefix: a})
				}
			}
			return out, w.addrsErr
		},
		VFs: func(_ context.Context, pf string) ([]rtnl.VF, error) {
			if i := slices.IndexFunc(w.links, func(l rtnl.Link) bool { return l.Kind == "" }); pf != w.links[i].Name {
				return nil, nil
			}
			return w.vfs, nil
		},
		Run: func(_ context.Context, program string, _ ...string) (string, error) {
			out, there := w.programs[program]
			if !there {
				return "", exec.ErrNotFound
			}
			return out, nil
		},
		Pools: w.pools, Leases: w.leases, Records: w.records(), Peers: w.peers, AgentURL: w.listen(),
		Links:   func(context.Context) ([]rtnl.Link, error) { return w.links, w.linksErr },
		Routes:  func(context.Context) ([]rtnl.Route, error) { return w.routes, w.routesErr },
		Rules:   func(context.Context) ([]rtnl.Rule, error) { return w.rules, w.rulesErr },
		Devlink: func() ([]*netlink.DevlinkDevice, error) { return w.devlink, w.devlinkErr },
		Driver: func(netdev string) (nic.Driver, error) {
			d, there := w.drivers[netdev]
			if !there {
				return d, errRefused
			}
			return d, nil
		},
		QoS: func(netdev string) (nic.QoS, error) {
			q, there := w.qos[netdev]
			if !there {
				return q, errRefused
			}
			return q, nil
		},
		RDMA: func(context.Context) (nldev.System, error) { return w.rdma, w.rdmaErr },
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

// restore puts a file back as it is on the healthy node.
func (w *world) restore(name string) {
	w.t.Helper()
	f, there := healthy(w.t).files[name]
	if !there {
		w.t.Fatalf("the healthy node has no %s", name)
	}
	w.files[name] = f
}

// release frees the addresses of pool, as when its pods and the quarantine have ended.
func (w *world) release() {
	w.t.Helper()
	entries, err := w.leases.List(w.t.Context(), pool.OfRailPool("gpu"))
	for _, e := range entries {
		err = errors.Join(err, w.leases.ReleaseAddress(w.t.Context(), pool.OfRailPool("gpu"), e.Addr))
	}
	w.now += time.Hour
	if err != nil {
		w.t.Fatal(err)
	}
}

// deny makes a file, or a folder with all that is in it, unreadable.
func (w *world) deny(name string) { w.denied = append(w.denied, name) }

// gpu gives the node the driver of NVIDIA's GPUs. The NICs are on no PCI bus.
func (w *world) gpu() {
	w.write("sys/module/nvidia/refcnt", "1")
	for _, d := range w.rdma.Devices {
		w.targets["sys/class/infiniband/"+d.Name] = "../../devices/virtual/infiniband/" + d.Name
	}
}

// gids gives a port a table. Its first entries are used: RoCE v1 and
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

// secondPort gives the second device another port, with the interface ens3f0np0.
func (w *world) secondPort() {
	second, dir := nldev.Port{Number: 2, State: nldev.Active, NetdevIndex: 4, Netdev: "ens3f0np0"}, "sys/class/infiniband/mlx5_1/ports/2/"
	w.links = append(w.links, rtnl.Link{Index: 4, Name: second.Netdev, MTU: 9000, Flags: unix.IFF_UP})
	w.rdma.Devices[1].Ports = append(w.rdma.Devices[1].Ports, second)
	w.write(dir+"link_layer", "Ethernet")
	w.write(dir+"rate", "200 Gb/sec (4X HDR)")
	w.write(dir+"gids/0", "0000:0000:0000:0000:0000:0000:0000:0000")
	w.qos[second.Netdev], w.drivers[second.Netdev] = lossless(), w.drivers["ens2f0np0"]
}

// bonded gives the node a bond of its first NICs.
func (w *world) bonded(slaves int) {
	w.links = append(w.links, rtnl.Link{Index: 9, Name: "bond0", Kind: "bond", MTU: 9000, Flags: unix.IFF_UP})
	for i := range slaves {
		w.link(i).SlaveKind, w.link(i).Master = "bond", 9
	}
}

// link returns an interface to change it.
func (w *world) link(i int) *rtnl.Link { return &w.links[i] }

// port returns the first port of a device to change it.
func (w *world) port(device int) *nldev.Port { return &w.rdma.Devices[device].Ports[0] }

// recordedFS refuses what the node does not let its reader see, and knows where links
// go that the recorded tree has as folders.
type recordedFS struct {
	fs.FS
	denied  []string
	targets map[string]string
}

// ReadLink implements fs.ReadLinkFS.
func (d recordedFS) ReadLink(name string) (string, error) {
	target, there := d.targets[name]
	if !there {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return target, nil
}

// Lstat implements fs.ReadLinkFS.
func (d recordedFS) Lstat(name string) (fs.FileInfo, error) { return fs.Stat(d, name) }

func (d recordedFS) Open(name string) (fs.File, error) {
	if slices.ContainsFunc(d.denied, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.FS.Open(name)
}

var errRefused = errors.New("operation not permitted")

// answers runs all checks.
func (w *world) answers() []report.Answer {
	return slices.Collect(Run(w.t.Context(), w.node(), Checks()))
}
