// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package blocktest

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Op is a method of a store.
type Op string

// The methods.
const (
	Create Op = "create"
	Get    Op = "get"
	Peek   Op = "peek"
	List   Op = "list"
	Touch  Op = "touch"
	Delete Op = "delete"
)

// Fault is what goes wrong with one call.
type Fault string

// The faults. After a Refused call or a Lost one nothing has happened; what
// Landed was done, and the answer to it was lost; what is Late is done when Land says
// so. The caller of a Lost, Landed or Late call gets block.ErrUnknown.
const (
	None    Fault = ""
	Refused Fault = "refused"
	Lost    Fault = "lost"
	Landed  Fault = "landed"
	Late    Fault = "late"
)

// RetryAfter is what a Refused call is told, if nothing else was said.
const RetryAfter = time.Second

// Faulty is what stores in memory are made of: it does one call at a time, counts
// them, and has those go wrong that a test wants to. Its zero value is ready.
type Faulty struct {
	// Fault says what goes wrong with a call; nil: nothing. It is called with the
	// lock held, so that it needs none of its own.
	Fault func(op Op, name string) Fault
	// After is what a Refused call is told; 0: RetryAfter.
	After time.Duration

	mu    sync.Mutex
	calls map[Op]int
	late  []func()
}

// Calls returns how often a method was called.
func (f *Faulty) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Land does what was Late first, and says whether there was something.
func (f *Faulty) Land() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.late) == 0 {
		return false
	}
	f.late[0]()
	f.late = f.late[1:]
	return true
}

// Alone does something beside all calls.
func (f *Faulty) Alone(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// Reset is Alone, and what is Late is lost.
func (f *Faulty) Reset(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = nil
	do()
}

// Call does one call, or what its fault leaves of it. If that is late, the caller is
// gone: do must change nothing of what it has from it.
func Call[T any](ctx context.Context, f *Faulty, op Op, name string, do func() (T, error)) (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[Op]int{}
	}
	f.calls[op]++
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	unheard := func() { _, _ = do() } // the caller does not get the answer
	switch f.fault(op, name) {
	case Refused:
		return none, &block.BusyError{After: cmp.Or(f.After, RetryAfter)}
	case Lost:
		return none, block.ErrUnknown
	case Landed:
		unheard()
		return none, block.ErrUnknown
	case Late:
		f.late = append(f.late, unheard)
		return none, block.ErrUnknown
	}
	out, err := do()
	if err != nil {
		return none, err
	}
	return out, nil
}

func (f *Faulty) fault(op Op, name string) Fault {
	if f.Fault == nil {
		return None
	}
	return f.Fault(op, name)
}
