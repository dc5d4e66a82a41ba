// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// running is a pod with a network namespace.
type running struct {
	*core.Pod
	node  *node
	netns string // its path
	state string // of the node
}

// sandbox is a pod as a runtime has it, which calls Multus for it.
type sandbox struct {
	running
	pod  *cnitest.Netns
	on   func(do func() error) error // does something as the runtime of the node
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	conf *libcni.RuntimeConf
	gone bool
}

// ownNetns is the path of the network namespace of this process.
const ownNetns = "/proc/self/ns/net"

// sandbox makes the Pod object and its namespace.
func (n *node) sandbox(t *testing.T, name, networks string) *sandbox {
	t.Helper()
	pod := cnitest.NewNetns(t, name)
	s := &sandbox{running: running{n.object(t, name, networks), n, pod.Path, stateDir}, pod: pod, on: func(do func() error) error { return within(ownNetns, do) }}
	t.Cleanup(func() { s.remove(t) })
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{programs, plugins}, t.TempDir(), &invoke.DefaultExec{
		RawExec:       &invoke.RawExec{Stderr: &bytes.Buffer{}}, // Multus tells of events there
		PluginDecoder: version.PluginDecoder{},
	})
	var err error
	s.list, err = libcni.ConfListFromBytes(n.multus)
	must(t, err)
	s.conf = &libcni.RuntimeConf{ContainerID: "sandbox-of-" + name, NetNS: s.netns, IfName: "eth0"}
	s.conf.Args = cnitest.Pod{Namespace: s.Namespace, Name: s.Name, ID: s.conf.ContainerID, UID: string(s.UID)}.Args()
	return s
}

// remove removes the Pod object and the namespace. Multus is not called.
func (s *sandbox) remove(t *testing.T) {
	t.Helper()
	if s.gone {
		return
	}
	s.gone = true
	s.pod.Remove(t)
	atOnce := meta.DeleteOptions{GracePeriodSeconds: new(int64)}
	must(t, s.node.admin.CoreV1().Pods(s.Namespace).Delete(context.Background(), s.Name, atOnce))
}

// startMultus returns the only configuration that the runtime has, on the node of a
// network namespace. The network of the cluster is a bridge, so that pods have an eth0.
func (n *node) startMultus(t *testing.T, name, netns, etc string) []byte {
	t.Helper()
	cluster := map[string]any{
		"cniVersion": "1.0.0", "name": "cluster", "type": "bridge", "bridge": "cluster",
		"ipam": map[string]any{"type": "host-local", "subnet": "10.244.0.0/24"},
	}
	config := map[string]any{
		"cniVersion": "1.0.0", "logToStderr": false, "logLevel": "verbose", "logFile": "/var/lib/multus.log",
		"multusNamespace": "default", // where it looks for a default network without namespace
	}
	if os.Getenv(thick) != "" {
		config = n.startDaemon(t, name, netns, etc, config, cluster)
	} else {
		config["type"], config["kubeconfig"], config["delegates"] = "multus", n.kubeconfig, []any{cluster}
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "multus-cni-network", "plugins": []any{config}})
	must(t, err)
	return text
}

func (s *sandbox) add(t *testing.T) {
	t.Helper()
	must(t, s.tryAdd(t))
}

func (s *sandbox) tryAdd(t *testing.T) error {
	t.Helper()
	began := time.Now()
	err := s.on(func() error {
		_, err := s.cni.AddNetworkList(t.Context(), s.list, s.conf)
		return err
	})
	t.Logf("ADD of %s: %v, error %v", s.Name, time.Since(began).Round(time.Millisecond), err)
	return err
}

func (s *sandbox) del(t *testing.T) {
	t.Helper()
	began := time.Now()
	must(t, s.on(func() error { return s.cni.DelNetworkList(context.Background(), s.list, s.conf) }))
	t.Logf("DEL of %s: %v", s.Name, time.Since(began).Round(time.Millisecond))
}

// status is an entry of the annotation network-status.
type status struct {
	Name       string
	Interface  string
	IPs        []string
	MAC        string
	Default    bool
	DeviceInfo *deviceInfo `json:"device-info"`
}

