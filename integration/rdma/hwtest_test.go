// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// hwtest runs roce-hwtest and returns the results in its file.
func (n *node) hwtest(args ...string) hwtest.Results {
	t := n.t
	t.Helper()
	file := filepath.Join(t.TempDir(), "out.tar.gz")
	said, _ := try(filepath.Join(*programs, "roce-hwtest"), append([]string{"--out", file}, args...)...) // its status tells of problems
	r, dir := results(t, file)
	if r.Stopped != "" {
		t.Errorf("it stopped: %s\n%s", r.Stopped, said)
	}
	// A recording tells what the machine told.
	replayed, end := replay(t, dir)
	defer end()
	if got := told(replayed)[:len(replayed)]; !slices.Equal(got, told(r.Answers)[:len(got)]) {
		t.Errorf("replayed (-run +replay)\n%s", cmp.Diff(told(r.Answers)[:len(got)], got))
	}
	return r
}

// results returns the results in a file, and the folder with all that the file has.
func results(t *testing.T, file string) (r hwtest.Results, dir string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir = t.TempDir()
	if err := hwtest.Unpack(f, dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r, dir
}

func replay(t *testing.T, dir string) (out []hwtest.Answer, end func()) {
	t.Helper()
	n, _, end, err := hwtest.Open(dir, t.TempDir())
	if err == nil {
		_, err = n.Look(t.Context(), func(a hwtest.Answer) { out = append(out, a) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, end
}

// told returns answers in one line each.
func told(as []hwtest.Answer) []string {
	var out []string
	for _, a := range as {
		out = append(out, fmt.Sprintf("%s %s %s: %s", a.Verdict, a.Check, a.Of, a.Found))
	}
	return out
}

// wants fails the test if the problems of a run are not these, or if one of the steps
// has no answer that is ok.
func wants(t *testing.T, r hwtest.Results, problems []string, fine ...string) {
	t.Helper()
	var rest []string
	for _, line := range told(slices.DeleteFunc(slices.Clone(r.Answers), func(a hwtest.Answer) bool { return a.Verdict != report.Problem })) {
		i := slices.IndexFunc(problems, func(p string) bool { return strings.HasPrefix(line, "problem "+p) })
		if i < 0 {
			rest = append(rest, line)
			continue
		}
		problems = slices.Delete(slices.Clone(problems), i, i+1)
	}
	if len(rest)+len(problems) > 0 {
		t.Errorf("problems that are not expected: %q; expected, and not found: %q\n%s", rest, problems, strings.Join(told(r.Answers), "\n"))
	}
	for _, step := range fine {
		if !slices.ContainsFunc(r.Answers, func(a hwtest.Answer) bool { return a.Check == step && a.Verdict == report.OK }) {
			t.Errorf("%s is not ok\n%s", step, strings.Join(told(r.Answers), "\n"))
		}
	}
}

func TestHWTestSharedFindsSoftRoCEAsItIs(t *testing.T) {
	n := newNode(t, "shared")
	finally(t, "ip addr flush dev r0 scope global")
	run(t, "ip", "addr", "add", "172.16.10.5/24", "dev", "r0")
	cnitest.Await(t, "the host's address has an entry", func() bool { return len(gids(t, "", "rxe0").of("172.16.10.5")) == 1 })
	var lies []string
	if hides() { // the machine hides entries as NVIDIA's driver does, which is not loaded
		lies = slices.Repeat([]string{"pod-views rxe0/1: the host sees 0 of the pod's 2 entries"}, 2)
		lies = append(lies, slices.Repeat([]string{"pod-views rxe1/1: the host sees 0 of the pod's 2 entries"}, 2)...)
	}
	fine := []string{
		"driver-stack", "devices", "ports", "discovery", "host-gids", "mode", "function", "pod-add", "pod-env", "pod-reach", "check", "gid-time",
		"gid-room", "gid-number", "rails", "pod-del",
	}
	if hides() {
		fine = slices.DeleteFunc(fine, func(s string) bool { return s == "gid-room" })
	}
	r := n.hwtest("--mutate")
	wants(t, r, lies, fine...)
	if said := strings.Join(told(r.Answers), "\n"); !strings.Contains(said, "ok check rxe0/1: CHECK finds that the index of ") {
		t.Errorf("no index moved:\n%s", said)
	}
	n.nothingLeft()
}

func TestHWTestWithoutAChangeFindsSoftRoCEAsItIs(t *testing.T) {
	n := newNode(t, "shared")
	wants(t, n.hwtest(), nil, "driver-stack", "devices", "ports", "discovery", "mode", "function")
}

func TestHWTestExclusiveMovesTheDevicesAndBack(t *testing.T) {
	n := newNode(t, "exclusive")
	var lies []string
	if hides() {
		lies = []string{"pod-views rxe0/1: the host sees 0 of", "pod-views rxe1/1: the host sees 0 of"}
	}
	fine := []string{"pod-add", "pod-env", "exclusive", "home-renamed", "home-gone", "home-open", "home-kept", "home-late", "tos", "rails", "pod-del"}
	wants(t, n.hwtest("--mutate"), lies, fine...)
	home(t)
}

// start starts a program and returns the lines that it prints.
func start(t *testing.T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(out)
}

// mlx5Problems are what is wrong with the machine of the type mlx5-like: irdma0 has no
// GUID, and RoCE is off on mlx5_2.
func mlx5Problems() []string {
	return []string{"devices irdma0: it has no GUID", "ports mlx5_2/1: it has no GID table"}
}

func TestMLX5HWTestFindsWhatIsWrongWithTheMachine(t *testing.T) {
	for _, mode := range []string{"shared", "exclusive"} {
		t.Run(mode, func(t *testing.T) {
			n := newMLX5Node(t, mode)
			fine, problems := []string{"gid-room", "gid-number", "pod-reach", "check"}, mlx5Problems()
			if mode == "exclusive" {
				fine = []string{"home-renamed", "home-gone", "home-open", "home-kept", "home-late"} // the devices have no rdma_cm
			}
			fine = append(fine, "hardware", "discovery", "mode", "refusal", "function", "pod-add", "pod-views", "pod-env", "rails", "pod-del")
			wants(t, n.hwtest("--mutate"), problems, fine...)
		})
	}
}

func TestMLX5HWTestFindsLies(t *testing.T) {
	n := newMLX5Node(t, "shared")
	t.Run("a GUID in sysfs that is not that of netlink", func(t *testing.T) {
		const file = "/sys/class/infiniband/mlx5_0/node_guid"
		lie := filepath.Join(t.TempDir(), "guid")
		finally(t, "umount "+file)
		shell(t, "echo 5054:00ff:fe00:0909 >"+lie+"; mount --bind "+lie+" $(readlink -f "+file+")")
		wants(t, n.hwtest(), append(mlx5Problems(), "devices mlx5_0: its GUID is"))
	})
	t.Run("entries that do not appear", func(t *testing.T) {
		firmware(t, "gid_fails", "Y")
		got := n.hwtest("--mutate")
		var failed int
		for _, a := range got.Answers {
			if a.Check == "pod-add" && a.Verdict == report.Problem && strings.Contains(a.Found, "made no RoCE v2 entry") {
				failed++
			}
		}
		if failed == 0 {
			t.Errorf("no step says it:\n%s", strings.Join(told(got.Answers), "\n"))
		}
	})
}

// TestMLX5HWTestDisrupts has a bond, and a devlink that loads the module again, as a
// driver is reloaded.
func TestMLX5HWTestDisrupts(t *testing.T) {
	n := newMLX5Node(t, "shared")
	lag(t)
	dir := t.TempDir()
	const reload = "#!/bin/sh -e\nd=$(cat /sys/module/fake_roce/parameters/devices)\nrmmod fake_roce\nexec modprobe fake_roce devices=$d\n"
	if err := os.WriteFile(filepath.Join(dir, "devlink"), []byte(reload), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r := n.hwtest("--mutate", "--disrupt", "gid-full,failover,reload")
	wants(t, r, nil, "layers", "pod-add", "gid-full", "failover", "reload", "pod-del")
	rows := map[string]report.Verdict{}
	for _, row := range r.Rows {
		rows[row.Behaviour] = row.Verdict
	}
	for _, behaviour := range []string{
		"A bond fails over: CHECK reports the old and the new index.", "The driver is reloaded: the device is the same.",
		"The device below a VLAN, a bond, and a VLAN on a bond.",
	} {
		if rows[behaviour] != report.OK {
			t.Errorf("%s: %s\n%s", behaviour, rows[behaviour], strings.Join(told(r.Answers), "\n"))
		}
	}
}

// sriovProblems are what is wrong with the machine of the type sriov: its VFs have no
// GUIDs.
func sriovProblems() []string {
	return []string{"devices mlx5_2: it has no GUID", "devices mlx5_3: it has no GUID"}
}

// TestSRIOVHWTestTellsWhatVFsMayDo runs in a machine of its own: igb runs out of MAC
// filters when many children have come and gone.
func TestSRIOVHWTestTellsWhatVFsMayDo(t *testing.T) {
	n := newSRIOVNode(t, "shared")
	r := n.hwtest()
	wants(t, r, sriovProblems(), "hardware", "function", "vf-trust")
	refused := 0
	for _, a := range r.Answers {
		if a.Check == "discovery" && a.Verdict == report.CannotTell && strings.Contains(a.Missing, "trust on spoofchk off") {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("%d VFs are refused, want 2\n%s", refused, strings.Join(told(r.Answers), "\n"))
	}
	allowed(t, 0, 1)
	problems := sriovProblems()
	wants(t, n.hwtest("--mutate"), problems, "vf-trust", "discovery", "pod-add", "pod-reach", "vf-reach", "rails", "pod-del")
	n.nothingLeft()
}
