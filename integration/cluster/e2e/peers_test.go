// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// within does something in a network namespace. What it starts is there, too.
func within(path string, do func() error) error {
	there, err := ns.GetNS(path)
	if err != nil {
		return err
	}
	defer there.Close()
	return there.Do(func(ns.NetNS) error { return do() })
}

// peer is one of several nodes: a namespace with an agent and without kubelet.
// Its rails end on the leaf of all.
type peer struct {
	*node
	name    string
	space   *cnitest.Netns
	netns   string // the path of space
	etc     string // its /etc/roce
	state   string
	address string
	multus  []byte
	agent   *ground.Process
}

// peer makes node number i, which reaches the API server by way of this one.
func (n *node) peer(t *testing.T, name string, i int) *peer {
	t.Helper()
	p := &peer{node: n, name: name, space: cnitest.NewNetns(t, name), etc: t.TempDir(), state: stateDir + "/" + name, address: fmt.Sprintf("192.0.2.%d", 16*i+2)}
	p.netns = p.space.Path
	must(t, os.WriteFile(filepath.Join(p.etc, "node.json"), fmt.Appendf(nil, `{"version": 1, "stateDir": %q}`, p.state), 0o600))
	must(t, os.MkdirAll("/etc/roce", 0o755))
	run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", name)
	run(t, "ip", "addr", "add", fmt.Sprintf("192.0.2.%d/30", 16*i+1), "dev", name)
	run(t, "ip", "link", "set", "dev", name, "up")
	must(t, within(p.netns, func() error {
		run(t, "ip", "link", "set", "dev", "lo", "up")
		run(t, "ip", "addr", "add", p.address+"/30", "dev", "uplink")
		run(t, "ip", "link", "set", "dev", "uplink", "up")
		run(t, "ip", "route", "add", service.Addr().String(), "via", fmt.Sprintf("192.0.2.%d", 16*i+1))
		for rail := range 2 {
			plug(t, fmt.Sprintf("rail%d", rail), fmt.Sprintf("%s%d", name, rail))
		}
		return nil
	}))
	for _, pool := range []string{"compute", "kept"} {
		network := railsOf(map[string]any{"type": "roce-ipam", "railPool": pool})
		n.network(t, pool+"-"+name, network)
	}
	p.multus = n.startMultus(t, name, p.netns, p.etc)
	p.startAgent(t, i)
	return p
}

// startAgent starts the agent with what the DaemonSet's pods have: the rights of
// the account on this node, and no more.
func (p *peer) startAgent(t *testing.T, i int) {
	t.Helper()
	root := t.TempDir()
	machineID := fmt.Sprintf("%032x", i)
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc", "machine-id"), []byte(machineID+"\n"), 0o600))
	_, err := ground.MakeNode(t.Context(), p.admin, p.name, machineID, nil)
	must(t, err)
	token, err := ground.AgentToken(t.Context(), p.admin, "roce-cni", "roce-cni-agent", p.name)
	must(t, err)
	t.Cleanup(func() {
		atOnce := meta.DeleteOptions{GracePeriodSeconds: new(int64)}
		must(t, p.admin.CoreV1().Nodes().Delete(context.Background(), p.name, atOnce))
		must(t, p.admin.CoreV1().Pods("roce-cni").Delete(context.Background(), "roce-cni-agent-"+p.name, atOnce))
	})
	kubeconfig := filepath.Join(root, "kubeconfig")
	must(t, p.WriteKubeconfig(kubeconfig, token))
	cmd := exec.Command("nsenter", "--net="+p.netns, filepath.Join(programs, "rocectl"), "agent",
		"--node="+p.name, "--kubeconfig="+kubeconfig, "--host-root="+root, "--state-dir="+p.state)
	p.agent, err = ground.StartProcess(t.Context(), "/var/log/agent-"+p.name, cmd, func(ctx context.Context) error {
		return healthy(ctx, p.address)
	})
	must(t, err)
	t.Cleanup(func() { must(t, p.agent.Kill()) })
}

// healthy asks an agent how it is.
func healthy(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+":9482/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}

// enter does something as the runtime of the node would, which sees its own /etc/roce.
func (p *peer) enter(do func() error) error {
	return p.space.Enter(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
		if err := unix.Mount(p.etc, "/etc/roce", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return do()
	})
}

// pod is one of the node, with a network.
func (p *peer) pod(t *testing.T, name, network string) *sandbox {
	t.Helper()
	s := p.sandbox(t, name, network)
	s.on, s.state = p.enter, p.state
	var err error
	s.list, err = libcni.ConfListFromBytes(p.multus)
	must(t, err)
	return s
}

func TestPodsOfTwoNodesReachEachOther(t *testing.T) {
	n := theNode(t)
	n.deploy(t)
	n.reaper(t)
	left, right := n.peer(t, "left", 1), n.peer(t, "right", 2)
	a, b := left.pod(t, "left-pod", "compute-left"), right.pod(t, "right-pod", "compute-right")
	a.add(t)
	b.add(t)
	if x, y := a.rails(t)[0].As4()[3]/16, b.rails(t)[0].As4()[3]/16; x == y {
		t.Errorf("both nodes have block %d", x)
	}
	a.pings(t, b.running)
	b.pings(t, a.running)

	// Without the agents and without the API server pods are released still.
	must(t, left.agent.Kill())
	must(t, right.agent.Kill())
	must(t, n.KillServer())
	t.Cleanup(func() { must(t, n.StartServer(context.Background())) })
	for _, s := range []*sandbox{a, b} {
		s.holds(t, 2)
		s.del(t)
		s.isBare(t)
	}
}

// kept is a pool with six blocks, one for each node of the tests and more, and 32 slots that are
// kept for pods.
const kept = `
apiVersion: roce-cni.io/v1alpha1
kind: RailPool
metadata: {name: kept}
spec:
  template:
    count: 2
    subnets: [{subnet: "172.16.{rail+20}.0/24", ranges: ["172.16.{rail+20}.64/26", "172.16.{rail+20}.128/26"]}]
  sticky: {ttl: 24h, slots: 96-127}
`

// TestAPodOfAStatefulSetTakesItsAddressesToAnotherNode moves it there and back.
func TestAPodOfAStatefulSetTakesItsAddressesToAnotherNode(t *testing.T) {
	n := theNode(t)
	n.deploy(t)
	n.reaper(t)
	n.kubectl(t, kept, "apply", "-f", "-")
	left, right := n.peer(t, "left", 1), n.peer(t, "right", 2)
	var first []netip.Addr
	for _, p := range []*peer{left, left, right, left} {
		s := p.pod(t, "web-0", "kept-"+p.name)
		eventually(t, "ADD on "+p.name, func(context.Context) error { return s.tryAdd(t) })
		got := s.rails(t)
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) || got[0].As4()[3] < 96 {
			t.Errorf("on %s it has %v, at first %v", p.name, got, first)
		}
		s.inside(t, "sleep", "3") // the agent looks once a second which pods live
		s.del(t)
		s.remove(t)
	}
	if all := n.kubectl(t, "", "get", "railleases", "-o", "name"); strings.Count(all, "\n") != 1 {
		t.Errorf("there are\n%s", all)
	}
}
