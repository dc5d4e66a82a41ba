// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	name := uniqueName()
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

// uniqueName returns a name that no other test on this machine uses.
func uniqueName() string {
	return fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// wire makes rail i, up, without any address.
func (w *world) wire(t testing.TB, i int) { w.wireTo(t, w.node, i, fmt.Sprintf("leaf%d", i)) }

// wireTo makes rail i of a node and connects it to a link of the leaf.
func (w *world) wireTo(t testing.TB, n *node, i int, leaf string) {
	t.Helper()
	n.ip(t, fmt.Sprintf(`
		link add rail%[1]d mtu 9000 type veth peer name %[2]s mtu 9000 netns %[3]s
		link set dev rail%[1]d addrgenmode none
		link set dev rail%[1]d up`, i, leaf, w.leaf.name))
	w.leaf.ip(t, fmt.Sprintf(`
		link set dev %[1]s addrgenmode none
		link set dev %[1]s up`, leaf))
	n.awaitCarrier(t)
}

// number gives rail i the addresses of its node and of its gateway.
func (w *world) number(t testing.TB, i int) {
	t.Helper()
	w.ip(t, fmt.Sprintf(`
		addr add 172.16.%[2]d.1/24 dev rail%[1]d
		addr add fd00:%[2]d::1/64 dev rail%[1]d nodad`, i, 10+i))
	w.leaf.ip(t, fmt.Sprintf(`
		addr add 172.16.%[2]d.254/24 dev leaf%[1]d
		addr add fd00:%[2]d::fe/64 dev leaf%[1]d nodad`, i, 10+i))
}

// node is a machine: the namespace that plugins run in, and their folders.
type node struct {
	*namespace
	host  string // host name; "" is this machine's
	boot  string // file that has the boot ID; "" is this machine's
	state string // stateDir
	cache string // libcni's
}

func newNode(t testing.TB, name string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{namespace: newNamespace(t, name), state: filepath.Join(dir, "state"), cache: filepath.Join(dir, "cache")}
	n.ip(t, "link set dev lo up")
	return n
}

// enter runs fn as a process of the node would run.
func (n *node) enter(fn func() error) error {
	return n.namespace.enter(func() error {
		if err := errors.Join(n.pretendHost(), n.pretendBoot()); err != nil {
			return err
		}
		return fn()
	})
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
	ns := newNamespace(t, fmt.Sprintf("%s-%d", strings.TrimSuffix(w.node.name, "-node"), i))
	w.ip(t, fmt.Sprintf(`
		link add pod%[1]d type veth peer name eth0 netns %[2]s
		link set dev pod%[1]d addrgenmode none
		addr add 10.244.%[1]d.1/24 dev pod%[1]d
		link set dev pod%[1]d up`, i, ns.name))
	ns.ip(t, fmt.Sprintf(`
		link set dev lo up
		link set dev eth0 addrgenmode none
		addr add 10.244.%[1]d.2/24 dev eth0
		link set dev eth0 up
		route add default via 10.244.%[1]d.1 dev eth0`, i))
	w.awaitCarrier(t)
	ns.awaitCarrier(t)
	return &pod{ns, "sandbox-" + ns.name, name}
}

// namespace is a network namespace with a name, as runtimes make them.
type namespace struct {
	name string
	path string
	file *os.File
}

func newNamespace(t testing.TB, name string) *namespace {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add %s: %v: %s", name, err, out)
	}
	ns := &namespace{name: name, path: "/run/netns/" + name}
	t.Cleanup(func() { ns.remove(t) })
	var err error
	if ns.file, err = os.Open(ns.path); err != nil {
		t.Fatal(err)
	}
	return ns
}

// remove removes the namespace, if the test has not done so.
func (ns *namespace) remove(t testing.TB) {
	t.Helper()
	if ns.file != nil {
		ns.file.Close()
		ns.file = nil
	}
	if _, err := os.Lstat(ns.path); err != nil {
		return
	}
	if out, err := exec.Command("ip", "netns", "del", ns.name).CombinedOutput(); err != nil {
		t.Errorf("ip netns del %s: %v: %s", ns.name, err, out)
	}
}

// enter runs fn in the namespace, on a thread that ends with it. The first
// thread of the process never ends, and would keep the namespace after the test
// has removed it: while it waits here, another one takes its place.
func (ns *namespace) enter(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- ns.enter(fn)
			return
		}
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter namespace %s: %w", ns.name, err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// ip does what the lines say, each of them arguments of ip(8).
func (ns *namespace) ip(t testing.TB, script string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.TrimSpace(script) + "\n")
	if out, err := ns.output(cmd); err != nil {
		t.Fatalf("ip in %s: %v\n%s\n%s", ns.name, err, script, out)
	}
}

// run runs a program in the namespace and returns what it prints.
func (ns *namespace) run(name string, args ...string) (string, error) {
	return ns.output(exec.Command(name, args...))
}

// mustRun is run for a program that must succeed.
func (ns *namespace) mustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := ns.run(name, args...)
	if err != nil {
		t.Fatalf("%s %s in %s: %v\n%s", name, strings.Join(args, " "), ns.name, err, out)
	}
	return out
}

// output returns the standard output, and the standard error of a program that
// fails. One that succeeds may complain: ip does when a namespace of another
// test vanishes while it looks for the names of namespaces.
func (ns *namespace) output(cmd *exec.Cmd) (string, error) {
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := ns.enter(cmd.Run)
	if err != nil {
		return out.String() + complaints.String(), err
	}
	return out.String(), nil
}

// await waits until something is so, which the kernel does in its own time.
func (ns *namespace) await(t testing.TB, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain in %s: %s", ns.name, what)
		}
	}
}

// awaitCarrier waits until the kernel has noticed that the other ends of the
// links are up, which may take a second (linkwatch_event).
func (ns *namespace) awaitCarrier(t testing.TB) {
	t.Helper()
	ns.await(t, "every link has a carrier", func() bool {
		return !strings.Contains(ns.mustRun(t, "ip", "-oneline", "link", "show", "up"), "NO-CARRIER")
	})
}

// set sets a kernel parameter, named by its path below /proc/sys.
func (ns *namespace) set(t testing.TB, path, value string) {
	t.Helper()
	err := ns.enter(func() error { return os.WriteFile("/proc/sys/"+path, []byte(value), 0) })
	if err != nil {
		t.Fatal(err)
	}
}
