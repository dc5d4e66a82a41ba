// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata and docs/rocectl.md")

func TestMain(m *testing.M) {
	program := func() {
		settingsFile = filepath.Join(os.Getenv("WORK"), "node.json")
		main()
	}
	testscript.Main(m, map[string]func(){"rocectl": program, "kubectl-roce": program})
}

// TestScripts runs testdata/*.txtar. In their .json files, $WORK is the
// script's folder and $BOOT_ID is this boot's. The settings of the node are node.json of
// the script, or the defaults. Besides the commands of package testscript there is
//
//	lease POOL ADDRESS CONTAINER IFNAME [POD]
//
// which leases an address of 10.77.0.0/24 in the state folder "state", and the
// conditions [root] and [rdma], a machine with RDMA devices.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               fill,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"lease": leaseFor},
		Condition:           condition,
	})
}

// fill puts what a script cannot know into its files.
func fill(env *testscript.Env) error {
	env.Setenv("GORACE", "atexit_sleep_ms=0") // else each process of a test with -race ends with a sleep of a second
	boot, err := plugin.BootID()
	if err != nil {
		return err
	}
	return filepath.WalkDir(env.WorkDir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".json" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b = bytes.ReplaceAll(b, []byte("$WORK"), []byte(env.WorkDir))
		b = bytes.ReplaceAll(b, []byte("$BOOT_ID"), []byte(boot))
		return os.WriteFile(path, b, 0o600)
	})
}

func condition(cond string) (bool, error) {
	switch cond {
	case "root":
		return os.Geteuid() == 0, nil
	case "rdma":
		devices, _ := os.ReadDir("/sys/class/infiniband") // there is none without RDMA
		return len(devices) > 0, nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

func leaseFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 || len(args) > 5 {
		ts.Fatalf("usage: lease POOL ADDRESS CONTAINER IFNAME [POD]")
	}
	in, err := folderAt(ts.MkAbs("state"))
	ts.Check(err)
	addr, err := netip.ParseAddr(args[1])
	ts.Check(err)
	owner := ipam.Owner{ContainerID: args[2], IfName: args[3], Network: args[0]}
	if len(args) == 5 {
		owner.PodNamespace, owner.PodName = "ml", args[4]
	}
	_, err = in.book.Acquire(context.Background(), ipam.Ask{
		Pool: args[0], Owner: owner, Requested: []netip.Addr{addr},
		Subnets: []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.77.0.0/24")}},
	})
	ts.Check(err)
}

// TestWhatAPodNamedDoesNotReachTheTerminal has an interface of another pod with a name that
// a terminal obeys.
func TestWhatAPodNamedDoesNotReachTheTerminal(t *testing.T) {
	t.Parallel()
	err := cnierr.New(cnierr.Damaged, "check GID of", "172.16.0.5", "look\nand delete \x1b[2Jx", "index 5 of \x1b]0;x\x07")
	var out strings.Builder
	cli.PrintError(&out, root(&out, &out), err)
	const want = "check GID of \"172.16.0.5\": index 5 of  ]0;x \nhint: look\nand delete ?[2Jx\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("an error is printed as %q, want %q", got, want)
	}
	if got := findingLine(err); strings.ContainsAny(got, "\x1b\x07\n") {
		t.Errorf("a finding is printed as %q", got)
	}
}
