// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProgramsEndWithTheProcess: kill -9 of a server or a caller leaves no rping that waits
// for a connection. The process that is killed is this test program.
func TestProgramsEndWithTheProcess(t *testing.T) {
	t.Parallel()
	const asked = "ROCE_VERIFY_STARTS"
	if os.Getenv(asked) != "" {
		_, cmd, err := outside().start(t.Context(), "sleep", []string{"60"})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("pid", cmd.Process.Pid)
		_ = cmd.Wait()
		return
	}
	helper := exec.Command("/proc/self/exe", "-test.run=^TestProgramsEndWithTheProcess$")
	helper.Env = append(os.Environ(), asked+"=1")
	out, err := helper.StdoutPipe()
	if err == nil {
		err = helper.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var program int
	for lines := bufio.NewScanner(out); program == 0 && lines.Scan(); {
		if pid, found := strings.CutPrefix(lines.Text(), "pid "); found {
			program, _ = strconv.Atoi(pid)
		}
	}
	fd, err := unix.PidfdOpen(program, 0)
	if err != nil {
		t.Fatalf("process %d: %v", program, err)
	}
	defer unix.Close(fd)
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		_ = unix.Kill(program, unix.SIGKILL)
		t.Errorf("the program lives on: %v", err)
	}
}

func TestTheAverageBandwidthIsReadFromTheTable(t *testing.T) {
	t.Parallel()
	const said = ` TX depth        : 128
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1000.000000 != 3013.932000. CPU Frequency is not max.
 65536      500              94.72              94.71              0.180640
`
	for said, want := range map[string]string{said: "ib_write_bw transfers 94.71 Gb/s", " TX depth        : 128\n": "ib_write_bw transfers"} {
		if got := gigabits(said); got != want {
			t.Errorf("got %q, want %q, from\n%s", got, want, said)
		}
	}
}
