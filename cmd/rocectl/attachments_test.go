// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// TestWhatPodsHaveLostIsFoundAndRestored: each pod is looked at, whatever is found at those before it.
// One is gone, one is hurt, one has all, and the namespace of one is hidden.
func TestWhatPodsHaveLostIsFoundAndRestored(t *testing.T) {
	t.Parallel()
	n := kerneltest.NewNode(t)
	dir := t.TempDir()
	boot, err := plugin.BootID()
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(filepath.Join(dir, "netns"), 0o700); err != nil {
		t.Fatal(err)
	}
	records := record.Store{Dir: state, BootID: boot}
	pods := map[string]*kerneltest.Netns{}
	save := func(at, name string) {
		path := filepath.Join(dir, at)
		rec := record.Record{
			Network: "rails", Attachment: conf.Attachment{ContainerID: conf.ContainerID("c-" + name), IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: name},
			Netns: path, NetnsID: netns.ID{Dev: 4, Ino: 1}, Committed: true, Plan: plan.Plan{Interfaces: []plan.Interface{{Name: "net1"}}, Ops: plan.InPod(plan.Up{Link: "net1"})},
		}
		if strings.HasPrefix(name, "b") || strings.HasPrefix(name, "d") {
			pod := n.PodAt(path)
			pod.IP("link add net1 type veth peer name peer")
			there, err := netns.At(path)
			if err != nil {
				t.Fatal(err)
			}
			rec.NetnsID, pods[name] = there.ID, pod
		}
		release, err := records.Lock(t.Context(), rec.ContainerID)
		if err == nil {
			err = records.Save(rec)
			release()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	save("netns/a", "a-gone")
	save("netns/b", "b-hurt")
	save("proc/77/ns/net", "c-hidden")
	save("netns/d", "d-whole")
	pods["d-whole"].IP("link set net1 up")
	node := &nodeFlags{stateDir: state}
	var got strings.Builder
	for _, s := range []struct {
		cmd  *cobra.Command
		args string
	}{
		{checkCommand(node), ""},
		{repairCommand(node), ""},
		{repairCommand(node), "--yes"},
		{checkCommand(node), "ml/b-hurt"},
		{checkCommand(node), "c-hidden"},
		{checkCommand(node), "-n ml -o json"},
		{repairCommand(node), "c-hidden"},
		{forgetCommand(node), "--container c-"},
		{forgetCommand(node), "--container c- --yes"},
		{showCommand(node), "--no-headers"},
	} {
		fmt.Fprintf(&got, "$ %s %s\n%s", s.cmd.Name(), s.args, answerOf(s.cmd, strings.Fields(s.args)...))
	}
	equalsFile(t, "testdata/attachments.txt", strings.ReplaceAll(got.String(), dir, "DIR"))
}
