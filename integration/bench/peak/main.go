// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Program peak runs a program with its own input, output and environment and
// writes the largest resident set that the program had, in KiB, to file
// descriptor 3. Children of the program count.
//
// It must stay tiny, and is a program of its own for that: the kernel counts
// what the parent has in memory for the child, too (exec_mmap,
// setmax_mm_hiwater_rss).
package main

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func main() {
	os.Exit(run()) //nolint:forbidigo // main touches the process
}

func run() int {
	if len(os.Args) != 2 {
		return 2
	}
	cmd := exec.Command(os.Args[1])
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr //nolint:forbidigo // as above
	err := cmd.Run()
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 2
	}
	if _, err := os.NewFile(3, "peak").WriteString(strconv.FormatInt(usage.Maxrss, 10)); err != nil {
		return 2
	}
	if err != nil {
		return max(cmd.ProcessState.ExitCode(), 1)
	}
	return 0
}
