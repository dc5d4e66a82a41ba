// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// informed returns a world with RDMA, an ADD for which Multus names a file, and
// that file.
func informed(t *testing.T) (w *world, req conf.Request, file string) {
	t.Helper()
	w = exclusive(t)
	file = filepath.Join(t.TempDir(), "devinfo", "cni", "rail-c1_net1")
	return w, w.request("c1", "net1", fmt.Sprintf(`, "runtimeConfig": {"CNIDeviceInfoFile": %q}`, file)), file
}

func TestDeviceInfoIsThereFromAddToDel(t *testing.T) {
	t.Parallel()
	w, req, file := informed(t)
	w.mustAdd(req)
	b, err := os.ReadFile(file)
	if want := `"rdma-device":"mlx5_0"`; err != nil || !strings.Contains(string(b), want) {
		t.Errorf("the file holds %q (%v), want %s in it", b, err, want)
	}
	if _, err := w.repairs().CheckRecord(ctx, c1); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(file))
	if _, err := w.repairs().CheckRecord(ctx, c1); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), file) {
		t.Errorf("CHECK without the file: %v", err)
	}
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestDeviceInfoGoesAfterACrashAtEveryOp(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("namespace gone %t", gone), func(t *testing.T) {
			t.Parallel()
			written := 0
			for at := 1; ; at++ {
				w, req, file := informed(t)
				w.crash = at
				if died := w.run(func(n attach.Node) { _, _ = n.Add(ctx, req) }); !died {
					break
				}
				w.crash = 0
				if _, err := os.Stat(file); err == nil {
					written++
				}
				if gone {
					w.fake.RemovePod(podPath("c1"))
				}
				when := fmt.Sprintf("after a crash before operation %d and DEL", at)
				w.mustLeave("c1", when)
				if _, err := os.Stat(file); err == nil {
					t.Errorf("%s the file is there", when)
				}
				w.mustBeEmpty(when)
			}
			if written == 0 {
				t.Error("no crash left the file")
			}
		})
	}
}
