// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
)

// startGuard starts a process that removes what this one has made on the node, if this one
// is killed. end must be called when nothing is left to remove.
func startGuard() (end func(), err error) {
	cmd := exec.Command("/proc/self/exe", guardName)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to our group is not for it
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, cnierr.New(cnierr.IO, "start", "/proc/self/exe "+guardName, "", "%w", err)
	}
	return func() {
		_, _ = pipe.Write([]byte("done"))
		_ = pipe.Close()
		_ = cmd.Wait()
	}, nil
}

const guardName = "guard"

// guardCommand waits until the program that started it has ended. The pipe ends with that
// program, whatever ends it.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use: guardName, Hidden: true, Short: "Remove what the program at the other end of standard input has left", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			if said, err := io.ReadAll(cmd.InOrStdin()); len(said) > 0 || err != nil {
				return err
			}
			b, lock, err := bench()
			if err != nil {
				return err
			}
			defer lock.Close()
			if err := flock.Wait(cmd.Context(), lock, unix.LOCK_EX); err != nil {
				return err
			}
			return b.Clean(cmd.Context())
		},
	}
}
