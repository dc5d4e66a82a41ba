// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ground

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a program that runs until it is killed.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// StartProcess runs a program that ends with this process, with its output added
// to a file, and waits until ready returns nil. The context is for the start alone.
func StartProcess(ctx context.Context, log string, cmd *exec.Cmd, ready func(context.Context) error) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	p := &Process{cmd, make(chan struct{})}
	started := make(chan error)
	go func() {
		// PR_SET_PDEATHSIG is about the thread that started the child: it must
		// live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer out.Close()
		defer close(p.done)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed, always
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := p.await(ctx, ready); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w\n%s", cmd.Path, err, tail(log)), p.Kill())
	}
	return p, nil
}

// await polls: neither program tells when it is ready.
func (p *Process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it has ended: %s", p.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", err)
		case <-tick.C:
		}
	}
}

// Kill ends the process with SIGKILL, and returns when it is gone. One that is gone, or was
// never there, is no error.
func (p *Process) Kill() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// tail returns the last lines of a log.
func tail(path string) string {
	const most = 20
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
