// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// network is a network configuration.
type network map[string]any

// rail returns the configuration of a network on rail i, with the addresses
// .64 to .127 and the gateway of world.
func (n *node) rail(i int) network {
	return network{
		"cniVersion": "1.1.0", "name": fmt.Sprintf("rail%d", i), "type": "roce", "master": fmt.Sprintf("rail%d", i),
		"ipam": map[string]any{"type": "roce-ipam", "subnets": []any{subnet4(i)}},
		"rdma": map[string]any{"mode": "off"}, "stateDir": n.state,
	}
}

func subnet4(i int) map[string]any {
	return map[string]any{
		"subnet": fmt.Sprintf("172.16.%d.0/24", 10+i), "gateway": fmt.Sprintf("172.16.%d.254", 10+i),
		"ranges": []any{fmt.Sprintf("172.16.%[1]d.64-172.16.%[1]d.127", 10+i)},
	}
}

func subnet6(i int) map[string]any {
	return map[string]any{
		"subnet": fmt.Sprintf("fd00:%d::/64", 10+i), "gateway": fmt.Sprintf("fd00:%d::fe", 10+i),
		"ranges": []any{fmt.Sprintf("fd00:%[1]d::64-fd00:%[1]d::127", 10+i)},
	}
}

// with returns a copy in which the value at a path such as
// "ipam.subnets.0.gateway" is another one; nil removes it.
func (c network) with(path string, value any) network {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	var out network
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	put(map[string]any(out), strings.Split(path, "."), value)
	return out
}

func put(at any, path []string, value any) {
	if list, ok := at.([]any); ok {
		i, err := strconv.Atoi(path[0])
		if err != nil {
			panic(err)
		}
		if len(path) == 1 {
			list[i] = value
			return
		}
		put(list[i], path[1:], value)
		return
	}
	object := at.(map[string]any)
	switch {
	case len(path) == 1 && value == nil:
		delete(object, path[0])
	case len(path) == 1:
		object[path[0]] = value
	default:
		if object[path[0]] == nil {
			object[path[0]] = map[string]any{}
		}
		put(object[path[0]], path[1:], value)
	}
}

// attachment is what a runtime knows of one interface of a pod.
type attachment struct {
	node    *node
	network network
	before  []any // plugins that stand before it in the list
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
		node: n, network: c, id: p.id, netns: p.path, ifName: ifName, path: []string{programs}, stderr: &bytes.Buffer{},
		args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "train"},
			{"K8S_POD_NAME", p.name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.id},
			{"K8S_POD_UID", "uid-" + p.name},
		},
	}
}

// capable returns the attachment with something that the pod asks the runtime
// for, which hands it on because the network can do it.
func (a attachment) capable(capability string, value any) attachment {
	a.network = a.network.with("capabilities."+capability, true)
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

// list returns the configuration as libcni's configuration list, which is
// what runtimes work with.
func (a attachment) list() (*libcni.NetworkConfigList, error) {
	b, err := json.Marshal(map[string]any{
		"cniVersion": a.network["cniVersion"], "name": a.network["name"], "plugins": append(slices.Clone(a.before), a.network),
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(b)
}

// addContext calls ADD and returns the result in the version that was asked
// for. When ctx ends, the plugin is killed.
func (a attachment) addContext(ctx context.Context) (types.Result, error) {
	list, err := a.list()
	if err != nil {
		return nil, err
	}
	return a.libcni().AddNetworkList(ctx, list, a.runtime())
}

// add calls ADD.
func (a attachment) add(t testing.TB) (*current.Result, *types.Error) {
	t.Helper()
	r, err := a.addContext(t.Context())
	if err != nil {
		return nil, cniError(t, err)
	}
	res, err := current.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	return res, nil
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

// addAtLast calls ADD as a runtime does, again while it is told to try again,
// and returns the result that there must be in the end.
func (a attachment) addAtLast(t testing.TB) *current.Result {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		res, err := a.add(t)
		switch {
		case err == nil:
			return res
		case err.Code != 11 || time.Now().After(end):
			t.Fatalf("ADD %s: %v", a.ifName, err)
		}
	}
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
	list, err := a.list()
	if err != nil {
		t.Fatal(err)
	}
	return cniError(t, a.libcni().DelNetworkList(context.WithoutCancel(t.Context()), list, a.runtime()))
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
	list, err := a.list()
	if err != nil {
		t.Fatal(err)
	}
	return cniError(t, a.libcni().CheckNetworkList(t.Context(), list, a.runtime()))
}

// cniError returns the error that the plugin printed.
func cniError(t testing.TB, err error) *types.Error {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("not from a plugin: %v", err)
	}
	return e
}

// raw calls a plugin with a text that libcni may not even read.
func (a attachment) raw(t testing.TB, program, command, stdin string) ([]byte, *types.Error) {
	t.Helper()
	out, err := a.node.exec(a.stderr).ExecPlugin(t.Context(), filepath.Join(programs, program), []byte(stdin), a.environ(command))
	return out, cniError(t, err)
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
