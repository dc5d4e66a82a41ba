// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"io"
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

// save writes a record of this boot into a state folder.
func save(t *testing.T, state string, rec record.Record) {
	t.Helper()
	boot, err := plugin.BootID()
	records := record.Store{Dir: state, BootID: boot}
	release, err2 := records.Lock(t.Context(), rec.ContainerID)
	if err = errors.Join(err, err2); err == nil {
		err = records.Save(rec)
		release()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestWhatPodsHaveLostIsFoundAndRestored: each pod is looked at, whatever is found at those before it.
// One is gone, one is hurt, one has all, and the namespace of one is hidden.
func TestWhatPodsHaveLostIsFoundAndRestored(t *testing.T) {
	t.Parallel()
	n := kerneltest.NewNode(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(filepath.Join(dir, "netns"), 0o700); err != nil {
		t.Fatal(err)
	}
	pods := map[string]*kerneltest.Netns{}
	add := func(at, name string) {
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
		save(t, state, rec)
	}
	add("netns/a", "a-gone")
	add("netns/b", "b-hurt")
	add("proc/77/ns/net", "c-hidden")
	add("netns/d", "d-whole")
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
	equalsFile(t, "testdata/commands/attachments.txt", strings.ReplaceAll(got.String(), dir, "DIR"))
	// One that has been deleted since they were listed is not looked at.
	open, err := node.open(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	found, err := check(t.Context(), open, []conf.Attachment{{ContainerID: "c-a-gone", IfName: "net1"}, {ContainerID: "c-d-whole", IfName: "net1"}})
	if err != nil || len(found) != 1 || found[0].String() != "ml/d-whole net1: ok" {
		t.Errorf("%v, %v", found, err)
	}
}
