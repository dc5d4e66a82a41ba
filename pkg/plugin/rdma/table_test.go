// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// TestTablesInFilesOfTheSystemAreReadAsThoseInMemory: files of the system are read by
// another path. It is not parallel, because it counts open files.
func TestTablesInFilesOfTheSystemAreReadAsThoseInMemory(t *testing.T) {
	memory := sysfs("mlx5_0", v2("fe80::1"), v1("172.16.0.11"), v2("172.16.0.11"), "", v2("172.16.0.12"))
	delete(memory, "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/4") // it is being removed
	memory["class/infiniband/mlx5_1/ports/1/state"] = memory["class/infiniband/mlx5_0/ports/1/gids/0"]
	dir := t.TempDir()
	must(t, os.CopyFS(dir, memory))
	before := cnitest.OpenFiles(t)
	got, size, err := gidtable.New(os.DirFS(dir), "mlx5_0", 1).Entries()
	want, wantSize, wantErr := gidtable.New(memory, "mlx5_0", 1).Entries()
	if diff := cmp.Diff(texts(want), texts(got)); diff != "" || size != wantSize || size != 5 || err != nil || wantErr != nil {
		t.Errorf("%d, %v and %d, %v\n%s", size, err, wantSize, wantErr, diff)
	}
	for _, device := range []string{"mlx5_1", "mlx5_2"} {
		for _, sys := range []fs.FS{os.DirFS(dir), memory} {
			if _, _, err := gidtable.New(sys, device, 1).Entries(); !errors.Is(err, gidtable.ErrNone) {
				t.Errorf("%s: got %v, want %v", device, err, gidtable.ErrNone)
			}
		}
	}
	link(t, dir+"/class/infiniband/mlx5_3/ports/1", "1") // to itself
	if _, _, err := gidtable.New(os.DirFS(dir), "mlx5_3", 1).Entries(); err == nil || errors.Is(err, gidtable.ErrNone) {
		t.Errorf("a folder cannot be opened: got %v", err)
	}
	bad := dir + "/class/infiniband/mlx5_0/ports/1/gids/3"
	must(t, errors.Join(os.Remove(bad), os.Mkdir(bad, 0o700)))
	if _, _, err := gidtable.New(os.DirFS(dir), "mlx5_0", 1).Entries(); err == nil || !strings.Contains(err.Error(), "index 3: read "+bad) {
		t.Errorf("a file cannot be read: got %v", err)
	}
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

// TestFilesAreThoseOfTheNamespace has devices of one name in the host and in the pod.
func TestFilesAreThoseOfTheNamespace(t *testing.T) {
	t.Parallel()
	const file = "class/infiniband/mlx5_0/hca_type"
	n := &node{files: t.TempDir()}
	must(t, os.CopyFS(filepath.Join(n.files, "sysfs"), fstest.MapFS{file: {Data: []byte("MT4125\n")}}))
	s := n.subsystem(t, fstest.MapFS{file: {Data: []byte("MT4129\n")}})
	for place, want := range map[plan.Place]string{plan.Host: "MT4129", plan.Pod: "MT4125"} {
		files, err := s.Files(place)
		if err != nil || discover.Text(files, file) != want {
			t.Errorf("%s: got %q, %v, want %q", place, discover.Text(files, file), err, want)
		}
	}
}

func texts(entries []gidtable.Entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.GID.String()+" "+e.Type+" "+e.Netdev)
	}
	return out
}
