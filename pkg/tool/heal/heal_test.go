// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// machine is a node with attachments that lose their rules. Its clock starts with the test.
type machine struct {
	*Healer
	began time.Time

	mu       sync.Mutex
	damaged  map[conf.Attachment]bool
	nic      error                     // stands in the way of each repair
	why      map[conf.Attachment]error // what Repair can do nothing about
	slow     conf.Attachment           // a look at it does not end in time
	endless  conf.Attachment           // a repair of it does not end in time
	noisy    bool                      // something changes during each look
	ended    error                     // why no namespace has a number
	looks    int
	ofOne    map[conf.Attachment][]time.Duration // when it was looked at
	repaired []time.Duration                     // when
	after    func(conf.Attachment)
	stays    error // why nothing can be reset
}

func (m *machine) Lost(ctx context.Context, at conf.Attachment) (plan.Ops, error) {
	m.mu.Lock()
	m.looks++
	m.ofOne[at] = append(m.ofOne[at], m.now())
	slow, damaged, why, noisy := at == m.slow, m.damaged[at], m.why[at], m.noisy
	m.mu.Unlock()
	if noisy {
		m.tells(at)
	}
	if slow {
		<-ctx.Done()
	}
	if damaged {
		return plan.InPod(plan.Rule{}), nil
	}
	return nil, why
}

func (m *machine) Repair(ctx context.Context, at conf.Attachment) (plan.Ops, error) {
	m.mu.Lock()
	if at == m.endless {
		m.mu.Unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	defer m.mu.Unlock()
	m.repaired = append(m.repaired, m.now())
	if m.nic != nil {
		return nil, m.nic
	}
	delete(m.damaged, at)
	delete(m.why, at)
	if m.after != nil {
		m.after(at)
	}
	return plan.InPod(plan.Conflict{}, plan.Rule{}), nil
}

func (m *machine) Remade(context.Context) []repair.Remade { return nil }
func (m *machine) Reset(_ context.Context, _ []repair.Remade, repair func([]conf.Attachment) error) error {
	m.mu.Lock()
	if m.stays != nil {
		defer m.mu.Unlock()
		return m.stays
	}
	pods := slices.SortedFunc(maps.Keys(m.why), func(a, b conf.Attachment) int { return strings.Compare(string(a.ContainerID), string(b.ContainerID)) })
	m.mu.Unlock()
	return repair(pods)
}
func (m *machine) now() time.Duration        { return time.Since(m.began) }
func (m *machine) damage(at conf.Attachment) { m.mu.Lock(); m.damaged[at] = true; m.mu.Unlock() }

func (m *machine) tells(at conf.Attachment) { m.Note(Event{NSID: numberOf(at)}) }

func (m *machine) said(t *testing.T) (all []calls.Call) {
	all, _, err := m.Calls.After("")
	fatal(t, err)
	return all
}

func (m *machine) repairs() []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.repaired)
}

func container(i int) conf.Attachment {
	return conf.Attachment{ContainerID: conf.ContainerID(fmt.Sprintf("c%03d", i)), IfName: "net1"}
}

func numberOf(at conf.Attachment) (n int32) {
	_, _ = fmt.Sscanf(string(at.ContainerID), "c%d", &n)
	return n
}

func last(all []time.Duration) time.Duration { return all[len(all)-1] }

