// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package flocktest lets tests wait until a process waits for a file lock, so that
// they need not guess how long that takes.
package flocktest

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// UntilBlocked returns when a process or thread waits for a lock on the file at
// path: one of flock(2), or of an open file description. The kernel shows it
// with an arrow and the file's inode number (fs/locks.c, lock_get_status).
// Without /proc/locks it skips the test. The test fails at once when ended says
// that the process has ended without waiting.
func UntilBlocked(t testing.TB, path string, ended <-chan error) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	blocked := regexp.MustCompile(fmt.Sprintf(`-> (FLOCK|OFDLCK) .*:%d `, st.Ino))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		select {
		case err := <-ended:
			t.Fatalf("it has ended (%v) and has not waited for a lock on %s", err, path)
		case <-tick.C:
		}
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Skip(err)
		}
		if blocked.Match(locks) {
			return
		}
	}
	t.Fatalf("no process waits for a lock on %s", path)
}
