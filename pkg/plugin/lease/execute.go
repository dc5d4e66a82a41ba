// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

const (
	// busyTries and busyPause are for a program that is being installed.
	busyTries = 10
	busyPause = 100 * time.Millisecond
	// pipeDelay is how long the children of a program may keep its output open
	// after it ended.
	pipeDelay = time.Second
	// maxOutput is how many bytes a program may print on each of its outputs.
	maxOutput = 1 << 20
	// maxSaid is how many bytes of a program's output an error shows.
	maxSaid = 300
)

// ErrFlood says that a program printed more than maxOutput.
var ErrFlood = errors.New("it printed more than 1 MiB, and was stopped")

// program is a CNI plugin that is to be run.
type program struct {
	path    string
	environ []string
	stdin   []byte
	stderr  io.Writer
	inherit []*os.File
}

// run runs the plugin and returns its output. The error is the *types.Error
// that the plugin printed, the context's, or one of os/exec. The plugin and its
// children end with the context.
func (p program) run(ctx context.Context) ([]byte, error) {
	for try := 1; ; try++ {
		out, err := p.once(ctx)
		if !errors.Is(err, unix.ETXTBSY) || try == busyTries {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyPause):
		}
	}
}

func (p program) once(ctx context.Context) ([]byte, error) {
	var stdout, stderr output
	cmd := exec.CommandContext(ctx, p.path) //nolint:gosec // a plugin of CNI_PATH, which the runtime chooses
	cmd.Env, cmd.Stdin, cmd.ExtraFiles = p.environ, bytes.NewReader(p.stdin), p.inherit
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(p.stderr, &stderr)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	cmd.WaitDelay = pipeDelay
	err := cmd.Run()
	var exit *exec.ExitError
	var said types.Error
	switch {
	case stdout.flood || stderr.flood:
		return nil, fmt.Errorf("%w: %q", ErrFlood, head(append(stdout.printed, stderr.printed...)))
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it ended well, with its output open
		return stdout.printed, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w; the last that it printed is %q", ctx.Err(), tail(append(stdout.printed, stderr.printed...)))
	case !errors.As(err, &exit):
		return nil, err
	case json.Unmarshal(stdout.printed, &said) == nil && (said.Msg != "" || said.Code != 0):
		return nil, &said
	}
	return nil, fmt.Errorf("%w; it printed %q", err, head(append(stdout.printed, stderr.printed...)))
}

// output is what a program printed. When that is too much, Write refuses the rest: the pipe
// closes, and the next write of the program ends it. Without a limit one that prints in a
// loop would take the memory of the node.
type output struct {
	printed []byte
	flood   bool
}

func (o *output) Write(b []byte) (int, error) {
	if o.flood = o.flood || len(o.printed)+len(b) > maxOutput; o.flood {
		return 0, ErrFlood
	}
	o.printed = append(o.printed, b...)
	return len(b), nil
}

func head(b []byte) []byte { return bytes.TrimSpace(b[:min(len(b), maxSaid)]) }

func tail(b []byte) []byte { return bytes.TrimSpace(b[max(0, len(b)-maxSaid):]) }