// statuses returns the pod's network-status.
func (n *node) statuses(t *testing.T, pod string) []status {
	t.Helper()
	got, err := n.admin.CoreV1().Pods("default").Get(t.Context(), pod, meta.GetOptions{})
	must(t, err)
	var out []status
	text := got.Annotations["k8s.v1.cni.cncf.io/network-status"]
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return out
}

// inside runs a command in the pod's namespace and returns what it prints.
func (s running) inside(t *testing.T, command ...string) string {
	t.Helper()
	return run(t, append([]string{"nsenter", "--net=" + s.netns}, command...)...)
}

// rails returns the address of each rail. It compares the pod's network-status
// with what a network of two rails is, and with what is in the namespace.
func (s running) rails(t *testing.T) []netip.Addr {
	t.Helper()
	all := s.node.statuses(t, s.Name)
	network := s.Namespace + "/" + s.Annotations["k8s.v1.cni.cncf.io/networks"]
	var names []string
	var out []netip.Addr
	for _, i := range all {
		names = append(names, i.Name+" "+i.Interface)
		if len(i.IPs) != 1 || !strings.Contains(s.inside(t, "ip", "-o", "addr", "show", "dev", i.Interface), " "+i.IPs[0]+"/24 ") {
			t.Fatalf("network-status says %+v; there is\n%s", i, s.inside(t, "ip", "addr"))
		}
		out = append(out, netip.MustParseAddr(i.IPs[0]))
	}
	if diff := cmp.Diff([]string{"cluster eth0", network + " net1", network + " net1-1"}, names); diff != "" {
		t.Fatalf("network-status of %s (-want +got)\n%s", s.Name, diff)
	}
	out = out[1:]
	for i, a := range out {
		if b, first := a.As4(), out[0].As4(); b != [4]byte{172, 16, first[2] + byte(i), first[3]} {
			t.Errorf("rails of %s: %v, want the same slot of two subnets that follow each other", s.Name, out)
		}
	}
	return out
}

// pings asks the same rails of another pod, each from its own.
func (s running) pings(t *testing.T, other running) {
	t.Helper()
	to := other.rails(t)
	for i, from := range s.rails(t) {
		s.inside(t, "ping", "-c1", "-W2", "-I", from.String(), to[i].String())
	}
}

// holds compares how many addresses are leased to the pod.
func (s running) holds(t *testing.T, want int) {
	t.Helper()
	all, got := run(t, filepath.Join(programs, "rocectl"), "pool", "list", "--state-dir", s.state), 0
	for line := range strings.Lines(all) {
		if strings.Contains(line, s.Namespace+"/"+s.Name+" ") && strings.Contains(line, " leased ") {
			got++
		}
	}
	if got != want {
		t.Errorf("%s has %d addresses, want %d, of\n%s", s.Name, got, want, all)
	}
}

func TestAPodThatAsksForRailsGetsThem(t *testing.T) {
	n := theNode(t)
	n.network(t, "rails", rails())
	a, b := n.sandbox(t, "a", "rails"), n.sandbox(t, "b", "rails")
	a.add(t)
	b.add(t)
	a.holds(t, 2)
	a.pings(t, b.running)
	a.del(t)
	b.del(t)
	a.isBare(t)
	b.isBare(t)
}

func TestAPodIsReleasedWhileTheAPIServerIsUnreachable(t *testing.T) {
	n := theNode(t)
	n.network(t, "rails", rails())
	pod := n.sandbox(t, "orphan", "rails")
	pod.add(t)
	must(t, n.KillServer())
	t.Cleanup(func() { must(t, n.StartServer(context.Background())) })
	pod.del(t)
	pod.isBare(t)
}

// isBare says that nothing of the pod's networks is left.
func (s *sandbox) isBare(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(s.inside(t, "ip", "-o", "link")) {
		if !strings.Contains(line, " lo: ") {
			t.Errorf("%s still has %s", s.Name, line)
		}
	}
	s.holds(t, 0)
}
