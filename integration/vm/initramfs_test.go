// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModulesComeAfterWhatTheyDependOn(t *testing.T) {
	t.Parallel()
	k := Kernel{Release: "6.1.0", Dir: t.TempDir()}
	dir := filepath.Join(k.Dir, "lib/modules/6.1.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	dep := "kernel/9p.ko: kernel/9pnet.ko kernel/netfs.ko\nkernel/9pnet.ko:\nkernel/netfs.ko:\nkernel/my9p.ko:\n" +
		"kernel/trans.ko: kernel/virtio.ko kernel/9pnet.ko\nkernel/virtio.ko:\n"
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(dep), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := k.modules([]string{"9p", "builtin", "trans"})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range []string{"netfs", "9pnet", "9p", "virtio", "trans"} {
		want = append(want, filepath.Join(dir, "kernel", m+".ko"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
