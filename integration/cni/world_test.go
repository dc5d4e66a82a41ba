// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// world is what a test has for itself: a node, the leaf that its NICs are
// connected to, and pods. Nothing of it outlives the test.
//
// Rail i is the NIC rail<i> of the node, connected to leaf<i>:
//
//	node 172.16.<10+i>.1    fd00:<10+i>::1
//	leaf 172.16.<10+i>.254  fd00:<10+i>::fe   the gateway
type world struct {
	*node
	leaf *namespace
	pods atomic.Int32
}

// newWorld returns a world with a number of rails.
func newWorld(t testing.TB, rails int) *world {
	t.Helper()
	needNamespaces(t)
	name := cnitest.UniqueName(prefix)
	w := &world{leaf: newNamespace(t, name+"-leaf")}
	w.node = newNode(t, name+"-node")
	for i := range rails {
		w.wire(t, i)
		w.number(t, i)
	}
	return w
}

// prefix begins the names of our namespaces; the number of our process follows.
const prefix = "rocecni-"

// wire makes rail i, up, without any address.
func (w *world) wire(t testing.TB, i int) { w.wireTo(t, w.node, i, fmt.Sprintf("leaf%d", i)) }

// wireTo makes rail i of a node and connects it to a link of the leaf.
func (w *world) wireTo(t testing.TB, n *node, i int, leaf string) {
	t.Helper()
	n.IP(t, fmt.Sprintf(`
		link add rail%[1]d mtu 9000 type veth peer name %[2]s mtu 9000 netns %[3]s
		link set dev rail%[1]d addrgenmode none
		link set dev rail%[1]d up`, i, leaf, w.leaf.Name))
	w.leaf.IP(t, fmt.Sprintf(`
		link set dev %[1]s addrgenmode none
		link set dev %[1]s up`, leaf))
	n.AwaitCarrier(t)
}

// number gives rail i the addresses of its node and of its gateway.
func (w *world) number(t testing.TB, i int) {
	t.Helper()
	w.IP(t, fmt.Sprintf(`
		addr add 172.16.%[2]d.1/24 dev rail%[1]d
		addr add fd00:%[2]d::1/64 dev rail%[1]d nodad`, i, 10+i))
	w.leaf.IP(t, fmt.Sprintf(`
		addr add 172.16.%[2]d.254/24 dev leaf%[1]d
		addr add fd00:%[2]d::fe/64 dev leaf%[1]d nodad`, i, 10+i))
}

// node is a machine: the namespace that plugins run in, and their folders.
type node struct {
	*namespace
	host  string // host name; "" is this machine's
	boot  string // file that has the boot ID; "" is this machine's
	dir   string // of its settings, and where its processes start
	state string // stateDir
	cache string // libcni's
	log   string // log.file; "" is standard error
	table string // table; "" is the default
	heal  string // heal; "" is the default
	nics  string // masters.ifNames of all namespaces; "" is no limit
}

func newNode(t testing.TB, name string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{namespace: newNamespace(t, name), dir: dir, state: filepath.Join(dir, "state"), cache: filepath.Join(dir, "cache")}
	n.IP(t, "link set dev lo up")
	return n
}

// enter runs fn as a process of the node would run.
func (n *node) enter(fn func() error) error {
	return n.namespace.Enter(func() error {
		if err := errors.Join(n.pretendHost(), n.pretendBoot(), n.settle()); err != nil {
			return err
		}
		return fn()
	})
}

// settle writes the settings of the node, and gives the thread their folder as its working
// directory.
func (n *node) settle() error {
	limits := map[string]any{"hostLink": true}
	settings := map[string]any{
		"version": 1, "stateDir": n.state, "log": map[string]any{"level": "info"},
		"ipamPaths": []string{"/run/roce", os.TempDir()}, "namespaces": map[string]any{"*": limits},
	}
	if n.nics != "" {
		limits["masters"] = map[string]any{"ifNames": []string{n.nics}}
	}
	if n.log != "" {
		settings["log"] = map[string]any{"file": n.log, "level": "debug"}
	}
	if n.table != "" {
		settings["table"] = n.table
	}
	if n.heal != "" {
		settings["heal"] = n.heal
	}
	want, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	file := filepath.Join(n.dir, "node.json")
	if is, _ := os.ReadFile(file); !bytes.Equal(is, want) {
		if err := trusted.Replace(file, want, 0o600); err != nil {
			return err
		}
	}
	return errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chdir(n.dir))
}

// pretendHost gives the thread the host name of the node.
func (n *node) pretendHost() error {
	if n.host == "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		return err
	}
	return unix.Sethostname([]byte(n.host))
}

// pretendBoot gives the thread the boot ID of the node, in a mount namespace of
// its own.
func (n *node) pretendBoot() error {
	if n.boot == "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount(n.boot, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
}

// pod is a container's namespace. Its eth0 is what the cluster's own network
// gives it: an address and the default route.
type pod struct {
	*namespace
	id   string // the container's
	name string // the pod's
}

// pod returns a new pod with a name of its own.
func (w *world) pod(t testing.TB) *pod {
	t.Helper()
	return w.podNamed(t, fmt.Sprintf("job-%d", w.pods.Load()+1))
}

// podNamed returns a new sandbox of a pod with a name.
func (w *world) podNamed(t testing.TB, name string) *pod {
	t.Helper()
	i := w.pods.Add(1)
	ns := newNamespace(t, fmt.Sprintf("%s-%d", strings.TrimSuffix(w.node.Name, "-node"), i))
	w.IP(t, fmt.Sprintf(`
		link add pod%[1]d type veth peer name eth0 netns %[2]s
		link set dev pod%[1]d addrgenmode none
		addr add 10.244.%[1]d.1/24 dev pod%[1]d
		link set dev pod%[1]d up`, i, ns.Name))
	ns.IP(t, fmt.Sprintf(`
		link set dev lo up
		link set dev eth0 addrgenmode none
		addr add 10.244.%[1]d.2/24 dev eth0
		link set dev eth0 up
		route add default via 10.244.%[1]d.1 dev eth0`, i))
	w.AwaitCarrier(t)
	ns.AwaitCarrier(t)
	return &pod{ns, "sandbox-" + ns.Name, name}
}

// namespace is a network namespace, and what tests of routing ask it.
type namespace struct{ *cnitest.Netns }

func newNamespace(t testing.TB, name string) *namespace {
	t.Helper()
	return &namespace{cnitest.NewNetns(t, name)}
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
