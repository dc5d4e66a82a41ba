// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// script is an API server in memory: it answers with these codes, one after the other, and notes
// how much time is between the requests. The last answer is given again and again.
type script struct {
	t     *testing.T
	codes []int

	mu   sync.Mutex
	last time.Time
	gaps []time.Duration
}

var reasons = map[int]metav1.StatusReason{
	http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden,
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gaps = append(s.gaps, time.Since(s.last))
	s.last = time.Now()
	code := s.codes[min(len(s.gaps), len(s.codes))-1]
	body := `{"metadata": {"name": "n1"}}`
	if code != http.StatusOK {
		body = fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": %d, "reason": %q, "details": {"name": "n1"}}`, code, reasons[code])
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

func (s *script) api() *kube.API {
	s.last = time.Now()
	api, err := kube.Open(&rest.Config{Host: "http://api", Transport: s}, time.Now)
	if err != nil {
		s.t.Fatal(err)
	}
	return api
}

// asked returns how many requests there were.
func (s *script) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gaps)
}

// waited fails the test unless the requests came about so many seconds after each other.
func (s *script) waited(what string, seconds ...float64) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := len(s.gaps) == len(seconds)
	for i := range min(len(s.gaps), len(seconds)) {
		got := s.gaps[i].Seconds()
		ok = ok && got >= 0.75*seconds[i] && got <= 1.25*seconds[i]
	}
	if !ok {
		s.t.Errorf("%s: the requests came after %v, want about %v seconds", what, s.gaps, seconds)
	}
}

// told returns the first word of the messages of a log, and its levels.
func told(log *bytes.Buffer) string {
	var out []string
	for line := range strings.Lines(log.String()) {
		_, level, _ := strings.Cut(line, "level=")
		level, _, _ = strings.Cut(level, " ")
		if strings.Contains(line, `msg="solved: `) {
			level += " solved"
		}
		out = append(out, level)
	}
	return strings.Join(out, ", ")
}

// TestABusyServerIsAskedSeldomByAnAgent: all agents of a cluster ask at the same time.
func TestABusyServerIsAskedSeldomByAnAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &script{t: t, codes: []int{500, 500, 500, 500, 500, 500, 500, 404}}
		faults := 0
		got, err := watcher{s.api(), "n1", slog.New(slog.NewTextHandler(&log, nil))}.first(t.Context(), func(v agent.View) {
			if errors.Is(v.Fault, block.ErrUnknown) {
				faults++
			}
		})
		s.waited("the first Node object", 0, 1, 2, 4, 8, 15, 15, 15)
		if faults != 7 || err != nil || !errors.Is(got.err, block.ErrNotFound) || told(&log) != "WARN, INFO solved" {
			t.Errorf("it sees %d faults, and then %+v, %v; the log is\n%s", faults, got, err, log.String())
		}

		faults = 0
		s = &script{t: t, codes: []int{500, 500, 500, 500, 500, 500, 404, 403, 200}}
		err = serviceWatcher{s.api(), slog.New(slog.DiscardHandler)}.served(t.Context(), func(_ []netip.Prefix, err error) {
			if err != nil {
				faults++
			}
		})
		s.waited("ServiceCIDRs", 0, 1, 2, 4, 8, 15, 15, 300, 300)
		if faults != 8 || err != nil {
			t.Errorf("it sees %d faults, and then %v", faults, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		s = &script{t: t, codes: []int{404}}
		serviceWatcher{s.api(), slog.New(slog.DiscardHandler)}.watch(ctx, func([]netip.Prefix, error) { stop() })
		s.waited("ServiceCIDRs of an agent that is stopped", 0)
	})
}

// TestTheNodeObjectIsReadAgain has a Node object that does not exist at first, and a change of the
// pools between two reads.
func TestTheNodeObjectIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var log bytes.Buffer
		s := &script{t: t, codes: []int{404, 404, 200, 200, 500, 200}}
		changed := make(chan struct{})
		var views []agent.View
		go func() {
			v := watcher{s.api(), "n1", slog.New(slog.NewTextHandler(&log, nil))}
			pools := cache.NewStore(cache.MetaNamespaceKeyFunc)
			err := v.follow(ctx, nodeRead{err: block.ErrNotFound}, pools, changed, func(v agent.View) { views = append(views, v) })
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		for s.asked() < 6 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		s.waited("by itself", 1, 2, 4, 300, 300, 1)
		changed <- struct{}{}
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if n := s.asked(); n != 7 {
			t.Errorf("after a change of the pools, it asks %d times", n-6)
		}
		var none []bool
		for _, v := range views {
			none = append(none, cnierr.CodeOf(v.NoNode) == cnierr.NotAvailable && errors.Is(v.NoNode, block.ErrNotFound))
		}
		if want := []bool{true, false, false, false, false, false}; !slices.Equal(none, want) {
			t.Errorf("the Node object is missing: %v, want %v", none, want)
		}
		if got := told(&log); got != "WARN, INFO solved, WARN, INFO solved" {
			t.Errorf("the log has %s", got)
		}
	})
}

// TestAPersonWaitsSomeSecondsForABusyServer, but not longer, and not at all if it asks for more.
func TestAPersonWaitsSomeSecondsForABusyServer(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]int{0: 51, time.Second: 11, 4 * time.Second: 3, 10 * time.Second: 2, 11 * time.Second: 1} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			err := settled(t.Context(), func() error { asked++; return &block.BusyError{After: after} })
			if asked != want || !errors.As(err, new(*block.BusyError)) {
				t.Errorf("with Retry-After %s, it asks %d times, want %d: %v", after, asked, want, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		asked := 0
		err := settled(ctx, func() error { asked++; stop(); return &block.BusyError{} })
		if asked != 1 || !errors.As(err, new(*block.BusyError)) {
			t.Errorf("a person who ends the command: it asks %d times, %v", asked, err)
		}
	})
}

// TestTheReaperWorksUntilItIsStopped: it takes the Lease first, and gives it up in the end.
func TestTheReaperWorksUntilItIsStopped(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	api, err := kube.Open(&rest.Config{Host: s.URL}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	worked := false
	err = gcFlags{namespace: "net"}.lead(ctx, api, slog.New(slog.NewTextHandler(&log, nil)), func(ctx context.Context) error {
		worked = true
		stop()
		return ctx.Err()
	})
	text := log.String()
	if err != nil || !worked || !strings.Contains(text, "lease=net/roce-cni-gc identity="+host+"_") || !strings.HasSuffix(text, "msg=stopped lease=net/roce-cni-gc\n") {
		t.Errorf("it worked: %t, %v, the log is\n%s", worked, err, text)
	}
	const path = "/apis/coordination.k8s.io/v1/namespaces/net/leases"
	if asked := strings.Join(s.asked, "\n"); !strings.HasPrefix(asked, "GET "+path+"/roce-cni-gc ") || !strings.Contains(asked, "POST "+path+" ") {
		t.Errorf("it sends\n%s", asked)
	}
}
