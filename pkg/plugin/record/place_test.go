// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// What is undone must be that of the attachment in the path.
func TestRecordUnderAnotherPathIsRefused(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
	})
	wrong := []conf.Attachment{{ContainerID: "c1", IfName: "net2"}, {ContainerID: "c2", IfName: "net1"}}
	for _, at := range wrong {
		path := s.path(at)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(s.path(conf.Attachment{ContainerID: "c1", IfName: "net1"}), path); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range wrong {
		rec, err := s.Load(at)
		if cnierr.CodeOf(err) != cnierr.Unreadable || len(rec.Plan.Ops) > 0 {
			t.Errorf("record of c1/net1 as that of %v: %v, want code %d", at, err, cnierr.Unreadable)
		}
	}
}
