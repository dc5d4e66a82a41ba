// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// node is this process's namespaces, with a control plane in them. Its rails are
// rail0 and rail1, and the other ends of those are in the namespace "leaf", on a
// bridge with the gateways 172.16.10.254 and 172.16.11.254.
type node struct {
	*ground.Cluster
	name       string
	admin      kubernetes.Interface
	kubeconfig string
	address    string    // of the node in the cluster
	multus     []byte    // what the runtime has in place of a network
	once       sync.Once // kubelet
	containerd int       // its process
}

// stateDir is roce's own default; kubeconfig has all rights.
const (
	stateDir   = "/run/roce"
	kubeconfig = "/var/lib/kubeconfig"
)

// service is where pods look for the API server, which listens there itself: there
// is no kube-proxy.
var service = netip.MustParseAddrPort("10.96.0.1:443")

// onlyNode is made by the first test: there is nothing to make a second one of.
var onlyNode = sync.OnceValues(func() (*node, error) {
	n := &node{name: "node-0", kubeconfig: kubeconfig, address: "192.0.2.1"}
	for _, address := range []string{n.address, service.Addr().String()} {
		if out, err := exec.Command("ip", "addr", "add", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("give the node an address: %w: %s", err, out)
		}
	}
	from, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir("/var/lib/ground", 0o700); err != nil {
		return nil, err
	}
	n.Cluster, err = ground.Start(context.Background(), ground.Options{Bin: from, Dir: "/var/lib/ground", Nodes: []string{n.name, k3sNode}, Listen: service})
	if err != nil {
		return nil, err
	}
	if n.admin, err = kubernetes.NewForConfig(n.Admin()); err != nil {
		return nil, err
	}
	return n, n.WriteKubeconfig(n.kubeconfig, n.Admin().BearerToken)
})

// theNode returns the node, with rails that no pod uses.
func theNode(t *testing.T) *node {
	t.Helper()
	need(t)
	n, err := onlyNode()
	must(t, err)
	leaf := cnitest.NewNetns(t, "leaf")
	t.Cleanup(func() {
		run(t, "ip", "link", "del", "rail0") // at once; with the namespace it would be later
		run(t, "ip", "link", "del", "rail1")
	})
	leaf.IP(t, `
		link add leaf type bridge
		link set dev leaf up
		addr add 172.16.10.254/24 dev leaf
		addr add 172.16.11.254/24 dev leaf`)
	for i := range 2 {
		plug(t, fmt.Sprintf("rail%d", i), fmt.Sprintf("port%d", i))
	}
	n.define(t)
	if n.multus == nil {
		n.multus = n.startMultus(t, n.name, ownNetns, "/etc/roce")
	}
	return n
}

// plug makes a rail of this namespace, and its port on the leaf.
func plug(t *testing.T, rail, port string) {
	t.Helper()
	run(t, "ip", "link", "add", rail, "type", "veth", "peer", "name", port, "netns", "leaf")
	run(t, "ip", "link", "set", "dev", rail, "up")
	run(t, "ip", "-n", "leaf", "link", "set", "dev", port, "master", "leaf", "up")
}

// run runs a command and returns what it prints.
func run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// create creates an object at a path of the API, or leaves the one that is there.
func (n *node) create(t *testing.T, path string, object any) {
	t.Helper()
	body, err := json.Marshal(object)
	must(t, err)
	err = n.admin.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
	if err != nil && !strings.HasSuffix(err.Error(), "already exists") {
		t.Fatalf("create %s: %v", path, err)
	}
}

// eventually waits for what the API server or kubelet do a moment later.
func eventually(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the test has ended
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var before error // what the last try says is only that the time is over
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %v, and before: %v", what, err, before)
		}
		before = err
		<-tick.C
	}
}

// networksPath is where the API server has NetworkAttachmentDefinitions of the namespace
// default.
const networksPath = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"

// define makes the definition of NetworkAttachmentDefinitions.
func (n *node) define(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("testdata/network-attachment-definition.yaml")
	must(t, err)
	var definition map[string]any
	must(t, yaml.Unmarshal(text, &definition))
	n.create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
	eventually(t, "the definition of networks", func(ctx context.Context) error {
		return n.admin.CoreV1().RESTClient().Get().AbsPath(networksPath).Do(ctx).Error()
	})
}

// network makes a NetworkAttachmentDefinition in the namespace default.
func (n *node) network(t *testing.T, name string, config map[string]any) {
	t.Helper()
	inside, err := json.Marshal(config)
	must(t, err)
	n.create(t, networksPath, map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"config": string(inside)},
	})
	t.Cleanup(func() {
		must(t, n.admin.CoreV1().RESTClient().Delete().AbsPath(networksPath, name).Do(context.Background()).Error())
	})
}

// rails is a network of both rails, with addresses that it gives itself.
func rails() map[string]any {
	return railsOf(map[string]any{"type": "roce-ipam", "subnets": []any{map[string]any{
		"subnet": "172.16.{rail+10}.0/24", "ranges": []any{"172.16.{rail+10}.64/26"}, "gateway": "172.16.{rail+10}.254",
	}}})
}

func railsOf(ipam map[string]any) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "type": "roce", "name": "rails", "rdma": map[string]any{"mode": "off"},
		"rails": []any{map[string]any{"master": "rail0"}, map[string]any{"master": "rail1"}}, "ipam": ipam,
	}
}

// object makes the Pod object of a pod, which asks for networks. It is bound to
// a node without kubelet, which would run it.
func (n *node) object(t *testing.T, name, networks string) *core.Pod {
	t.Helper()
	pod, err := ground.MakePod(t.Context(), n.admin, &core.Pod{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": networks}},
		Spec:       core.PodSpec{NodeName: "by-hand"},
	})
	must(t, err)
	return pod
}
