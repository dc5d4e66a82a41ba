// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// node is the machine, and the folders that the plugin and libcni have there.
type node struct {
	t     *testing.T
	state string // stateDir
	cache string // libcni's
	pods  int
}

// newNode returns the node, with its devices shared or exclusive: those of Soft-RoCE, or in
// a machine of the type mlx5-like one as usual on each NIC. When the test is over,
// everything must be as it was.
func newNode(t *testing.T, mode string) *node {
	t.Helper()
	if fakes() {
		var list []string
		for i := range rails() {
			list = append(list, fmt.Sprintf("mlx5_%%d=r%d", i))
		}
		reload(t, strings.Join(list, ";"))
	}
	return newNodeOf(t, device(0), mode)
}

// newNodeOf returns the node that has a device.
func newNodeOf(t *testing.T, device, mode string) *node {
	t.Helper()
	needDevice(t, device)
	setMode(t, mode)
	before := machine(t)
	t.Cleanup(func() {
		cnitest.Await(t, "the machine is as it was:\n"+before, func() bool { return machine(t) == before })
	})
	n := &node{t: t, state: stateDir(t), cache: t.TempDir()}
	if _, err := os.Stat(conf.SettingsFile); err == nil {
		t.Fatalf("the machine has settings: %s", conf.SettingsFile)
	}
	t.Cleanup(func() { _ = os.Remove(conf.SettingsFile) })
	t.Cleanup(func() { dropFillers(t) })
	n.settle("")
	return n
}

