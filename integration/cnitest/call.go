// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnitest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Pod is what a runtime says of a pod, in CNI_ARGS.
type Pod struct {
	Namespace     string // "" is train
	Name, ID, UID string // no UID: it is not told
}

// Args returns CNI_ARGS as containerd has them.
func (p Pod) Args() [][2]string {
	args := [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", cmp.Or(p.Namespace, "train")},
		{"K8S_POD_NAME", p.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
	}
	if p.UID != "" {
		args = append(args, [2]string{"K8S_POD_UID", p.UID})
	}
	return args
}

// Call is what a runtime knows when it calls the plugins of a network for one
// interface of a pod.
type Call struct {
	Before  []any // configurations of plugins that stand before Network in the list
	Network Network
	After   []any // configurations of plugins that stand behind it
	CNI     *libcni.CNIConfig
	Conf    *libcni.RuntimeConf
}

// List returns the configuration as libcni's configuration list, which is what
// runtimes work with.
func (c Call) List() (*libcni.NetworkConfigList, error) {
	b, err := json.Marshal(map[string]any{
		"cniVersion": c.Network["cniVersion"], "name": c.Network["name"], "plugins": append(append(slices.Clone(c.Before), c.Network), c.After...),
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(b)
}

// AddContext calls ADD and returns the result in the version that was asked
// for. When ctx ends, the plugin is killed.
func (c Call) AddContext(ctx context.Context) (types.Result, error) {
	list, err := c.List()
	if err != nil {
		return nil, err
	}
	return c.CNI.AddNetworkList(ctx, list, c.Conf)
}

// Add calls ADD.
func (c Call) Add(t testing.TB) (*current.Result, *types.Error) {
	t.Helper()
	r, err := c.AddContext(t.Context())
	if err != nil {
		return nil, Error(t, err)
	}
	res, err := current.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	return res, nil
}

// Del calls DEL, also when the test is over.
func (c Call) Del(t testing.TB) *types.Error {
	t.Helper()
	return Error(t, c.CNI.DelNetworkList(context.WithoutCancel(t.Context()), c.list(t), c.Conf))
}

// Check calls CHECK.
func (c Call) Check(t testing.TB) *types.Error {
	t.Helper()
	return Error(t, c.CNI.CheckNetworkList(t.Context(), c.list(t), c.Conf))
}

// Status calls STATUS.
func (c Call) Status(t testing.TB) *types.Error {
	t.Helper()
	return Error(t, c.CNI.GetStatusNetworkList(t.Context(), c.list(t)))
}

// GC calls GC of the network, with the attachments that are valid.
func (c Call) GC(t testing.TB, valid ...types.GCAttachment) *types.Error {
	t.Helper()
	return Error(t, c.CNI.GCNetworkList(t.Context(), c.list(t), &libcni.GCArgs{ValidAttachments: valid}))
}

func (c Call) list(t testing.TB) *libcni.NetworkConfigList {
	t.Helper()
	list, err := c.List()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Error returns the error that the plugin printed, nil for none. An error of
// another origin ends the test.
func Error(t testing.TB, err error) *types.Error {
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
