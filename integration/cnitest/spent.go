// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnitest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Spent returns the processor time of a process, and its resident set in MiB: now, and at most.
func Spent(t testing.TB, p *os.Process) (cpu time.Duration, now, most int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(stat))
	user, _ := strconv.Atoi(f[13])
	system, _ := strconv.Atoi(f[14])
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d", &now)
		_, _ = fmt.Sscanf(line, "VmHWM: %d", &most)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, now >> 10, most >> 10
}
