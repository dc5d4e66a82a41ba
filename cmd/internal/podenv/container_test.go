// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package podenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// container makes a folder with the files that Check reads.
func container(t *testing.T, files map[string]string, memlock uint64) Container {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Container{Root: root, Memlock: memlock}
}

func TestAContainerIsToldWhatItsManifestLacks(t *testing.T) {
	t.Parallel()
	const (
		verbs   = "sys/class/infiniband_verbs/uverbs3/ibdev"
		file    = "dev/infiniband/uverbs3"
		status  = "proc/self/status"
		without = "Name:\tenv\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80465fb\n"
		with    = "Name:\tenv\nCapEff:\t00000000a80465fb\nCapBnd:\t00000000a80465fb\n"
	)
	for name, c := range map[string]struct {
		files   map[string]string
		memlock uint64
		want    []string // in the error; none: no error
	}{
		"all is there": {map[string]string{verbs: "mlx5_1\n", file: "", status: with}, 64 << 10, nil},
		"no limit":     {map[string]string{verbs: "mlx5_1\n", file: "", status: without}, ^uint64(0), nil},
		"a high limit": {map[string]string{verbs: "mlx5_1\n", file: "", status: without}, 128 << 30, nil},
		"the least":    {map[string]string{verbs: "mlx5_1\n", file: "", status: without}, 1 << 30, nil},
		"too low":      {map[string]string{verbs: "mlx5_1\n", file: "", status: without}, 1<<30 - 1, []string{"at most 1048575 KiB"}},
		"no status":    {map[string]string{verbs: "mlx5_1\n", file: ""}, 64 << 10, []string{"/proc/self/status", "no such file"}},
		"another NIC":  {map[string]string{"sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0\n", verbs: "mlx5_1\n", file: "", status: with}, 64 << 10, nil},
		"only another": {map[string]string{"sys/class/infiniband_verbs/uverbs3/ibdev": "mlx5_0\n", file: "", status: with}, 64 << 10, []string{"ib_uverbs is not loaded"}},
		"a low limit":  {map[string]string{verbs: "mlx5_1\n", file: "", status: without}, 8 << 20, []string{"at most 8192 KiB"}},
		"no resource":  {map[string]string{verbs: "mlx5_1\n", status: with}, 64 << 10, []string{"mlx5_1", "uverbs3: no such file", "resources.limits"}},
		"no file":      {map[string]string{verbs: "mlx5_1\n", file + "/x": "", status: with}, 64 << 10, []string{"uverbs3: is a directory", "resources.limits"}},
		"no module":    {map[string]string{status: with}, 64 << 10, []string{"ib_uverbs is not loaded"}},
		"no IPC_LOCK":  {map[string]string{verbs: "mlx5_1\n", file: "", status: without}, 64 << 10, []string{"at most 64 KiB", "IPC_LOCK"}},
		"neither":      {map[string]string{verbs: "mlx5_1\n", status: without}, 64 << 10, []string{"resources.limits", "IPC_LOCK"}},
	} {
		err := container(t, c.files, c.memlock).Check([]gids.Rail{{Port: port("mlx5_1")}, {Port: port("mlx5_1")}})
		if (err == nil) != (len(c.want) == 0) {
			t.Errorf("%s: got %v", name, err)
		}
		if err == nil {
			continue
		}
		said := cnierr.CNI("roce-env", err)
		if n := strings.Count(said.Msg, "open RDMA device"); n > 1 {
			t.Errorf("%s: a device of two rails is named %d times: %v", name, n, said)
		}
		for _, want := range c.want {
			if !strings.Contains(said.Msg+"\n"+said.Details, want) {
				t.Errorf("%s: got %v, want %q in it", name, said, want)
			}
		}
	}
}

func TestTheContainerIsThatOfTheCaller(t *testing.T) {
	t.Parallel()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	if got, err := Own(); got != (Container{Root: "/", Memlock: limit.Cur}) || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}
