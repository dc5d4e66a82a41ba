// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

const token = "the token of a test"

// TestVerifyNamesTheFaultBetweenTwoPods: two pods, connected by one cable.
func TestVerifyNamesTheFaultBetweenTwoPods(t *testing.T) {
	t.Setenv(verify.TokenVariable, token)
	t.Setenv("NODE_NAME", "gpu-01")
	n := kerneltest.NewNode(t)
	a, b := n.Pod(), n.Pod()
	a.IP("link add net1 type veth peer name net1 netns " + b.Path)
	for i, p := range []*kerneltest.Netns{a, b} {
		addr := fmt.Sprintf("172.16.0.%d", i+1)
		p.IP("link set net1 up mtu 9000")
		p.IP("address add " + addr + "/24 dev net1")
		p.IP("route add 172.16.0.0/24 dev net1 table 100 proto 82 src " + addr)
		p.IP("rule add from " + addr + " lookup 100 priority 32000 protocol 82")
		p.IP("rule add from " + addr + " unreachable priority 32001 protocol 82")
	}
	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	done := make(chan error)
	go func() {
		cmd := root(writer, io.Discard)
		cmd.SetArgs([]string{"verify", "serve", "--netns", b.Path, "--name", "gpu-02", "--listen", "172.16.0.2:9483"})
		done <- cmd.ExecuteContext(ctx)
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if _, err := io.ReadFull(reader, make([]byte, len("gpu-02 listens on 172.16.0.2:9483\n"))); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	test := func() string {
		var out bytes.Buffer
		cmd := root(&out, io.Discard)
		cmd.SetArgs([]string{"verify", "172.16.0.2", "--netns", a.Path, "--html", page, "--verbose"})
		if status := cli.StatusError(0); !errors.As(cmd.ExecuteContext(t.Context()), &status) {
			t.Error("RDMA cannot be judged on the machine of the test, so want a status")
		}
		return out.String()
	}
	for _, want := range []string{"rail 0 of gpu-01: net1 172.16.0.1 has table 100", "rail 0 of gpu-01 to gpu-02: packets of 9000 bytes pass"} {
		if out := test(); !strings.Contains(out, want) || !strings.Contains(out, "\n# no fault on 2 rails of 2 pods") {
			t.Errorf("want %q, got\n%s", want, out)
		}
	}
	a.IP("link set net1 mtu 4200")
	const fault = "rail 0 of gpu-01 to gpu-02: MTU 4200 on gpu-01 and 9000 on gpu-02"
	if out := test(); !strings.Contains(out, fault) || !strings.Contains(out, "\n# 1 fault on 2 of 2 rails of 2 pods\n") {
		t.Errorf("want %q, got\n%s", fault, out)
	}
	if b, err := os.ReadFile(page); err != nil || !strings.Contains(string(b), fault) {
		t.Errorf("the page lacks the fault: %v\n%s", err, b)
	}
}

// TestVerifyEndsWithItsCaller: the input of a leader ends before its test does, here before
// pods that do not answer are given up. Then no round of tests begins.
func TestVerifyEndsWithItsCaller(t *testing.T) {
	t.Setenv(verify.TokenVariable, token)
	n := kerneltest.NewNode(t)
	pod := n.Pod()
	pod.IP("link set lo up")
	var silent net.Listener
	err := pod.Do(func() (err error) { silent, err = net.Listen("tcp", "127.0.0.1:0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	reader, writer := io.Pipe()
	go func() {
		_, _ = fmt.Fprintf(writer, "gpu-02=%s\ngpu-03=%[1]s\n.\n", silent.Addr())
		conn, err := silent.Accept()
		_ = writer.Close()
		if err == nil {
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	var out bytes.Buffer
	cmd := root(&out, &out)
	cmd.SetIn(reader)
	cmd.SetArgs([]string{"verify", "--all", "--netns", pod.Path, "-"})
	if err := cmd.ExecuteContext(t.Context()); cnierr.CodeOf(err) != cnierr.NotAvailable {
		t.Errorf("got %v, want that the caller has gone", err)
	}
	if strings.Contains(out.String(), "round 1") {
		t.Errorf("after its caller has gone it goes on:\n%s", &out)
	}
}

// TestProgressSaysHowLongTheRoundsTake: of 65 rounds, of which the first 60 take ten milliseconds
// and the others half a minute.
func TestProgressSaysHowLongTheRoundsTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tell := progress(&out)
		tell(0, 65)
		time.Sleep(time.Hour) // each pod tests itself: that says nothing about rounds
		for round := range 65 {
			tell(round+1, 65)
			if round < 60 {
				time.Sleep(10 * time.Millisecond)
			} else {
				time.Sleep(30 * time.Second)
			}
		}
		want := `each pod tests itself
round 1 of 65
round 62 of 65 after 31s, about 2s left
round 63 of 65 after 1m1s, about 3s left
round 64 of 65 after 1m31s, about 3s left
round 65 of 65 after 2m1s, about 2s left
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// TestVerifyIsNoTestOfNothing: a test of all pods goes on without this one if it has no rail, but
// not if its rails cannot be read.
func TestVerifyIsNoTestOfNothing(t *testing.T) {
	t.Parallel()
	unread := verify.Pod{Enter: func(func() error) error { return unix.EMFILE }}
	for _, all := range []bool{false, true} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetErr(io.Discard)
		if _, err := (&verifyFlags{all: all}).test(cmd, unread, nil); !errors.Is(err, unix.EMFILE) {
			t.Errorf("--all=%t: %v", all, err)
		}
	}
}

func TestVerifySaysWhatItLacks(t *testing.T) {
	n := kerneltest.NewNode(t)
	empty := n.Pod()
	for _, command := range [][]string{{"verify", "serve", "--netns", empty.Path}, {"verify", "--all", "--netns", empty.Path, "127.0.0.1:1"}} {
		if got := call(command...); !strings.Contains(got, `use token "$ROCE_VERIFY_TOKEN": it has 0 bytes`) {
			t.Errorf("without a token: got %s", got)
		}
	}
	t.Setenv(verify.TokenVariable, token)
	state := t.TempDir()
	save(t, state, record.Record{
		Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "job"}, Netns: empty.Path, Plan: plan.Plan{Ops: plan.InPod(plan.Up{Link: "net1"})},
	})
	for _, c := range []struct{ args, want string }{
		{"verify --all ml/job 127.0.0.1:1 --state-dir " + state, `connect to "127.0.0.1:1"`},
		{"verify --all --netns " + empty.Path + " gpu-02=127.0.0.1:1", "cannot tell  reach            gpu-02: dial tcp 127.0.0.1:1"},
		{"verify serve --netns " + empty.Path + " --listen nonsense", `listen "nonsense"`},
		{"verify serve --netns " + empty.Path + " --listen 127.0.0.1:0", "no interface of roce"},
		{"verify --netns " + empty.Path, "no interface of roce"},
		{"verify --all --netns " + empty.Path + " 127.0.0.1:1", `connect to "127.0.0.1:1"`},
		{"verify --netns=", `use flag "--netns"`},
	} {
		if got := call(strings.Fields(c.args)...); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %q", c.args, got, c.want)
		}
	}
}

// TestAllAnswersAreToldIfTheyAreAskedFor, the last one too.
func TestAllAnswersAreToldIfTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	answer := func(of string) report.Answer {
		return report.Answer{Check: verify.Reach, Finding: report.Finding{Verdict: report.OK, Of: of, Found: "packets pass"}}
	}
	r := verify.Report{Answers: []report.Answer{answer("rail 0 of a to b"), answer("rail 1 of a to b")}}
	for each, want := range map[bool]string{false: "", true: "ok           reach            rail 0 of a to b: packets pass\nok           reach            rail 1 of a to b: packets pass\n"} {
		var whole, brief strings.Builder
		err := errors.Join((&verifyFlags{each: each}).report(&whole, r), r.WriteText(&brief))
		if diff := cmp.Diff(want+brief.String(), whole.String()); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	}
}
