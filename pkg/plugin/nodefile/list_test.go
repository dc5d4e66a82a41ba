// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPoolsAreThoseThatHaveAFile(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	if got, err := s.Pools(); err != nil || got != nil {
		t.Errorf("before any was written: %v, error %v", got, err)
	}
	must(t, s.Write(sample(t, 1)))
	for _, name := range []string{"storage", "gone"} { // neither can be read
		plant(t, filepath.Join(s.Dir, "pools", name, "ranges"), "")
	}
	must(t, s.Remove("gone"))
	pools, err := s.Pools()
	must(t, err)
	quarantines, err := s.Quarantines()
	must(t, err)
	if diff := cmp.Diff([]string{"gpu", "storage"}, pools); diff != "" {
		t.Errorf("pools (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]time.Duration{"rail:gpu": 2 * time.Minute}, quarantines); diff != "" {
		t.Errorf("quarantines of files that can be read (-want +got)\n%s", diff)
	}
}
