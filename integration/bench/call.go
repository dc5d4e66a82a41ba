// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

const (
	ifName     = "net1"
	cniVersion = "1.0.0"
)

// chain calls the plugins of a network as runtimes do.
type chain struct {
	list      *libcni.NetworkConfigList
	cni       *libcni.CNIConfig
	ifName    string
	addresses int // that an ADD must give
}

// chain returns the chain of plugins, which are in a folder.
func (w *world) chain(name, folder string, plugins ...map[string]any) (*chain, error) {
	b, err := json.Marshal(map[string]any{"cniVersion": cniVersion, "name": name, "plugins": plugins})
	if err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes(b)
	if err != nil {
		return nil, err
	}
	folder, err = filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{folder}, filepath.Join(w.dir, "cache"), &w.launcher)
	return &chain{list: list, cni: cni, ifName: ifName, addresses: 1}, nil
}

func (c *chain) add(ctx context.Context, pod string) (time.Duration, error) {
	start := time.Now()
	r, err := c.cni.AddNetworkList(ctx, c.list, c.runtimeConf(pod))
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("ADD: %w", explained(err))
	}
	res, err := current.NewResultFromResult(r)
	if err == nil && len(res.IPs) != c.addresses {
		err = fmt.Errorf("ADD has given %s %d addresses, want %d", pod, len(res.IPs), c.addresses)
	}
	return took, err
}

func (c *chain) del(ctx context.Context, pod string) (time.Duration, error) {
	start := time.Now()
	if err := c.cni.DelNetworkList(ctx, c.list, c.runtimeConf(pod)); err != nil {
		return 0, fmt.Errorf("DEL: %w", explained(err))
	}
	return time.Since(start), nil
}

// chains are the networks of a pod. Runtimes add them one after the other, and
// remove the last first.
type chains []*chain

func (cs chains) add(ctx context.Context, pod string) (whole time.Duration, err error) {
	for _, c := range cs {
		took, err := c.add(ctx, pod)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.ifName, err)
		}
		whole += took
	}
	return whole, nil
}

func (cs chains) del(ctx context.Context, pod string) (whole time.Duration, err error) {
	for _, c := range slices.Backward(cs) {
		took, err := c.del(ctx, pod)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.ifName, err)
		}
		whole += took
	}
	return whole, nil
}

func (c *chain) runtimeConf(pod string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "sandbox-" + pod, NetNS: netnsPath(pod), IfName: c.ifName,
		Args: cnitest.Pod{Namespace: "bench", Name: pod, ID: "sandbox-" + pod, UID: "uid-" + pod}.Args(),
	}
}

// explained adds the hint of a plugin's error, which its text leaves out.
func explained(err error) error {
	if e, ok := err.(*types.Error); ok { //nolint:errorlint // libcni does not wrap it
		return fmt.Errorf("%s (%s)", e.Msg, e.Details)
	}
	return err
}

// launcher runs plugins.
type launcher struct {
	version.PluginDecoder
	run func(*exec.Cmd) error // nil: as it is
}

// ExecPlugin implements invoke.Exec.
func (l *launcher) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	run := l.run
	if run == nil {
		run = (*exec.Cmd).Run
	}
	if err := run(cmd); err != nil {
		said := &types.Error{}
		if json.Unmarshal(stdout.Bytes(), said) == nil && said.Code != 0 {
			return nil, said
		}
		return nil, fmt.Errorf("%s: %w: %s%s", path, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// FindInPath implements invoke.Exec.
func (*launcher) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}
