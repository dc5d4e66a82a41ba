// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
)

// Variable is an environment variable.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Advice is the settings that programs need to use the rails, and the reasons.
type Advice struct {
	Set       []Variable `json:"set"`
	Why       []string   `json:"why,omitempty"`
	Perftest  []string   `json:"perftest"` // a command for each rail
	undecided []string
}

// Tell returns the settings that NCCL, NVSHMEM, UCX, vLLM and perftest need in a
// namespace. Programs use the interface of its default route for their own connections.
//
// Errors: NoGID when no setting of NCCL leads to the GIDs of all rails. The advice
// that Tell returns is correct even then, but not complete.
func Tell(ns Namespace) (Advice, error) {
	var a Advice
	rails := ns.Rails
	for _, r := range rails {
		a.Why = append(a.Why, r.Notes...)
		a.Perftest = append(a.Perftest, shell.Command("ib_write_bw -d %s -i %d -x %d", r.Port.Device.Name, r.Port.Number, r.Index))
	}
	used := a.onePerPort(rails)
	a.nccl(used)
	a.nvshmem(used)
	a.apart(used)
	if ns.Out != "" {
		a.set("NCCL_SOCKET_IFNAME", "="+string(ns.Out))
		a.set("GLOO_SOCKET_IFNAME", string(ns.Out)) // of PyTorch, which needs the exact name
	}
	if ns.OutAddr.IsValid() {
		a.set("VLLM_HOST_IP", ns.OutAddr.String()) // of the node's own part, which other parts connect to
	}
	a.ucx(used)
	if len(a.undecided) == 0 {
		return a, nil
	}
	return a, cnierr.New(cnierr.NoGID, "choose GID index for", strings.Join(links(used), ", "),
		"start one process for each rail, each with what rocectl env --ifname NAME prints, or delete the pod: if the network has rdma.gidIndex equal, ADD makes the indexes equal",
		"%s", strings.Join(a.undecided, "; "))
}

func (a *Advice) set(name, value string) { a.Set = append(a.Set, Variable{name, value}) }

func (a *Advice) why(format string, args ...any) {
	a.Why = append(a.Why, fmt.Sprintf(format, args...))
}

// unsaid notes that a variable has no correct value.
func (a *Advice) unsaid(name, why string) {
	a.why("no %s: %s", name, why)
	a.undecided = append(a.undecided, why)
}

// onePerPort returns the first rail of each port. For programs, a port is one rail
// with one GID.
func (a *Advice) onePerPort(rails []Rail) []Rail {
	var out []Rail
	for _, r := range rails {
		i := slices.IndexFunc(out, func(o Rail) bool { return o.Port.String() == r.Port.String() })
		if i < 0 {
			out = append(out, r)
			continue
		}
		a.why("%s is left out: %s has %s already, and a program uses one GID of a port", r.Link, out[i].Link, r.Port)
	}
	return out
}

func (a *Advice) devices(rails []Rail) []string {
	var out []string
	for _, r := range rails {
		out = append(out, r.Port.String())
	}
	return out
}

// commonIndex returns the GID index of the rails, if it is the same on all.
func commonIndex(rails []Rail) (int, bool) {
	for _, r := range rails {
		if r.Index != rails[0].Index {
			return 0, false
		}
	}
	return rails[0].Index, true
}

func indexes(rails []Rail) string {
	var out []string
	for _, r := range rails {
		out = append(out, fmt.Sprintf("%s %d", r.Link, r.Index))
	}
	return strings.Join(out, ", ")
}

func links(rails []Rail) []string {
	var out []string
	for _, r := range rails {
		out = append(out, string(r.Link))
	}
	return out
}
