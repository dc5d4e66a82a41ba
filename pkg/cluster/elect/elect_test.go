// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package elect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/elect"
)

// server stores a Lease as an API server does.
type server struct {
	mu    sync.Mutex
	lease *coordination.Lease
	at    int // the last version

	working, most int
	turns         []string // who was elected
}

func (s *server) get() (*coordination.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, block.ErrNotFound
	}
	return s.lease.DeepCopy(), nil
}

func (s *server) put(l *coordination.Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lease == nil && l.ResourceVersion != "":
		return block.ErrNotFound
	case s.lease != nil && l.ResourceVersion == "":
		return block.ErrExists
	case s.lease != nil && s.lease.ResourceVersion != l.ResourceVersion:
		return block.ErrConflict
	}
	s.at++
	s.lease = l.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.at)
	return nil
}

// works is the work of a leader.
func (s *server) works(name string) func(context.Context) error {
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.working += n; n > 0 {
			s.turns = append(s.turns, name)
		}
		s.most = max(s.most, s.working)
	}
	return func(ctx context.Context) error {
		count(1)
		<-ctx.Done()
		count(-1)
		return ctx.Err()
	}
}

func (s *server) elected() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.turns, " ")
}

// trouble is what happens to one request.
type trouble struct {
	request, answer time.Duration // how long they are on their way
	lost            bool          // the request does not arrive
	refused         bool          // the server does nothing
}

// link is how one process reaches the server. A request arrives even if its sender does not wait any
// more.
type link struct {
	*server
	mu   sync.Mutex
	next func() trouble
}

func (l *link) set(next func() trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = next
}

func (l *link) send(ctx context.Context, do func() error) error {
	l.mu.Lock()
	t := l.next()
	l.mu.Unlock()
	if t.refused {
		return &block.BusyError{}
	}
	answered := make(chan error, 1)
	go func() {
		time.Sleep(t.request)
		if t.lost {
			return
		}
		err := do()
		time.Sleep(t.answer)
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", block.ErrUnknown, ctx.Err())
	}
}

func (l *link) Get(ctx context.Context) (*coordination.Lease, error) {
	got := make(chan *coordination.Lease, 1)
	if err := l.send(ctx, func() error { o, err := l.get(); got <- o; return err }); err != nil {
		return nil, err
	}
	return <-got, nil
}

func (l *link) Put(ctx context.Context, o *coordination.Lease) error {
	sent := o.DeepCopy()
	return l.send(ctx, func() error { return l.put(sent) })
}

func well() trouble   { return trouble{} }
func cut() trouble    { return trouble{lost: true} }
func refuse() trouble { return trouble{refused: true} }

// process is a candidate that runs.
type process struct {
	*link
	stop  func()
	ended chan error
}

// start starts a candidate. Its wall clock is wrong by skew, and says of the Lease what
// no other candidate may believe.
func start(t *testing.T, s *server, name string, skew time.Duration, log *bytes.Buffer) *process {
	t.Helper()
	return startOn(t, &link{server: s, next: well}, name, skew, log)
}

// startOn is start on a link.
func startOn(t *testing.T, l *link, name string, skew time.Duration, log *bytes.Buffer) *process {
	t.Helper()
	p := &process{link: l, ended: make(chan error, 1)}
	booted := time.Now().Add(-skew.Abs())
	c := elect.Candidate{
		Lease: p.link, Name: name, Log: slog.New(slog.NewTextHandler(log, nil)),
		Date: func() time.Time { return time.Now().Add(skew) },
		Clock: pace.Clock{Now: func() time.Duration { return time.Since(booted) }, Wait: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		}},
	}
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	go func() { p.ended <- c.Lead(ctx, l.works(name)) }()
	return p
}

// end stops a process, and returns why it ended.
func (p *process) end() error {
	p.stop()
	return <-p.ended
}

func wantElected(t *testing.T, s *server, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.elected(); got != want {
		t.Errorf("elected: %q, want %q", got, want)
	}
}

func TestTheNextProcessWorksAtOnceWhenTheLeaderEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := &server{}, &bytes.Buffer{}
		a := start(t, s, "a", 0, &bytes.Buffer{})
		wantElected(t, s, "a")
		b := start(t, s, "b", 0, log)
		time.Sleep(10 * elect.Term) // the leader renews the Lease
		wantElected(t, s, "a")
		if err := a.end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(elect.Pause)
		wantElected(t, s, "a b")
		_ = b.end()
		if got := *s.lease.Spec.LeaseTransitions; got != 2 || s.lease.Spec.HolderIdentity != nil || s.most != 1 {
			t.Errorf("%d transitions, holder %v; at most %d worked", got, s.lease.Spec.HolderIdentity, s.most)
		}
		if got := log.String(); !strings.Contains(got, "another process is the leader") || !strings.Contains(got, "identity=a") || strings.Count(got, "\n") != 2 {
			t.Errorf("the log of b:\n%s", got)
		}
	})
}