// settle writes the settings of the node; more is more of its members.
func (n *node) settle(more string) {
	n.t.Helper()
	err := os.MkdirAll(filepath.Dir(conf.SettingsFile), 0o755)
	if err == nil {
		err = os.WriteFile(conf.SettingsFile, fmt.Appendf(nil, `{"version": 1, "stateDir": %q%s}`, n.state, more), 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// stateDir returns a folder for the state of a test, on tmpfs as that of a node.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "roce-test-") //nolint:usetesting // a temporary folder of the test is not below /run
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// setMode sets the mode of the RDMA subsystem. It is refused until the kernel
// has ended the namespaces of the last test.
func setMode(t *testing.T, mode string) {
	t.Helper()
	cnitest.Await(t, "rdma system set netns "+mode, func() bool {
		out, _ := try("rdma", "system")
		if strings.HasPrefix(out, "netns "+mode) {
			return true
		}
		_, err := try("rdma", "system", "set", "netns", mode)
		return err == nil
	})
}

// machine returns what tests may change of the machine: links with their flags
// and IPv4 addresses, namespaces, RDMA devices.
func machine(t *testing.T) string {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(l.Name, " ", l.Flags))
		for _, a := range addrs {
			if strings.Contains(a.String(), ".") { // IPv6 addresses may be tentative
				out = append(out, l.Name+" "+a.String())
			}
		}
	}
	slices.Sort(out)
	out = append(out, entries("/run/netns")...)
	return strings.Join(append(out, entries("/sys/class/infiniband")...), "\n")
}

// entries returns what is in a folder, sorted.
func entries(folder string) []string {
	list, _ := os.ReadDir(folder) // it may not be there
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// devices returns the names of the RDMA devices in a pod's namespace.
func (p *pod) devices(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(run(t, "ip", "netns", "exec", p.Name, "rdma", "dev")) {
		names = append(names, strings.TrimSuffix(strings.Fields(line)[1], ":"))
	}
	slices.Sort(names)
	return names
}

// table is the GID table of an RDMA device: the places by GID, as in
// "0000:0000:0000:0000:0000:ffff:ac10:0a40".
type table map[string][]int

const gidsFolder = "/sys/class/infiniband/%s/ports/1/gids/"

// hides says whether the machine is of the type ofed-view. Its GID files show a
// reader only the entries of its own network namespace.
func hides() bool {
	_, err := os.Stat("/sys/module/ofed_view")
	return err == nil
}

// gids returns the GID table of a device as a namespace sees it, "" for the
// whole table of the host's device.
func gids(t *testing.T, namespace, device string) table {
	t.Helper()
	out := table{}
	if _, err := os.Stat("/sys/class/infiniband/" + device); namespace != "" && err != nil {
		return gidsInside(t, namespace, device) // it has moved there
	}
	if namespace != "" {
		out.readFrom(t, namespace, device)
		return out
	}
	out.read(t, device)
	if !hides() {
		return out
	}
	for _, name := range entries("/run/netns") {
		out.readFrom(t, name, device)
	}
	return out
}

// readFrom adds the entries of a device of the host that a namespace sees. One that a test
// removes has none.
func (t table) readFrom(tb testing.TB, namespace, device string) {
	tb.Helper()
	ns, err := netns.Open("/run/netns/" + namespace)
	if err != nil {
		return
	}
	defer ns.Close()
	err = ns.Enter(func() error {
		t.read(tb, device)
		return nil
	})
	if err != nil {
		tb.Error(err)
	}
}

// read adds the entries of a device that a reader in the namespace of the calling
// thread sees.
func (t table) read(tb testing.TB, device string) {
	tb.Helper()
	for i := 0; ; i++ {
		b, err := os.ReadFile(fmt.Sprintf(gidsFolder, device) + strconv.Itoa(i))
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			return
		}
		if err != nil {
			tb.Errorf("%v", err)
			return
		}
		t.add(strings.TrimSpace(string(b)), i)
	}
}

func gidsInside(t *testing.T, namespace, device string) table {
	t.Helper()
	out := table{}
	list := run(t, "ip", "netns", "exec", namespace, "grep", "-r", ":", fmt.Sprintf(gidsFolder, device))
	for line := range strings.Lines(list) {
		file, gid, _ := strings.Cut(strings.TrimSpace(line), ":")
		place, err := strconv.Atoi(filepath.Base(file))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out.add(gid, place)
	}
	return out
}

func (t table) add(gid string, place int) {
	if gid != "0000:0000:0000:0000:0000:0000:0000:0000" && !slices.Contains(t[gid], place) {
		t[gid] = append(t[gid], place)
	}
}

// of returns the places of an address.
func (t table) of(addr string) []int { return t[gidOf(addr)] }

// used returns how many places are taken.
func (t table) used() (n int) {
	for _, at := range t {
		n += len(at)
	}
	return n
}

// pod is a container's namespace. It has the name of the pod.
type pod struct{ *cnitest.Netns }

// pod returns a new pod.
func (n *node) pod() *pod {
	n.t.Helper()
	n.pods++
	return &pod{cnitest.NewNetns(n.t, fmt.Sprintf("job%d", n.pods))}
}

// empty fails the test if something of ours is in the pod.
func (p *pod) empty(t *testing.T) {
	t.Helper()
	left := shell(t, fmt.Sprintf(`ip -n %[1]s -o link | grep -v ' lo: ' || true
		ip -n %[1]s rule | grep 'proto 82' || true`, p.Name))
	if left != "" {
		t.Errorf("%s has\n%s", p.Name, left)
	}
}

// noRecords fails the test if there is a record.
func (n *node) noRecords() {
	n.t.Helper()
	for _, container := range entries(filepath.Join(n.state, "attachments")) {
		for _, file := range entries(filepath.Join(n.state, "attachments", container)) {
			n.t.Errorf("there is %s of %s", file, container)
		}
	}
}

// nothingLeft fails the test if there is a record, or an address is leased.
func (n *node) nothingLeft() {
	n.t.Helper()
	n.noRecords()
	if out := n.rocectl("pool", "list"); strings.Contains(out, " leased ") {
		n.t.Errorf("an address is leased:\n%s", out)
	}
}

// rocectl runs rocectl, which must succeed.
func (n *node) rocectl(args ...string) string {
	n.t.Helper()
	out, err := n.tryRocectl(args...)
	if err != nil {
		n.t.Fatalf("rocectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// tryRocectl runs rocectl.
func (n *node) tryRocectl(args ...string) (string, error) {
	return try(filepath.Join(*programs, "rocectl"), append([]string{"--state-dir", n.state}, args...)...)
}

// home fails the test if the host does not have the devices of all rails.
func home(t *testing.T) {
	t.Helper()
	if got := entries("/sys/class/infiniband"); !slices.Equal(got, devices()) {
		t.Errorf("the host has the RDMA devices %q, want %q", got, devices())
	}
}

// gidOf returns the GID of an address as sysfs prints it.
func gidOf(addr string) string {
	b := netip.MustParseAddr(addr).As16()
	var words []string
	for i := 0; i < len(b); i += 2 {
		words = append(words, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	return strings.Join(words, ":")
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(wd, path)
}
