// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// lacks has Repair be able to do nothing about an attachment, or nil: nothing is wrong. It is
// looked at then.
func (m *machine) lacks(at conf.Attachment, why error) {
	m.mu.Lock()
	if m.why[at] = why; why == nil {
		delete(m.why, at)
	}
	m.mu.Unlock()
	m.tells(at)
}

// What each pod complains of is said of each, and again if it was well meanwhile.
func TestAnErrorIsSaidOfEachPodAndEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 3)
		synctest.Wait()
		bad := func(i int) error {
			return cnierr.New(cnierr.Damaged, "check route of", fmt.Sprint("pod ", i), "", "another program has made it")
		}
		says := func(want int) {
			t.Helper()
			time.Sleep(20 * time.Minute)
			synctest.Wait()
			said := m.said(t)
			if len(said) != want {
				t.Fatalf("%d errors are said, want %d: %+v", len(said), want, said)
			}
		}
		m.lacks(container(0), bad(0))
		m.lacks(container(1), bad(1))
		says(2)
		if said := m.said(t); said[0].ContainerID == said[1].ContainerID { // those of one time have no order
			t.Errorf("said %+v", said)
		}
		for _, c := range m.said(t) {
			at := c.Attachment
			want := calls.Call{Network: "rails", Attachment: at, Pod: "ml/pod-" + string(at.ContainerID), UID: podOf(at).UID, Verb: calls.Heal, At: c.At, Error: bad(int(numberOf(at))).Error(), Code: cnierr.Damaged}
			if diff := cmp.Diff(want, c); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		}
		m.lacks(container(0), nil)
		says(2)
		m.lacks(container(0), bad(0))
		says(3)
		m.lacks(container(2), errors.Join(bad(8), bad(9)))
		says(4)
		if last, want := m.said(t)[3], errors.Join(bad(8), bad(9)).Error(); last.ContainerID != container(2).ContainerID || last.Error != want {
			t.Errorf("said %+v, want %q", last, want)
		}
		nic := cnierr.New(cnierr.BadParent, "select master", "r0", "", "there is no such interface")
		m.lacks(container(1), errors.Join(nic, bad(7)))
		says(6) // that of its NIC is that of no pod
		if all := m.said(t)[4:]; all[0].Error != nic.Error() || all[0].ContainerID != "" || all[1].Error != bad(7).Error() || all[1].ContainerID != container(1).ContainerID {
			t.Errorf("said %+v", all)
		}
	})
}

// A call of the runtime works on the pod, so nothing is wrong with it yet.
func TestAnAttachmentThatIsBusyIsLookedAtSoonAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		synctest.Wait()
		before := m.looks
		m.lacks(container(0), cnierr.New(cnierr.TryAgain, "lock", "c000", "", "another call has it"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := m.looks - before; n < 20 || n > 31 || len(m.said(t)) > 0 {
			t.Errorf("%d looks in a minute, want one in two seconds; said %+v", n, m.said(t))
		}
	})
}

func TestAResetThatFailsIsSaidAndTriedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		m.All = true
		synctest.Wait()
		m.stays = cnierr.New(cnierr.IO, "set GIDs of", "mlx5_0", "", "no")
		before := m.looks
		m.lacks(container(0), &rdma.MovedError{Port: "mlx5_0/1", Was: 3, Is: 4})
		time.Sleep(time.Minute)
		synctest.Wait()
		if said := m.said(t); len(said) != 1 || !strings.Contains(said[0].Error, "set GIDs of") || m.looks-before < 2 {
			t.Errorf("said %+v after %d looks", said, m.looks-before)
		}
	})
}

func TestARecordOfAnADDThatDidNotFinishIsNotFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		synctest.Wait()
		rec, err := m.Records.Load(container(0))
		fatal(t, err)
		release, err := m.Records.Lock(t.Context(), rec.ContainerID)
		fatal(t, err)
		rec.Committed = false
		fatal(t, m.Records.Save(rec))
		release()
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		if m.get(container(0)) != nil {
			t.Error("it is followed")
		}
	})
}

// One that held for some time is repaired as soon as at the first time.
func TestAnAttachmentThatHeldIsNotLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		synctest.Wait()
		again := true
		m.after = func(at conf.Attachment) {
			if again {
				go func() { time.Sleep(time.Second); m.damage(at); m.tells(at) }()
			}
		}
		m.damage(container(0))
		m.tells(container(0))
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		m.mu.Lock()
		again = false
		m.mu.Unlock()
		time.Sleep(time.Hour)
		before := len(m.repairs())
		for range 2 {
			m.damage(container(0))
			m.tells(container(0))
			time.Sleep(15 * time.Second)
		}
		synctest.Wait()
		if n := len(m.repairs()) - before; n != 2 {
			t.Errorf("%d repairs of two in half a minute", n)
		}
	})
}

// What changes during a look is a reason for another one, and not at once.
func TestAPodThatChangesAllTheTimeIsNotLookedAtAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		synctest.Wait()
		m.mu.Lock()
		m.noisy = true
		m.mu.Unlock()
		before := m.looks
		m.tells(container(0))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := m.looks - before; n < 20 || n > 31 {
			t.Errorf("%d looks in a minute, want one in two seconds", n)
		}
	})
}

