// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// add calls ADD in a process that may die.
func (f foreign) add() (died bool, err error) {
	died = f.run(func(attach.Node) { _, err = f.node().Add(ctx, f.request("")) })
	return died, err
}

func TestFailureAtEveryOpGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	whole := newForeign(t)
	whole.mustAdd()
	for i := 1; i <= whole.fake.Calls(); i++ {
		f := newForeign(t)
		f.fake.FailAt(i, errFault)
		if _, err := f.add(); !errors.Is(err, errFault) {
			t.Errorf("failing at call %d: got %v", i, err)
		}
		f.mustBeEmpty(fmt.Sprintf("after failing at call %d", i))
	}
}

// TestLeaseThatMayBeOnALinkIsKeptForDEL lets everything fail from some call
// on, undoing included.
func TestLeaseThatMayBeOnALinkIsKeptForDEL(t *testing.T) {
	t.Parallel()
	whole := newForeign(t)
	whole.mustAdd()
	for i := 1; i <= whole.fake.Calls(); i++ {
		f := newForeign(t)
		f.fake.FailFrom(i, errFault)
		_, err := f.add()
		if !errors.Is(err, errFault) {
			t.Fatalf("failing from call %d: got %v", i, err)
		}
		var left *plan.UndoError
		if errors.As(err, &left) != (len(f.files()) > 0) {
			t.Errorf("failing from call %d: undone: %v, but files %v", i, left == nil, f.files())
		}
		f.fake.Heal()
		f.mustDel()
		f.mustBeEmpty(fmt.Sprintf("after failing from call %d and DEL", i))
	}
}

func TestDelAfterACrashAtEveryOpGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		f := newForeign(t)
		f.crash = at
		died, _ := f.add()
		f.crash = 0
		f.mustDel()
		f.mustBeEmpty(fmt.Sprintf("after a crash before operation %d and DEL", at))
		if !died {
			break
		}
	}
}

func TestAddAfterACrashAtEveryOpLeasesAgain(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		f := newForeign(t)
		f.crash = at
		died, _ := f.add()
		f.crash = 0
		if _, err := f.add(); err != nil {
			t.Errorf("ADD after a crash before operation %d: %v", at, err)
		}
		if len(f.held()) != 1 {
			t.Errorf("ADD after a crash before operation %d: the plugin has %q", at, f.held())
		}
		f.mustDel()
		f.mustBeEmpty(fmt.Sprintf("after a crash before operation %d, ADD and DEL", at))
		if !died {
			break
		}
	}
}

func TestDelAfterADelThatDiedGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		f := newForeign(t)
		f.mustAdd()
		f.crash = at
		died := f.run(func(attach.Node) { _ = f.node().Del(ctx, f.del("")) })
		f.crash = 0
		f.mustDel()
		f.mustBeEmpty(fmt.Sprintf("after a DEL that died before operation %d", at))
		if !died {
			break
		}
	}
}

// TestDelReleasesOnlyWhatIsOffTheLink lets each kernel call of DEL fail.
func TestDelReleasesOnlyWhatIsOffTheLink(t *testing.T) {
	t.Parallel()
	for i := 1; ; i++ {
		f := newForeign(t)
		f.mustAdd()
		before := f.fake.Calls()
		f.fake.FailFrom(i, errFault)
		err := f.node().Del(ctx, f.del(""))
		f.fake.Heal()
		if err == nil {
			if f.fake.Calls()-before < 5 {
				t.Fatalf("a DEL has only %d kernel calls", f.fake.Calls()-before)
			}
			return
		}
		onLink := strings.Contains(f.pod.String(), "172.16.11.5/24")
		if onLink && len(f.held()) == 0 {
			t.Errorf("failing from call %d: the address was given back and is on the link", i)
		}
		f.mustDel()
		f.mustBeEmpty(fmt.Sprintf("after failing from call %d and DEL", i))
	}
}
