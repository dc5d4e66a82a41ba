// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
)

// rebuildDir in the environment turns the test binary into a process that
// rebuilds the database there.
const rebuildDir = "IPAM_TEST_REBUILD_DIR"

func rebuildIn(dir string) {
	book := ipam.New(ipam.Config{
		Dir: dir, BootID: boot1, Now: func() time.Duration { return time.Hour },
		Alive: func(ipam.Netns) (bool, error) { return true, nil },
	})
	if _, err := book.Rebuild(ctx, func() (ipam.Evidence, error) { return recordedByMany(), nil }); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// recordedByMany is what 2000 pods have on record.
func recordedByMany() ipam.Evidence {
	var e ipam.Evidence
	a := netip.MustParseAddr("10.0.0.1")
	for i := range 2000 {
		e.Recorded = append(e.Recorded, ledger.Holding{
			Owner:  ask(fmt.Sprint("pod", i)).Owner,
			Places: []ledger.Place{{Spot: ledger.Spot{Pool: "rail", Addr: a}}},
		})
		a = a.Next()
	}
	return e
}

// TestAKilledRebuildLeavesTheOldOrTheNew kills the process at random moments: the
// damaged database is in its place, or the new one, whole.
func TestAKilledRebuildLeavesTheOldOrTheNew(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(ask("a", subnet("10.0.0.0/16")))
	r := rand.New(rand.NewPCG(8, 9))
	path := n.dir + "/leases.db"
	old, whole, kills := 0, 0, 0
	var takes time.Duration // what a process takes; the first is not killed
	for i := range 25 {
		if err := os.WriteFile(path+".x", []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".x", path); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), rebuildDir+"="+n.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		start, patience := time.Now(), time.Minute
		if takes > 0 {
			patience = time.Duration(r.Int64N(int64(takes)))
		}
		timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		if cmd.ProcessState.Exited() {
			takes = time.Since(start)
		} else {
			kills++
			takes += takes / 10
		}
		entries, err := n.book().List(ctx, "")
		switch {
		case err == nil && len(entries) == 2000:
			whole++
		case cnierr.CodeOf(err) == cnierr.Unreadable:
			old++
			if b, err := os.ReadFile(path); err != nil || string(b) != "damaged" {
				t.Errorf("kill %d: the file is %d bytes, %v", i, len(b), err)
			}
		default:
			t.Errorf("kill %d: %d leases, %v", i, len(entries), err)
		}
	}
	t.Logf("%d processes were killed; %d left the old database, %d the new one", kills, old, whole)
	if kills == 0 || old == 0 || whole == 0 {
		t.Errorf("%d left the old database, %d the new one: the moments are badly chosen", old, whole)
	}
}