func TestARepairThatDoesNotEndLeavesTimeForTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 2)
		synctest.Wait()
		m.mu.Lock()
		m.endless = container(0)
		m.mu.Unlock()
		for i := range 2 {
			m.damage(container(i))
			m.tells(container(i))
			time.Sleep(again + quiet)
		}
		time.Sleep(patience)
		synctest.Wait()
		if n := len(m.repairs()); n != 1 {
			t.Errorf("%d repairs of the other one", n)
		}
	})
}

// A call of the runtime has the lock of the container. It is not waited for, and not forgotten.
func TestAContainerThatIsLockedIsLookedAtLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 2)
		synctest.Wait()
		release, err := m.Records.Lock(t.Context(), container(0).ContainerID)
		fatal(t, err)
		for i := range 2 {
			m.damage(container(i))
			m.tells(container(i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		n := len(m.repairs())
		m.mu.Lock()
		looks := len(m.ofOne[container(0)])
		m.mu.Unlock()
		if n != 1 || looks != 1 {
			t.Errorf("%d repairs, and %d looks, want that of the other one, and none since the start", n, looks)
		}
		release()
		time.Sleep(again)
		synctest.Wait()
		if n := len(m.repairs()); n != 2 {
			t.Errorf("%d repairs after the call", n)
		}
	})
}

// A namespace without a number is gone: the look finds that.
func TestAPodWithoutANumberIsLookedAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		synctest.Wait()
		m.mu.Lock()
		m.ended = netns.ErrGone
		before := m.looks
		m.mu.Unlock()
		time.Sleep(sweepEvery)
		synctest.Wait()
		if a := m.get(container(0)); a == nil || a.nsid != own || m.looks != before+1 {
			t.Errorf("it is %+v after %d looks", a, m.looks-before)
		}
		m.set(&attachment{at: container(7)}, func(*attachment) { t.Error("one that is not followed is changed") })
	})
}

func TestAttachmentsThatCannotBeListedAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 1)
		synctest.Wait()
		folder := filepath.Join(m.Records.Dir, "attachments")
		fatal(t, os.Rename(folder, folder+".before"))
		fatal(t, os.WriteFile(folder, nil, 0o600))
		time.Sleep(sweepEvery)
		synctest.Wait()
		if m.get(container(0)) == nil {
			t.Error("it is forgotten")
		}
	})
}

// Calls that cannot be read are read later, and none of those that were read before.
func TestCallsThatCannotBeReadAreReadLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 2)
		synctest.Wait()
		ended := func(i, want int) {
			t.Helper()
			before := m.looks
			fatal(t, m.Calls.Append(calls.Call{At: time.Now(), Verb: "ADD", Attachment: container(i)}))
			m.Called(t.Context())
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := m.looks - before; n != want {
				t.Errorf("%d looks, want %d", n, want)
			}
		}
		ended(0, 1)
		file := m.Calls
		m.Calls.Dir = filepath.Join(t.TempDir(), "calls")
		fatal(t, os.MkdirAll(filepath.Join(m.Calls.Dir, "calls"), 0o700))
		m.Called(t.Context())
		m.Calls = file
		ended(1, 1)
	})
}

// A healer that makes routes again, and nothing else, needs no news of RDMA devices.
func TestAnRDMADeviceIsAReasonIfAllIsHealed(t *testing.T) {
	t.Parallel()
	for all, want := range map[bool]int{false: 0, true: 1} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, 2)
			m.All = all
			synctest.Wait()
			m.Healer.mu.Lock()
			m.attachments[container(1)].rdma = true
			m.Healer.mu.Unlock()
			before := m.looks
			m.Note(Event{RDMA: true})
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := m.looks - before; n != want {
				t.Errorf("all %t: %d looks, want %d", all, n, want)
			}
		})
	}
}

// Lost messages are a reason to look at all, and not all the time.
func TestLostMessagesAreFewSweeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 3)
		synctest.Wait()
		before := m.looks
		for range 600 {
			m.Note(Event{Unknown: true})
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := m.looks - before; n < 3 || n > 3*2 {
			t.Errorf("%d looks in a minute, want one or two sweeps of 3", n)
		}
	})
}

// A container that has mounted the folder of the namespaces without propagation sees a file.
func TestAHealerThatSeesNoNamespacesSaysSoOnce(t *testing.T) {
	t.Parallel()
	hidden := filepath.Join(t.TempDir(), "pod")
	fatal(t, os.WriteFile(hidden, nil, 0o600))
	if repair.Visible(hidden) == nil {
		t.Skip("this process sees the namespaces of the node: it needs a PID namespace of its own")
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 3)
		synctest.Wait()
		before := m.looks
		for i := range 3 {
			rec, err := m.Records.Load(container(i))
			fatal(t, err)
			release, err := m.Records.Lock(t.Context(), rec.ContainerID)
			fatal(t, err)
			rec.Netns = hidden
			fatal(t, m.Records.Save(rec))
			release()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if said := m.said(t); len(said) != 1 || said[0].Code != cnierr.IO || m.looks != before {
			t.Errorf("said %+v after %d looks, want one error and no look", said, m.looks-before)
		}
	})
}