// Each has a wall clock that is an hour apart from the others.
func TestALeaderWithoutAnswersStopsBeforeTheNextOneWorks(t *testing.T) {
	t.Parallel()
	for skew, fault := range map[time.Duration]func() trouble{-time.Hour: cut, 0: refuse, time.Hour: cut} {
		synctest.Test(t, func(t *testing.T) {
			s, log := &server{}, &bytes.Buffer{}
			a := start(t, s, "a", 0, log)
			wantElected(t, s, "a")
			b := start(t, s, "b", skew, &bytes.Buffer{})
			time.Sleep(time.Minute)
			a.set(fault)
			time.Sleep(elect.Limit)
			wantElected(t, s, "a")
			if err := <-a.ended; !errors.Is(err, elect.ErrLost) {
				t.Errorf("a ended with %v", err)
			}
			time.Sleep(elect.Term + 2*elect.Pause - elect.Limit)
			wantElected(t, s, "a b")
			if s.most != 1 || strings.Count(log.String(), "cannot be read or written") != 1 {
				t.Errorf("at most %d worked; the log of a:\n%s", s.most, log)
			}
			_ = b.end()
		})
	}
}

// TestALeaderStopsInTime: its looks at the Lease are not at the end of its time.
func TestALeaderStopsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := startOn(t, &link{server: s, next: func() trouble { return trouble{request: 300 * time.Millisecond} }}, "a", 0, &bytes.Buffer{})
		time.Sleep(time.Minute)
		a.set(refuse)
		if err := <-a.ended; !errors.Is(err, elect.ErrLost) {
			t.Errorf("it ends with %v", err)
		}
		if after := time.Since(s.lease.Spec.RenewTime.Time); after != elect.Limit {
			t.Errorf("it has worked for %v after it began to write the Lease, want %v", after, elect.Limit)
		}
	})
}

// The server does the last renewal at once, and the answer is seven seconds on its way.
func TestALeaderCountsFromBeforeItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := start(t, s, "a", 0, &bytes.Buffer{})
		time.Sleep(elect.Pause / 20)
		b := start(t, s, "b", 0, &bytes.Buffer{})
		requests := 0
		a.set(func() trouble {
			requests++
			return trouble{answer: 7 * time.Second * time.Duration(max(0, requests-1)), lost: requests > 2}
		})
		time.Sleep(2 * elect.Term)
		wantElected(t, s, "a b")
		if err := <-a.ended; !errors.Is(err, elect.ErrLost) || s.most != 1 {
			t.Errorf("a ended with %v; at most %d worked", err, s.most)
		}
		_ = b.end()
	})
}

func TestALeaderThatSeesAnotherHolderStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := start(t, s, "a", 0, &bytes.Buffer{})
		wantElected(t, s, "a")
		s.mu.Lock()
		s.at++
		s.lease.ResourceVersion, s.lease.Spec.HolderIdentity = "another", new("b")
		s.mu.Unlock()
		time.Sleep(elect.Pause)
		synctest.Wait()
		if s.working != 0 {
			t.Error("it works on")
		}
		if err := <-a.ended; !errors.Is(err, elect.ErrLost) {
			t.Errorf("a ended with %v", err)
		}
		if *s.lease.Spec.HolderIdentity != "b" {
			t.Errorf("the holder is %s", *s.lease.Spec.HolderIdentity)
		}
	})
}

// An administrator deletes the Lease, and what kubectl has set in it stays.
func TestALeaseIsMadeAgainAndKeepsWhatOthersWrote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := start(t, s, "a", 0, &bytes.Buffer{})
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.lease = nil
		s.mu.Unlock()
		time.Sleep(elect.Pause)
		synctest.Wait()
		s.mu.Lock()
		s.lease.Labels = map[string]string{"team": "net"}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := *s.lease; got.Labels["team"] != "net" || *got.Spec.HolderIdentity != "a" || *got.Spec.LeaseDurationSeconds != 15 {
			t.Errorf("%+v", got)
		}
		acquired, renewed := time.Since(s.lease.Spec.AcquireTime.Time), time.Since(s.lease.Spec.RenewTime.Time)
		if acquired < time.Minute || acquired > time.Minute+elect.Pause || renewed > elect.Pause {
			t.Errorf("it says that it was acquired %v ago, and renewed %v ago", acquired, renewed)
		}
		wantElected(t, s, "a")
		_ = a.end()
	})
}

