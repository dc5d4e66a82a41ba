// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

type network = cnitest.Network

// rail returns the configuration of a network on rail i: the addresses .64 to
// .127 of 172.16.<10+i>.0/24, no gateway, and rdma as it is by default.
func (n *node) rail(i int) network {
	return network{
		"cniVersion": "1.1.0", "name": fmt.Sprintf("rail%d", i), "type": "roce", "master": fmt.Sprintf("r%d", i),
		"ipam": map[string]any{"type": "roce-ipam", "quarantine": "0s", "subnets": []any{subnet4(i)}},
	}
}

// subnet4 and subnet6 are those of rail i, without a gateway.
func subnet4(i int) map[string]any { return withoutGateway(cnitest.Subnet4(i)) }

func subnet6(i int) map[string]any { return withoutGateway(cnitest.Subnet6(i)) }

func withoutGateway(subnet map[string]any) map[string]any {
	delete(subnet, "gateway")
	return subnet
}

// dual returns a copy with an IPv6 subnet of rail i beside the other.
func dual(c network, i int) network {
	return c.With("ipam", map[string]any{"type": "roce-ipam", "quarantine": "0s", "subnets": []any{subnet4(i), subnet6(i)}})
}

// attachment is what a runtime knows of one interface of a pod.
type attachment struct {
	node    *node
	network network
	pod     *pod
	ifName  string
	before  *plugin       // in the list, nil: none
	stderr  *bytes.Buffer // of successful calls
}

// plugin is one of a list that is not ours.
type plugin struct {
	dir    string // that it is in
	config network
}

func (n *node) attach(c network, p *pod) attachment {
	return attachment{node: n, network: c, pod: p, ifName: "net1", stderr: &bytes.Buffer{}}
}

// as returns the attachment with another interface.
func (a attachment) as(ifName string) attachment {
	a.ifName = ifName
	return a
}

func (a attachment) id() string { return "sandbox-" + a.pod.Name }

func (a attachment) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: a.id(), NetNS: a.pod.Path, IfName: a.ifName, Args: cnitest.Pod{Name: a.pod.Name, ID: a.id()}.Args(),
	}
}

func (a attachment) libcni() *libcni.CNIConfig {
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: a.stderr}}
	dirs := []string{absolute(a.node.t, *programs)}
	if a.before != nil {
		dirs = append(dirs, a.before.dir)
	}
	return libcni.NewCNIConfigWithCacheDir(dirs, a.node.cache, exec)
}

func (a attachment) call() cnitest.Call {
	c := cnitest.Call{Network: a.network, CNI: a.libcni(), Conf: a.runtime()}
	if a.before != nil {
		c.Before = []any{a.before.config}
	}
	return c
}

// add calls ADD.
func (a attachment) add() (*current.Result, *types.Error) {
	a.node.t.Helper()
	return a.call().Add(a.node.t)
}

// mustAdd calls ADD, which must succeed, and returns the addresses.
func (a attachment) mustAdd() []string {
	a.node.t.Helper()
	res, err := a.add()
	if err != nil {
		a.node.t.Fatalf("ADD to %s: %v: %s", a.pod.Name, err, err.Details)
	}
	var out []string
	for _, ip := range res.IPs {
		out = append(out, ip.Address.IP.String())
	}
	return out
}

// mustFail calls ADD, which must fail with a code and leave nothing. It returns
// message and hint.
func (a attachment) mustFail(code uint) string {
	a.node.t.Helper()
	res, err := a.add()
	if err == nil {
		a.node.t.Fatalf("ADD to %s: got %v, want error %d", a.pod.Name, res, code)
	}
	if err.Code != code || err.Details == "" || strings.Contains(err.Msg, "\n") {
		a.node.t.Fatalf("ADD to %s: got %+v, want error %d of one line with a hint", a.pod.Name, err, code)
	}
	a.pod.empty(a.node.t)
	return err.Msg + "\n" + err.Details
}

// del calls DEL.
func (a attachment) del() *types.Error {
	a.node.t.Helper()
	return a.call().Del(a.node.t)
}

// mustDel calls DEL, which must succeed.
func (a attachment) mustDel() {
	a.node.t.Helper()
	if err := a.del(); err != nil {
		a.node.t.Fatalf("DEL of %s: %v: %s", a.pod.Name, err, err.Details)
	}
}

// check calls CHECK and returns message and hint of what it finds, "" if all is
// well.
func (a attachment) check() string {
	a.node.t.Helper()
	err := a.call().Check(a.node.t)
	if err == nil {
		return ""
	}
	if err.Code != 110 {
		a.node.t.Errorf("CHECK: got %+v, want none or error 110", err)
	}
	return err.Msg + "\n" + err.Details
}

// mustCheck calls CHECK, which must find nothing.
func (a attachment) mustCheck() {
	a.node.t.Helper()
	if found := a.check(); found != "" {
		a.node.t.Errorf("CHECK of %s: %s", a.pod.Name, found)
	}
}

// status calls STATUS.
func (a attachment) status() *types.Error {
	a.node.t.Helper()
	return a.call().Status(a.node.t)
}

// gc calls GC of the network, with no attachment that is valid.
func (a attachment) gc() *types.Error {
	a.node.t.Helper()
	return a.call().GC(a.node.t)
}

// operation is one of a record's.
type operation struct {
	Kind string `json:"op"`
	Args struct {
		Device  struct{ Name string }
		Targets []struct {
			Addr  string
			Index *int `json:"gidIndex"`
		}
	}
}

// operations returns the operations of the attachment's record.
func (a attachment) operations() []operation {
	a.node.t.Helper()
	b, err := os.ReadFile(filepath.Join(a.node.state, "attachments", a.id(), a.ifName+".json"))
	if err != nil {
		a.node.t.Fatal(err)
	}
	var rec struct{ Plan struct{ Ops []operation } }
	if err := json.Unmarshal(b, &rec); err != nil {
		a.node.t.Fatal(err)
	}
	return rec.Plan.Ops
}

// indexes returns the recorded GID indexes, by address.
func (a attachment) indexes() map[string]int {
	a.node.t.Helper()
	out := map[string]int{}
	for _, op := range a.operations() {
		for _, target := range op.Args.Targets {
			if op.Kind == "gid" && target.Index != nil {
				out[target.Addr] = *target.Index
			}
		}
	}
	return out
}
