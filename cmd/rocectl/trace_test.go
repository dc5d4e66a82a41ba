// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// TestTraceShowsWhatEndsMeanwhile: with -w, trace goes on after what is kept. Each further call
// of the pods that were asked for is a line, under one head.
func TestTraceShowsWhatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	kept := calls.File{Dir: t.TempDir()}
	end := func(verb, pod string) {
		t.Helper()
		call := calls.Call{At: time.Now(), Verb: verb, Network: "rails", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: pod}
		if err := kept.Append(call); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reader, writer := io.Pipe()
	cmd := traceCommand(&nodeFlags{stateDir: kept.Dir})
	cmd.SetOut(writer)
	cmd.SetArgs([]string{"-w", "-n", "ml", "--last", "1"})
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = writer.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(reader)
	shows := func(want ...string) {
		t.Helper()
		lines.Scan()
		for _, w := range want {
			if !strings.Contains(lines.Text(), w) {
				t.Errorf("got the line %q, want %q", lines.Text(), want)
			}
		}
	}
	shows("# no call is kept")
	end("ADD", "ml/trainer-0")
	end("ADD", "other/trainer-0")
	end("DEL", "ml/trainer-0")
	shows("ENDED", "CALL")
	shows("ADD", "ml/trainer-0")
	shows("DEL", "ml/trainer-0")
	end("DEL", "other/trainer-0")
	end("ADD", "ml/trainer-1")
	shows("ADD", "ml/trainer-1")
	stop()
	for lines.Scan() {
		t.Errorf("got the line %q after the end", lines.Text())
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