// A process that ends while it waits never works, and leaves the Lease alone.
func TestAProcessThatIsNotElectedEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := start(t, s, "a", 0, &bytes.Buffer{})
		wantElected(t, s, "a")
		b := start(t, s, "b", 0, &bytes.Buffer{})
		time.Sleep(elect.Term / 2)
		began := time.Now()
		if err := b.end(); !errors.Is(err, context.Canceled) || time.Since(began) > 0 {
			t.Errorf("after %v it ends with %v", time.Since(began), err)
		}
		if wantElected(t, s, "a"); *s.lease.Spec.HolderIdentity != "a" {
			t.Errorf("the holder is %s", *s.lease.Spec.HolderIdentity)
		}
		_ = a.end()
	})
}

// The Lease is given up when the work has ended, and not before.
func TestALeaderKeepsTheLeaseUntilItsWorkHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		booted, held := time.Now(), []bool(nil)
		ctx, stop := context.WithCancel(t.Context())
		holds := func() bool {
			l, err := s.get()
			return err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == "a"
		}
		c := elect.Candidate{
			Lease: &link{server: s, next: well}, Name: "a", Log: slog.New(slog.DiscardHandler), Date: time.Now,
			Clock: pace.Clock{Now: func() time.Duration { return time.Since(booted) }, Wait: func(ctx context.Context, d time.Duration) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(d):
					return nil
				}
			}},
		}
		time.AfterFunc(time.Minute, stop)
		err := c.Lead(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(elect.Pause)
			held = append(held, holds())
			return ctx.Err()
		})
		if held = append(held, holds()); !errors.Is(err, context.Canceled) || fmt.Sprint(held) != "[true false]" {
			t.Errorf("the Lease is held at the end of the work, and after it: %v, error %v", held, err)
		}
	})
}

// The Lease can be read, and not written at first.
func TestALeaseThatCannotBeWrittenIsSaidOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := &server{}, &bytes.Buffer{}
		requests := 0
		p := startOn(t, &link{server: s, next: func() trouble {
			requests++
			return trouble{refused: requests%2 == 0 && requests < 7}
		}}, "a", 0, log)
		time.Sleep(2 * elect.Pause)
		wantElected(t, s, "")
		time.Sleep(elect.Pause)
		wantElected(t, s, "a")
		if got := strings.Count(log.String(), "cannot be read or written"); got != 1 {
			t.Errorf("it is said %d times:\n%s", got, log)
		}
		_ = p.end()
	})
}

// TestNeverDoTwoProcessesWork has three processes with requests that are lost or arrive
// late, and with processes that end and start. To see a seed again, run it alone.
func TestNeverDoTwoProcessesWork(t *testing.T) {
	t.Parallel()
	turns := 0
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 1))
			s := &server{}
			serial := 0
			fresh := func() *process {
				serial++
				return start(t, s, fmt.Sprint(serial), time.Duration(chance.Int64N(int64(48*time.Hour)))-24*time.Hour, &bytes.Buffer{})
			}
			all := []*process{fresh(), fresh(), fresh()}
			for range 40 {
				i := chance.IntN(len(all))
				p := all[i]
				switch chance.IntN(4) {
				case 0:
					p.set(well)
				case 1:
					p.set(cut)
				case 2:
					own := rand.New(rand.NewPCG(seed, uint64(chance.Int64())))
					p.set(func() trouble {
						late := func() time.Duration { return time.Duration(own.Int64N(int64(elect.Term))) }
						return trouble{late(), late(), own.IntN(4) == 0, own.IntN(4) == 0}
					})
				case 3:
					_ = p.end()
					all[i] = fresh()
				}
				time.Sleep(time.Duration(chance.Int64N(int64(2 * elect.Term))))
				for i, p := range all { // as a Deployment does
					select {
					case err := <-p.ended:
						if !errors.Is(err, elect.ErrLost) {
							t.Error(err)
						}
						all[i] = fresh()
					default:
					}
				}
			}
			for _, p := range all {
				p.set(well)
			}
			time.Sleep(3 * elect.Term)
			synctest.Wait()
			if s.most != 1 || s.working != 1 {
				t.Errorf("seed %d: at most %d processes worked, in the end %d", seed, s.most, s.working)
			}
			turns += len(s.turns)
			for _, p := range all {
				_ = p.end()
			}
		})
	}
	if turns < 300 {
		t.Errorf("%d turns: the seeds show nothing", turns)
	}
}
