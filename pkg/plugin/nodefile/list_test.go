// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func TestPoolsAreThoseThatHaveAFile(t *testing.T) {
	t.Parallel()
	s := nodefile.Store{Dir: t.TempDir(), BootID: "1"}
	if got, err := s.Pools(); err != nil || got != nil {
		t.Errorf("before any was written: %v, error %v", got, err)
	}
	for _, name := range []string{"storage", "compute"} {
		path := filepath.Join(s.Dir, "pools", name, "ranges")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove("storage"); err != nil {
		t.Fatal(err)
	}
	got, err := s.Pools()
	if diff := cmp.Diff([]string{"compute"}, got); diff != "" || err != nil {
		t.Errorf("error %v, (-want +got)\n%s", err, diff)
	}
}

func TestQuarantinesAreThoseOfFilesThatCanBeRead(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	if err := s.Write(sample(t, 1)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Dir, "pools/storage/ranges")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.Quarantines()
	if diff := cmp.Diff(map[string]time.Duration{"rail:gpu": 2 * time.Minute}, got); diff != "" || err != nil {
		t.Errorf("error %v, (-want +got)\n%s", err, diff)
	}
}
