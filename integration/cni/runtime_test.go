// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

type network = cnitest.Network

// rail returns the configuration of a network on rail i, with the addresses
// .64 to .127 and the gateway of world.
func (n *node) rail(i int) network {
	return network{
		"cniVersion": "1.1.0", "name": fmt.Sprintf("rail%d", i), "type": "roce", "master": fmt.Sprintf("rail%d", i),
		"ipam": map[string]any{"type": "roce-ipam", "subnets": []any{cnitest.Subnet4(i)}},
		"rdma": map[string]any{"mode": "off"},
	}
}

// attachment is what a runtime knows of one interface of a pod.
type attachment struct {
	node    *node
	network network
	before  []any // plugins that stand before it in the list
	after   []any // plugins that stand behind it
	id      string
	netns   string
	ifName  string
	args    [][2]string    // CNI_ARGS
	asks    map[string]any // runtimeConfig, by capability
	path    []string       // CNI_PATH
	stderr  *bytes.Buffer  // of successful calls
}

// attach returns the attachment of a pod to a network, with what containerd
// says about pods.
func (n *node) attach(c network, p *pod, ifName string) attachment {
	return attachment{
		node: n, network: c, id: p.id, netns: p.Path, ifName: ifName, path: []string{programs}, stderr: &bytes.Buffer{},
		args: cnitest.Pod{Name: p.name, ID: p.id, UID: "uid-" + p.name}.Args(),
	}
}

// capable returns the attachment with something that the pod asks the runtime
// for, which hands it on because the network can do it.
func (a attachment) capable(capability string, value any) attachment {
	a.network = a.network.With("capabilities."+capability, true)
	asks := map[string]any{capability: value}
	for k, v := range a.asks {
		asks[k] = v
	}
	a.asks = asks
	return a
}

// arg returns the attachment with one more pair in CNI_ARGS.
func (a attachment) arg(key, value string) attachment {
	a.args = append(a.args[:len(a.args):len(a.args)], [2]string{key, value})
	return a
}

func (a attachment) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: a.id, NetNS: a.netns, IfName: a.ifName, Args: a.args, CapabilityArgs: a.asks}
}

func (a attachment) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(a.path, a.node.cache, a.node.exec(a.stderr))
}

func (a attachment) call() cnitest.Call {
	return cnitest.Call{Before: a.before, Network: a.network, After: a.after, CNI: a.libcni(), Conf: a.runtime()}
}

// add calls ADD.
func (a attachment) add(t testing.TB) (*current.Result, *types.Error) {
	t.Helper()
	return a.call().Add(t)
}

// mustAdd calls ADD, which must succeed.
func (a attachment) mustAdd(t testing.TB) *current.Result {
	t.Helper()
	res, err := a.add(t)
	if err != nil {
		t.Fatalf("ADD %s: %v", a.ifName, err)
	}
	return res
}

// mustFail calls ADD, which must fail with a code, and returns the error.
func (a attachment) mustFail(t testing.TB, code uint) *types.Error {
	t.Helper()
	res, err := a.add(t)
	if err == nil {
		t.Fatalf("ADD %s: got %v, want error %d", a.ifName, res, code)
	}
	if err.Code != code {
		t.Fatalf("ADD %s: got error %d, want %d: %v", a.ifName, err.Code, code, err)
	}
	if want := fmt.Sprintf("%s[%d] ", a.network["type"], code); !strings.HasPrefix(err.Msg, want) || strings.Contains(err.Msg, "\n") || err.Details == "" {
		t.Errorf("ADD %s: got %+v, want one line that starts with %q, and a hint", a.ifName, err, want)
	}
	return err
}

// del calls DEL.
func (a attachment) del(t testing.TB) *types.Error {
	t.Helper()
	return a.call().Del(t)
}

// mustDel calls DEL, which must succeed.
func (a attachment) mustDel(t testing.TB) {
	t.Helper()
	if err := a.del(t); err != nil {
		t.Fatalf("DEL %s: %v", a.ifName, err)
	}
}

// check calls CHECK.
func (a attachment) check(t testing.TB) *types.Error {
	t.Helper()
	return a.call().Check(t)
}

// mustCheck calls CHECK, which must find nothing.
func (a attachment) mustCheck(t testing.TB) {
	t.Helper()
	if err := a.check(t); err != nil {
		t.Errorf("CHECK %s: %v", a.ifName, err)
	}
}

// raw calls a plugin with a text that libcni may not even read.
func (a attachment) raw(t testing.TB, program, command, stdin string) ([]byte, *types.Error) {
	t.Helper()
	out, err := a.node.exec(a.stderr).ExecPlugin(t.Context(), filepath.Join(programs, program), []byte(stdin), a.environ(command))
	return out, cnitest.Error(t, err)
}

// environ returns the environment of a call.
func (a attachment) environ(command string) []string {
	args := &invoke.Args{
		Command: command, ContainerID: a.id, NetNS: a.netns, IfName: a.ifName, PluginArgs: a.args,
		Path: strings.Join(a.path, string(filepath.ListSeparator)),
	}
	return args.AsEnv()
}

// nodeExec runs plugins on a node.
type nodeExec struct {
	*invoke.DefaultExec
	node *node
}

func (n *node) exec(stderr *bytes.Buffer) invoke.Exec {
	return nodeExec{&invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}}, n}
}

// ExecPlugin implements invoke.Exec.
func (e nodeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte, err error) {
	err = e.node.enter(func() error {
		out, err = e.DefaultExec.ExecPlugin(ctx, path, stdin, environ)
		return err
	})
	return out, err
}

// gc calls GC of a network on its node; valid as the specification has it.
func (a attachment) gc(t *testing.T, program string, valid any) *types.Error {
	t.Helper()
	a.network = a.network.With("name", a.network["name"]) // a copy
	a.network["cni.dev/valid-attachments"] = valid
	a.id, a.netns, a.ifName, a.args = "", "", "", nil
	_, err := a.raw(t, program, "GC", a.text(t))
	return err
}

func valid(all ...attachment) []any {
	out := []any{}
	for _, a := range all {
		out = append(out, map[string]any{"containerID": a.id, "ifname": a.ifName})
	}
	return out
}
