// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// liar is a pod with the token that answers what it likes.
type liar struct{ says []report.Answer }

func (l liar) Local() ([]report.Answer, error)             { return nil, nil }
func (l liar) Test(string, Tests) ([]report.Answer, error) { return l.says, nil }

// lies is the report of a test of gpu-01, which lies, and gpu-02.
func lies(t *testing.T, says ...report.Answer) Report {
	t.Helper()
	other := member{"gpu-02", noFaults, nil, nil}
	return All(t.Context(), []Seat{{Member: liar{says}, Name: "gpu-01", Address: "gpu-01"}, {Member: other, Name: "gpu-02", Address: "gpu-02"}}, Tests{}, false, func(int, int) {})
}

func TestAPodCannotAnswerForOthers(t *testing.T) {
	t.Parallel()
	good := report.Finding{Verdict: report.OK, Found: "all is well"}
	for _, a := range []report.Answer{
		problem(Reach, "rail 3 of gpu-02 to gpu-03", "it is broken", "# do", "why"),
		problem(Reach, "rail 3 of gpu-03", "it is broken", "# do", "why"),
		answer(Reach, "rail 3 of gpu-02", good),
		answer(Reach, "rail 3 of gpu-01 to rail 2 of gpu-03", good),
		answer(Reach, "gpu-02", good),
		{Check: Reach, Finding: report.Finding{Verdict: "fine", Of: "rail 3 of gpu-01 to gpu-02"}},
		problem("reach\nproblem      reach", "rail 3 of gpu-01 to gpu-02", "it is broken", "# do", "why"),
		problem(Reach, "rail 3 of gpu-07 is broken, seen by rail 3 of gpu-01 to gpu-02", "it is broken", "# do", "why"),
		problem(Reach, "rail 256 of gpu-01 to gpu-02", "it is broken", "# do", "why"),
		problem(Reach, "rail -1 of gpu-01 to gpu-02", "it is broken", "# do", "why"),
		problem(Reach, "rail 03 of gpu-01 to gpu-02", "it is broken", "# do", "why"),
		problem(Reach, "rail 3 of gpu-01 to x of gpu-02", "it is broken", "# do", "why"),
	} {
		r := lies(t, a)
		if len(r.Verdicts) != 0 || len(r.Answers) != 1 || report.Status(r.Answers) != 2 || !strings.Contains(r.Answers[0].Found, "1 answers of gpu-01 are ") {
			t.Errorf("%+v\ngot %+v", a, r)
		}
	}
	for name, want := range map[string]string{"gpu-07": "gpu-07", "first node": "first node", "a to b": "", "x of y": "", "\x1b[2J": "", strings.Repeat("x", 300): "", "b (10.0.0.2:9483)": ""} {
		if got := named(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

// TestAnAnswerCountsOnce: a rail has the fault if at least two others say so, and one that
// repeats itself is not two.
func TestAnAnswerCountsOnce(t *testing.T) {
	t.Parallel()
	fails := problem(Reach, "rail 3 of gpu-01 to gpu-02", "it is broken", "# do", "why")
	r := lies(t, fails, fails, fails)
	if want := []string{"rail 3 of gpu-01 to gpu-02: it is broken"}; !slices.Equal(r.Verdicts, want) {
		t.Errorf("got %q, want %q", r.Verdicts, want)
	}
}

func TestTextsOfOthersAreShortAndPrintable(t *testing.T) {
	t.Parallel()
	evil := strings.Repeat("\x1b[2J\u202e\n", 1<<20)
	r := lies(t, problem(Reach, "rail 3 of gpu-01 to gpu-02", evil, evil, evil))
	a := r.Answers[0]
	for _, text := range append(r.Verdicts, a.Found, a.Fix, a.Why) {
		if text == "" || len(text) > 10_000 || strings.ContainsAny(text, "\x1b\u202e") {
			t.Errorf("%d bytes: %.100q", len(text), text)
		}
	}
	many := lies(t, problem(MTU, "rail 3 of gpu-01 to gpu-02", strings.Repeat("x", 1<<20), "# do", "why"))
	if n := len(many.Answers[0].Found); n > 10_000 {
		t.Errorf("a line of %d bytes is kept", n)
	}
}

// fake serves a pod with the token, which says what it likes when a caller connects.
func fake(t *testing.T, says reply) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var q request
		w, err := newWire(conn, token, true)
		if err == nil {
			err = w.read(&q)
		}
		if err == nil {
			_ = w.write(says)
		}
		_, _ = io.Copy(io.Discard, conn) // until the caller ends it
	}()
	return l.Addr().String()
}

func outside() Pod { return Pod{Name: "gpu-00", Enter: func(fn func() error) error { return fn() }} }

// TestAPodCannotHaveMillionsOfRails: each would be tested.
func TestAPodCannotHaveMillionsOfRails(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{MostRails: "", MostRails + 1: "257 rails"} {
		peer, err := outside().Dial(t.Context(), fake(t, reply{Name: "x", Rails: make([]Rail, n)}), token, "")
		if err == nil {
			peer.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d rails: %v", n, err)
		}
	}
}

// TestPodsWithOneNameAreToldApart: two pods of a node, or one that takes the name of another.
func TestPodsWithOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	guests := []Guest{{Address: fake(t, reply{Name: "gpu-07"})}, {Address: fake(t, reply{Name: "gpu-07"})}, {Address: fake(t, reply{Name: "gpu-00"})}, {Address: fake(t, reply{Name: "gpu-08"})}}
	guests = append(guests, Guest{Name: "gpu-09", Address: fake(t, reply{})}, Guest{Address: fake(t, reply{Name: "gpu-09"})})
	own := func(i int, name string) string { return fmt.Sprintf("%s (%s)", name, guests[i].Address) }
	seats := outside().Invite(t.Context(), guests, token)
	defer Leave(seats)
	for i, want := range []string{own(0, "gpu-07"), own(1, "gpu-07"), own(2, "gpu-00"), "gpu-08", "gpu-09", own(5, "gpu-09")} {
		if peer, _ := seats[i].Member.(*Peer); seats[i].Name != want || peer == nil || peer.Name != want {
			t.Errorf("guest %d: %q (%v), want %q", i, seats[i].Name, seats[i].Absent, want)
		}
	}
}

// TestAPodThatIsSlowMakesNoOtherOneLate: a peer ends the connection to a pod that does not
// answer long before the leader ends that to the peer. After that, no request waits.
func TestAPodThatIsSlowMakesNoOtherOneLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		peer := &Peer{wire: &wire{conn: near}}
		peer.wire.in = newScanner(near, longestReply)
		start := time.Now()
		for range 100 {
			if (couple{peer: peer}).arrived(smallest) {
				t.Error("a packet has arrived at a pod that does not answer")
			}
		}
		if waited := time.Since(start); waited != moment {
			t.Errorf("it waits %s, want %s", waited, moment)
		}
		if _, err := peer.Local(); !errors.Is(err, ErrGone) {
			t.Errorf("got %v, want that it is gone", err)
		}
	})
	if testTime+moment >= patience || patience >= idle {
		t.Error("a pod that is slow makes another one late")
	}
}
