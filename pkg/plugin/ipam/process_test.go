// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// workerDir in the environment turns the test binary into a process that
// leases and releases, as many CNI calls do, until it is killed.
const workerDir = "IPAM_TEST_WORKER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerDir); dir != "" {
		work(dir)
	}
	os.Exit(m.Run())
}

func work(dir string) {
	book := ipam.New(ipam.Config{
		Dir: dir, BootID: boot1,
		Now:     func() time.Duration { return time.Hour },
		Observe: everyNetnsLives,
	})
	parent := os.Getppid()
	for i := 0; os.Getppid() == parent; i++ { // not longer than the test
		a := ask(fmt.Sprintf("w%d-%d", os.Getpid(), i%20), subnet("10.0.0.0/16"), subnet("fd00::/64"))
		a.Quarantine = 0
		fmt.Println("leasing", a.Owner.ContainerID)
		if _, err := book.Acquire(ctx, a); err != nil {
			fmt.Println("failed to acquire:", err)
			os.Exit(1)
		}
		fmt.Println("leased", a.Owner.ContainerID)
		if i%3 == 0 {
			fmt.Println("releasing", a.Owner.ContainerID)
			if err := book.Release(ctx, a.Owner.Key(), netns.Ref{}); err != nil {
				fmt.Println("failed to release:", err)
				os.Exit(1)
			}
			fmt.Println("released", a.Owner.ContainerID)
		}
	}
	os.Exit(1)
}

// TestProcessesThatAreKilledLoseAndDoubleNothing runs four processes at once
// and kills them with SIGKILL at random moments, again and again. What a worker
// has said of its leases before its end must be so after it.
func TestProcessesThatAreKilledLoseAndDoubleNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills 48 processes, which -short excludes")
	}
	t.Parallel()
	n := newNode(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	said := map[string]string{} // by container, the last word of its worker
	for range 12 {
		var workers []*exec.Cmd
		var outputs []*heard
		for range 4 {
			cmd, out := exec.Command(os.Args[0]), &heard{first: make(chan struct{})}
			cmd.Env = append(os.Environ(), workerDir+"="+n.dir)
			cmd.Stdout = out
			must(t, cmd.Start())
			workers, outputs = append(workers, cmd), append(outputs, out)
		}
		<-outputs[0].first // however long a process takes to start here
		for i, cmd := range workers {
			timer := time.AfterFunc(time.Duration(rnd.IntN(60))*time.Millisecond, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			timer.Stop()
			for line := range strings.Lines(outputs[i].String()) {
				word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
				if word == "failed" {
					t.Error(line)
				}
				said[id] = word
			}
		}
		n.mustBeSound(said)
	}
	if len(n.holders()) == 0 {
		t.Error("the workers have leased nothing")
	}
}

// heard is what a worker has said. first is closed when it has leased or failed.
type heard struct {
	strings.Builder
	first chan struct{}
}

func (h *heard) Write(b []byte) (int, error) {
	before := h.done()
	n, err := h.Builder.Write(b)
	if !before && h.done() {
		close(h.first)
	}
	return n, err
}

func (h *heard) done() bool {
	return strings.Contains(h.String(), "leased ") || strings.Contains(h.String(), "failed ")
}

// mustBeSound checks that the database can be read and has no address twice.
// Each attachment that holds addresses must hold one of each family. said has
// the last word about an attachment: after "leased" it must hold addresses,
// after "released" none.
func (n *node) mustBeSound(said map[string]string) {
	n.t.Helper()
	entries, err := n.book().List(ctx, "")
	must(n.t, err)
	addrs := map[netip.Addr]bool{}
	held := map[string]int{}
	for _, e := range entries {
		if addrs[e.Addr] {
			n.t.Errorf("%v is there twice", e.Addr)
		}
		addrs[e.Addr] = true
		if e.State.String() == "leased" {
			held[e.Owner.ContainerID]++
		}
	}
	for id, count := range held {
		if count != 2 {
			n.t.Errorf("%s holds %d addresses, want 2", id, count)
		}
	}
	for id, word := range said {
		if word == "leased" && held[id] == 0 || word == "released" && held[id] > 0 {
			n.t.Errorf("the last that %s was said to be is %s, and it holds %d addresses", id, word, held[id])
		}
	}
}

func TestParallelCallsGiveEachAddressOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var mu sync.Mutex
	var got []string
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			l, err := n.book().Acquire(ctx, ask(fmt.Sprint("pod", i), subnet("10.0.0.0/26")))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, l[0].Prefix.String())
		})
	}
	wg.Wait()
	slices.Sort(got)
	if len(slices.Compact(got)) != 50 {
		t.Errorf("got %v", got)
	}
}

// everyNetnsLives is an observation of a node on which no namespace ends.
func everyNetnsLives() func(netns.Ref) (bool, error) {
	return func(netns.Ref) (bool, error) { return true, nil }
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
