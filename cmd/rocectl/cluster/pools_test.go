// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// follows runs a watcher that has read the Node object, on an API server that does not
// answer any more.
func follows(t *testing.T, pools cache.Store) (changed chan<- struct{}, seen <-chan agent.View) {
	t.Helper()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	api, err := kube.Open(&rest.Config{Host: server.URL}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	changes, views := make(chan struct{}), make(chan agent.View, 10)
	node := nodeRead{Node: kube.Node{Name: "n1", UID: "u1", MachineID: "m1", Labels: map[string]string{"gpu": "yes"}}}
	ctx := t.Context()
	go func() {
		v := watcher{api, "n1", slog.New(slog.DiscardHandler)}
		_ = v.follow(ctx, node, pools, changes, func(v agent.View) { views <- v }) // the context's error
	}()
	return changes, views
}

func names(v agent.View) []string {
	var out []string
	for _, p := range v.Pools {
		out = append(out, p.Name)
	}
	return out
}

// TestADeletedPoolIsSeenThoughTheNodeObjectIsNot has the API server not answer: what
// it has said of the pools counts for the claims that are under way.
func TestADeletedPoolIsSeenThoughTheNodeObjectIsNot(t *testing.T) {
	t.Parallel()
	pools := cache.NewStore(cache.MetaNamespaceKeyFunc)
	pool := &kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	if err := pools.Add(pool); err != nil {
		t.Fatal(err)
	}
	changed, seen := follows(t, pools)
	if v := <-seen; !cmp.Equal(names(v), []string{"p"}) || v.Pools[0].UID != "u" || v.Pools[0].Deleted || v.Labels["gpu"] != "yes" || v.MachineID != "m1" {
		t.Fatalf("it sees %+v", v)
	}
	now := *pool
	now.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if err := pools.Update(&now); err != nil {
		t.Fatal(err)
	}
	changed <- struct{}{}
	select {
	case v := <-seen:
		if !v.Pools[0].Deleted || v.Labels["gpu"] != "yes" {
			t.Errorf("it sees %+v", v)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the Node object")
	}
}

// TestPoolsAreSeenInTheSameOrder keeps what is wrong with two of them from being said
// again and again.
func TestPoolsAreSeenInTheSameOrder(t *testing.T) {
	t.Parallel()
	pools := cache.NewStore(cache.MetaNamespaceKeyFunc)
	want := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, name := range want {
		if err := pools.Add(&kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if diff := cmp.Diff(want, names(watcher{}.of(pools, kube.Node{}))); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestAChangeOfAPoolIsMoreThanItsStatus: a pool that was deleted and made again while the watch
// was broken comes as an update.
func TestAChangeOfAPoolIsMoreThanItsStatus(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*kube.RailPool)
		want   int
	}{
		"a status":       {func(p *kube.RailPool) { p.ResourceVersion, p.Status.Free = "8", 5 }, 0},
		"a spec":         {func(p *kube.RailPool) { p.Generation = 2 }, 1},
		"a finalizer":    {func(p *kube.RailPool) { p.Finalizers = nil }, 1},
		"another object": {func(p *kube.RailPool) { p.UID = "v" }, 1},
	} {
		before := &kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: 1, Finalizers: []string{"f"}}}
		now := *before
		tt.change(&now)
		heard, changed := 0, 0
		h := handler(func() { heard++ }, func() { changed++ })
		h.OnUpdate(before, &now)
		if heard != 1 || changed != tt.want {
			t.Errorf("%s: heard %d times, %d changes, want %d", name, heard, changed, tt.want)
		}
		h.OnAdd(before, true)
		h.OnDelete(before)
		if heard != 3 || changed != 2+tt.want {
			t.Errorf("%s: a pool that comes and goes: heard %d times, %d changes", name, heard-1, changed-tt.want)
		}
	}
}

// TestTheErrorSaysWhyTheFirstAnswerDoesNotCome first asks an address where no server
// listens. Then it asks a server that refuses the token.
func TestTheErrorSaysWhyTheFirstAnswerDoesNotCome(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}`)
	}))
	t.Cleanup(server.Close)
	for host, want := range map[string]string{"http://127.0.0.1:1": "connection refused", server.URL: "provide credentials"} {
		api, err := kube.Open(&rest.Config{Host: host}, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		err = watcher{api, "n1", slog.New(slog.NewTextHandler(&log, nil))}.watch(ctx, func(v agent.View) {
			if v.Fault == nil || !strings.Contains(v.Fault.Error(), want) {
				t.Errorf("%s: it sees %+v", host, v)
			}
			cancel()
		})
		if !errors.Is(err, context.Canceled) || !strings.Contains(log.String(), want) {
			t.Errorf("%s: %v, and the log is\n%s", host, err, log.String())
		}
	}
}

// TestAWatchThatWorksAgainIsToldThoughNoPoolHasChanged: otherwise the next error would not be
// in the log.
func TestAWatchThatWorksAgainIsToldThoughNoPoolHasChanged(t *testing.T) {
	t.Parallel()
	var refused atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); {
		case strings.HasSuffix(r.URL.Path, "/nodes/n1"):
			_, _ = io.WriteString(w, `{"metadata": {"name": "n1"}}`)
		case !q.Has("watch"):
			_, _ = io.WriteString(w, `{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPoolList", "metadata": {"resourceVersion": "7"},
				"items": [{"metadata": {"name": "p", "uid": "u", "resourceVersion": "5"}}]}`)
		case q.Has("sendInitialEvents") || refused.CompareAndSwap(false, true):
			w.WriteHeader(http.StatusForbidden)
		default:
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	api, err := kube.Open(&rest.Config{Host: server.URL}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	lines, log := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = watcher{api, "n1", slog.New(slog.NewTextHandler(log, nil))}.watch(ctx, func(agent.View) {}) // the context's error
		_ = log.Close()
	}()
	var got []string
	for all := bufio.NewScanner(lines); all.Scan(); {
		if got = append(got, all.Text()); strings.Contains(all.Text(), "solved: the RailPools cannot be watched") {
			cancel()
		}
	}
	cancel()
	<-ended
	if len(got) < 2 || !strings.Contains(got[0], "level=WARN") || !strings.Contains(got[1], "solved: ") {
		t.Errorf("the log is\n%s", strings.Join(got, "\n"))
	}
}

// apiOf returns a server that sends events, and what reads it.
func apiOf(t *testing.T, resource string) (*apiServer, *kube.API) {
	t.Helper()
	s := newServer(t)
	s.events[resource] = make(chan string)
	api, err := kube.Open(&rest.Config{Host: s.URL}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return s, api
}

func TestAnAgentSeesEachPoolThatComesAndGoes(t *testing.T) {
	t.Parallel()
	s, api := apiOf(t, "railpools")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	event := func(kind, version string) string {
		return `{"type": "` + kind + `", "object": {"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPool", "metadata": {"name": "new", "uid": "n", "resourceVersion": "` + version + `"}}}`
	}
	var got []string
	err := watcher{api, "n1", slog.New(slog.DiscardHandler)}.watch(ctx, func(v agent.View) {
		now := strings.Join(names(v), " ")
		if len(got) == 0 || got[len(got)-1] != now {
			got = append(got, now)
			switch len(got) {
			case 1:
				s.events["railpools"] <- event("ADDED", "8")
			case 2:
				s.events["railpools"] <- event("DELETED", "9")
			default:
				stop()
			}
		}
	})
	if want := []string{"gpu storage", "gpu new storage", "gpu storage"}; !cmp.Equal(got, want) || !errors.Is(err, context.Canceled) {
		t.Errorf("it sees %q, want %q: %v", got, want, err)
	}
}

// TestPoolsThatMayNotBeListedAreAFault of the first view.
func TestPoolsThatMayNotBeListedAreAFault(t *testing.T) {
	t.Parallel()
	s, api := apiOf(t, "railpools")
	s.forbidden = "railpools"
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err := watcher{api, "n1", slog.New(slog.DiscardHandler)}.watch(ctx, func(v agent.View) {
		if cnierr.CodeOf(v.Fault) != cnierr.NotAvailable || !strings.Contains(v.Fault.Error(), "watch RailPools") {
			t.Errorf("it sees %+v", v)
		}
		stop()
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAnAgentSeesEachCIDROfServicesThatComesAndGoes(t *testing.T) {
	t.Parallel()
	s, api := apiOf(t, "servicecidrs")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	event := func(kind, version, cidr string) string {
		return `{"type": "` + kind + `", "object": {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
			"metadata": {"name": "new", "uid": "n", "resourceVersion": "` + version + `"}, "spec": {"cidrs": ["` + cidr + `"]}}}`
	}
	events := []string{event("ADDED", "8", "10.98.0.0/16"), event("MODIFIED", "9", "10.99.0.0/16"), event("DELETED", "10", "10.99.0.0/16")}
	var got []string
	serviceWatcher{api, slog.New(slog.DiscardHandler)}.watch(ctx, func(cidrs []netip.Prefix, err error) {
		if err != nil {
			t.Error(err)
		}
		var all []string
		for _, c := range cidrs {
			all = append(all, c.String())
		}
		slices.Sort(all)
		now := strings.Join(all, " ")
		if len(got) == 0 || got[len(got)-1] != now {
			if got = append(got, now); len(events) == 0 {
				stop()
				return
			}
			s.events["servicecidrs"] <- events[0]
			events = events[1:]
		}
	})
	const first = "10.96.0.0/16 10.97.0.0/16"
	if diff := cmp.Diff([]string{first, first + " 10.98.0.0/16", first + " 10.99.0.0/16", first}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