func podOf(at conf.Attachment) conf.Pod {
	return conf.Pod{Namespace: "ml", Name: "pod-" + string(at.ContainerID), UID: "uid-" + string(at.ContainerID)}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newMachine runs a healer of so many attachments until the test ends.
func newMachine(t *testing.T, attachments int) *machine {
	t.Helper()
	m := &machine{began: time.Now(), damaged: map[conf.Attachment]bool{}, why: map[conf.Attachment]error{}, ofOne: map[conf.Attachment][]time.Duration{}}
	records := record.Store{Dir: t.TempDir(), BootID: "boot"}
	m.Healer = New(Config{
		Node: m, Records: records, Calls: calls.File{Dir: records.Dir},
		Number: func(_ context.Context, path string, id netns.ID) (int32, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return int32(id.Ino), m.ended
		},
		Clock: pace.Clock{Now: m.now, Rand: func() float64 { return .5 }}, Log: slog.New(slog.DiscardHandler),
	})
	for i := range attachments {
		m.attach(t, container(i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { m.Run(ctx) })
	t.Cleanup(func() { stop(); all.Wait() })
	return m
}

// attach saves the record of an attachment.
func (m *machine) attach(t *testing.T, at conf.Attachment) {
	t.Helper()
	release, err := m.Records.Lock(t.Context(), at.ContainerID) // makes the folder
	fatal(t, err)
	defer release()
	fatal(t, m.Records.Save(record.Record{
		Attachment: at, Network: "rails", Pod: podOf(at), Netns: "/proc/self/ns/net", NetnsID: netns.ID{Ino: uint64(numberOf(at))}, Committed: true,
		Plan: plan.Plan{Ops: plan.InPod(plan.Child{Name: at.IfName, Parent: "r0"})},
	}))
}

// TestTheOtherNetworkOfAPodIsFollowedWhenOneIsGone: its DEL came, or its ADD did not finish.
func TestTheOtherNetworkOfAPodIsFollowedWhenOneIsGone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*machine, *testing.T, conf.Attachment){
		"gone at a look": func(m *machine, _ *testing.T, at conf.Attachment) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.why[at] = record.ErrNotExist
		},
		"without namespace at a look": func(m *machine, _ *testing.T, at conf.Attachment) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.why[at] = kernel.ErrNetnsGone
		},
		"gone at a call": func(m *machine, t *testing.T, at conf.Attachment) {
			fatal(t, m.Records.Delete(at))
			fatal(t, m.Calls.Append(calls.Call{At: time.Now(), Verb: "DEL", Attachment: at}))
			m.Called(t.Context())
		},
		"gone at a sweep": func(m *machine, t *testing.T, at conf.Attachment) {
			fatal(t, m.Records.Delete(at))
			time.Sleep(sweepEvery)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 1)
			one, other := container(0), conf.Attachment{ContainerID: container(0).ContainerID, IfName: "net2"}
			m.attach(t, other)
			time.Sleep(sweepEvery + time.Second)
			synctest.Wait()
			lose(m, t, one)
			m.tells(one)
			time.Sleep(again + quiet)
			synctest.Wait()
			if m.get(one) != nil {
				t.Errorf("%s: it is followed", name)
			}
			m.damage(other)
			m.tells(other)
			time.Sleep(again + quiet)
			synctest.Wait()
			if n := len(m.repairs()); n != 1 {
				t.Errorf("%s: %d repairs of the other network", name, n)
			}
		})
	}
}

func TestADayOfAnIdleNodeHasItsSweepsAndNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 10)
		time.Sleep(24*time.Hour - time.Second)
		synctest.Wait()
		if want := 10 * 24 * 12; m.looks != want || len(m.repairs()) > 0 || len(m.said(t)) > 0 {
			t.Errorf("%d looks, want %d; %d repairs, and %d calls", m.looks, want, len(m.repairs()), len(m.said(t)))
		}
	})
}

func TestAnAttachmentThatStaysDamagedDelaysNoSweep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 2)
		synctest.Wait()
		m.nic = cnierr.New(cnierr.Damaged, "check", "net1", "", "another plugin made it")
		m.damage(container(0))
		m.tells(container(0))
		time.Sleep(time.Hour)
		synctest.Wait()
		for i, at := range m.ofOne[container(1)] {
			if want := time.Duration(i) * sweepEvery; at != want {
				t.Fatalf("the other one is looked at after %v, want %v", at, want)
			}
		}
	})
}

func TestRepairsAreBoundedAndAllCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 100)
		synctest.Wait()
		for i := range 100 {
			m.damage(container(i))
			m.tells(container(i))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		all := m.repairs()
		if len(all) != 100 {
			t.Fatalf("%d repairs, want 100", len(all))
		}
		for i := range len(all) - 30 {
			if all[i+30]-all[i] < time.Minute-pause {
				t.Fatalf("30 repairs in %v", all[i+30]-all[i])
			}
		}
		said := m.said(t)
		if len(said) != 100 {
			t.Errorf("%d calls, want one for each", len(said))
		}
		for i, c := range said { // what asks the wire makes nothing
			at := container(i)
			want := calls.Call{Verb: calls.Heal, Network: "rails", Attachment: at, Pod: "ml/pod-" + string(at.ContainerID), UID: podOf(at).UID}
			want.At, want.Steps = c.At, []calls.Step{{Name: plan.Op{Kind: plan.Rule{}}.Name()}}
			if !slices.ContainsFunc(said, func(c calls.Call) bool { want.At = c.At; return cmp.Equal(want, c) }) || c.At.Before(m.began) {
				t.Fatalf("said %+v, want %+v among all", c, want)
			}
		}
	})
}

// Those of a reset do not wait for each other, and count: the next repair comes when there were
// at most 30 in a minute.
func TestTheRepairsOfAResetCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 61)
		m.All = true
		synctest.Wait()
		m.mu.Lock()
		m.why[conf.Attachment{ContainerID: "a", IfName: "net1"}] = errors.New("moved") // it is not followed
		for i := range 60 {
			m.why[container(i)] = &rdma.MovedError{Port: "mlx5_0/1", Was: 3, Is: 4}
		}
		m.mu.Unlock()
		m.tells(container(0))
		time.Sleep(again + quiet)
		synctest.Wait()
		if n := len(m.repairs()); n != 60 {
			t.Fatalf("%d repairs at once, want those of all 60 pods of the device", n)
		}
		m.damage(container(60))
		m.tells(container(60))
		time.Sleep(time.Hour)
		synctest.Wait()
		all := m.repairs()
		for _, c := range m.said(t) {
			if c.Error != "" {
				t.Errorf("said of a reset that was done: %+v", c)
			}
		}
		if took, want := all[len(all)-1]-all[0], (60-atOnce)*pause; len(all) != 61 || took < want || took > want+2*pause {
			t.Errorf("%d repairs in %v, want 61 in %v", len(all), took, want)
		}
	})
}

func TestAnAttachmentThatDoesNotHoldIsLeftAloneForLongerEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		m.after = func(at conf.Attachment) {
			go func() { time.Sleep(time.Second); m.damage(at); m.tells(at) }()
		}
		synctest.Wait()
		m.damage(container(0))
		m.tells(container(0))
		time.Sleep(time.Hour)
		synctest.Wait()
		all := m.repairs()
		if len(all) < 10 || len(all) > 20 || all[1]-all[0] > 10*time.Second || all[len(all)-1]-all[len(all)-2] < 4*time.Minute {
			t.Errorf("repairs at %v, want the first ones soon, and later one in five minutes", all)
		}
	})
}

// All attachments have the NIC r0. The links and the namespaces of other pods are no reason.
func TestAChangeIsAReasonToLookAtWhatItConcerns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		event Event
		want  int
	}{
		"in the namespace of one":          {Event{NSID: 1, Link: "net1"}, 1},
		"in a namespace without record":    {Event{NSID: 9, Link: "net1"}, 0},
		"of the NIC, which is in no way":   {Event{NSID: own, Link: "r0"}, 0},
		"of a link of the host":            {Event{NSID: own, Link: "veth7"}, 0},
		"of the host's routes":             {Event{NSID: own, Gone: true}, 0},
		"of an RDMA device, and not asked": {Event{RDMA: true}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 3)
			synctest.Wait()
			time.Sleep(time.Minute) // its last look is long ago
			synctest.Wait()
			before, at := m.looks, m.now()
			m.Note(tt.event)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := m.looks - before; n != tt.want || n > 0 && last(m.ofOne[container(1)]) != at+quiet {
				t.Errorf("%s: %d looks, want %d; at %v", name, n, tt.want, m.ofOne)
			}
		})
	}
}

// An attachment with a pair to the host, and with a VLAN of r0 that it shares with others.
func TestAChangeOfWhatAnAttachmentHasConcernsIt(t *testing.T) {
	t.Parallel()
	links := plan.Ops{
		{Place: plan.Pod, Kind: plan.Child{Name: "net1", Parent: "r0"}},
		{Place: plan.Host, Kind: plan.Up{Link: "veth1"}},
		{Place: plan.Host, Shared: true, Kind: plan.Up{Link: "r0.7"}},
		{Place: plan.Pod, Kind: plan.Up{Link: "net1"}},
	}
	routes := append(slices.Clone(links), plan.Op{Place: plan.Host, Kind: plan.Route{Link: "veth1"}})
	in := append(slices.Clone(links), plan.Op{Place: plan.Pod, Kind: plan.Route{Link: "net1"}})
	gid := plan.OnHost(plan.GID{Targets: []plan.GIDTarget{{Link: "net1"}}}) // in shared mode, the host sees the entry
	for name, tt := range map[string]struct {
		ops         plan.Ops
		event       Event
		well, stuck bool
	}{
		"its namespace":               {links, Event{NSID: 5, Link: "net1"}, true, true},
		"another namespace":           {links, Event{NSID: 6, Link: "net1"}, false, false},
		"its end of the pair":         {links, Event{NSID: own, Link: "veth1"}, true, true},
		"its NIC":                     {links, Event{NSID: own, Link: "r0"}, false, true},
		"what it shares":              {links, Event{NSID: own, Link: "r0.7"}, false, true},
		"a link with the pod's name":  {links, Event{NSID: own, Link: "net1"}, false, false},
		"a route of the host is gone": {routes, Event{NSID: own, Gone: true}, true, true},
		"a route of the host comes":   {routes, Event{NSID: own}, false, false},
		"without routes of the host":  {in, Event{NSID: own, Gone: true}, false, false},
		"an RDMA device":              {routes, Event{RDMA: true}, false, false},
		"an RDMA device that it has":  {append(slices.Clone(gid), links...), Event{RDMA: true}, true, true},
		"a link of its GID's name":    {append(slices.Clone(gid), links...), Event{NSID: own, Link: "net1"}, false, false},
	} {
		a := of(record.Record{Attachment: container(5), Network: "rails", Pod: podOf(container(5)), Plan: plan.Plan{Ops: tt.ops}})
		want := attachment{
			at: container(5), network: "rails", pod: podOf(container(5)), parents: []string{"r0", "r0.7"}, nics: map[string]string{"net1": "r0"},
			rdma: plan.Is[plan.GID](tt.ops[0]), host: plan.Is[plan.Route](tt.ops[len(tt.ops)-1]) && tt.ops[len(tt.ops)-1].Place == plan.Host,
			links: []string{"veth1"}, state: state{due: never},
		}
		if want.host {
			want.links = append(want.links, "veth1")
		}
		if diff := cmp.Diff(want, a, cmp.AllowUnexported(attachment{}, state{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		a.nsid = 5
		for stuck, want := range map[bool]bool{false: tt.well, true: tt.stuck} {
			if a.stuck = stuck; a.concerns(tt.event) != want {
				t.Errorf("%s, stuck %t: got %t", name, stuck, !want)
			}
		}
	}
}

// A call that ended is a reason once, and those of healers are none.
func TestACallIsAReasonToLookOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 3)
		synctest.Wait()
		for i, want := range []int{1, 0, 1} {
			before, at := m.looks, m.now()
			if want > 0 {
				fatal(t, m.Calls.Append(calls.Call{At: time.Now(), Verb: "ADD", Attachment: container(i)}))
				fatal(t, m.Calls.Append(calls.Call{At: time.Now(), Verb: calls.Heal, Attachment: container(1)}))
			}
			m.Called(t.Context())
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := m.looks - before; n != want || n > 0 && last(m.ofOne[container(i)]) != at+settled {
				t.Errorf("%d looks after the calls, want %d; at %v", n, want, m.ofOne)
			}
		}
	})
}

// The healer looks at an attachment at once when its NIC changes, however long it would wait.
func TestAnErrorOfANICIsToldOnceAndEndsWithTheNIC(t *testing.T) {
	t.Parallel()
	for _, code := range []cnierr.Code{cnierr.BadParent, cnierr.NoRDMA, cnierr.RDMAHeld} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 5)
			synctest.Wait()
			m.nic = cnierr.New(code, "select master", "r0", "", "there is no such interface")
			for i := range 5 {
				m.damage(container(i))
				m.tells(container(i))
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if said := m.said(t); len(said) != 1 || said[0].Code != code {
				t.Fatalf("said %+v, want one error", said)
			}
			m.mu.Lock()
			m.nic = nil
			m.mu.Unlock()
			m.Note(Event{NSID: own, Link: "r0"})
			time.Sleep(time.Second)
			synctest.Wait()
			if len(m.damaged) > 0 {
				t.Errorf("%d attachments are damaged a second after the NIC came back", len(m.damaged))
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			m.mu.Lock()
			m.nic = cnierr.New(code, "select master", "r0", "", "there is no such interface")
			m.mu.Unlock()
			m.damage(container(0))
			m.tells(container(0))
			time.Sleep(time.Minute)
			synctest.Wait()
			if said := m.said(t); len(said) != 2+5 { // five repairs
				t.Errorf("said %+v, want the error of the NIC again", said)
			}
		})
	}
}

// The errors of 20 pods that one event of their NIC harmed are one message with their number.
// One pod that has the same alone has its own.
func TestWhatManyPodsOfANICHaveIsToldOnce(t *testing.T) {
	t.Parallel()
	for want, why := range map[string]func(i int) error{
		"20 pods on mlx5_0/1: GID indexes changed": func(i int) error {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			return cnierr.New(cnierr.Damaged, "check GID of", addr.String(), "", "%w", &rdma.MovedError{Port: "mlx5_0/1", Addr: addr, Was: i, Is: i + 1})
		},
		"20 pods on r0: it misses more than routes and rules: macvlan": func(int) error {
			return errors.Join(cnierr.New(cnierr.Damaged, "heal interface", "net1", "", "it misses more than routes and rules: macvlan"))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 21)
			synctest.Wait()
			loses := func(from, to int) {
				for i := from; i < to; i++ {
					m.mu.Lock()
					m.why[container(i)] = why(i)
					m.mu.Unlock()
					m.tells(container(i))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
			}
			loses(20, 21)
			loses(0, 20)
			time.Sleep(time.Hour)
			said := m.said(t)
			if len(said) != 2 || said[0].ContainerID != container(20).ContainerID || said[1].ContainerID != "" || !strings.HasPrefix(said[1].Error, want) {
				t.Errorf("said %+v\nwant one error of the pod, and %q", said, want)
			}
		})
	}
}

// A program of a pod can flap its end of a pair, and flags of the NIC. It has the healer look
// sooner if the NIC stands in the way of the repair, and then not all the time.
func TestLinksThatFlapAreNotLookedAtAllTheTime(t *testing.T) {
	t.Parallel()
	nic, end := Event{NSID: own, Link: "r0"}, Event{NSID: numberOf(container(0)), Link: "net1"}
	for _, tt := range []struct {
		code  cnierr.Code
		flaps Event
		most  int
	}{
		{cnierr.BadParent, nic, 2 * int(10*time.Minute/pause)},
		{cnierr.BadParent, end, 10},
		{cnierr.Damaged, nic, 10},
		{cnierr.Damaged, end, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 1)
			synctest.Wait()
			m.nic = cnierr.New(tt.code, "select master", "r0", "", "it is not well")
			m.damage(container(0))
			m.tells(container(0))
			before := m.looks
			for range 10 * 60 * 10 {
				m.Note(tt.flaps)
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			if n := m.looks - before; n < 2 || n > tt.most {
				t.Errorf("error %d, %+v: %d looks in ten minutes, want some and at most %d", tt.code, tt.flaps, n, tt.most)
			}
		})
	}
}

// A pod can have so many routes that a look at it takes long.
func TestAnAttachmentThatIsSlowLeavesTimeForTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		m.mu.Lock()
		m.slow = container(0)
		m.mu.Unlock()
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.looks > 20 {
			t.Errorf("%d looks in an hour, each of %v", m.looks, patience)
		}
	})
}
