// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestQuantilesAreOfTheSample(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, tt := range []struct {
		of            []time.Duration
		percent, want int
	}{
		{nil, 50, 0},
		{hundred[:1], 50, 1},
		{hundred[:1], 99, 1},
		{hundred[:2], 50, 1},
		{hundred[:3], 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred[:10], 99, 10},
	} {
		if got := quantile(tt.of, tt.percent); int(got) != tt.want {
			t.Errorf("%d %% of %d: %d, want %d", tt.percent, len(tt.of), got, tt.want)
		}
	}
}

func TestAnAddressThatIsGivenOutTwiceIsAFailure(t *testing.T) {
	t.Parallel()
	w := newWork(scenario{Nodes: 2})
	w.done([]string{"a"}, 0, 1, nil)
	if err := w.failure(); err != nil {
		t.Error(err)
	}
	w.done([]string{"b", "a"}, 0, 1, nil)
	if err := w.failure(context.DeadlineExceeded); err == nil || !strings.Contains(err.Error(), "a was given out twice") {
		t.Errorf("got %v", err)
	}
}

func TestThatTimeIsUpIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newWork(scenario{Nodes: 2})
	w.done(nil, 0, 1, context.DeadlineExceeded)
	if err := w.failure(context.DeadlineExceeded); err != nil {
		t.Error(err)
	}
	other := errors.New("other")
	w.done(nil, 0, 1, other)
	if err := w.failure(context.DeadlineExceeded); !errors.Is(err, other) {
		t.Errorf("got %v", err)
	}
}

func TestEachNodeBeginsOnce(t *testing.T) {
	t.Parallel()
	w := newWork(scenario{Nodes: 3})
	for want := range 5 {
		if got, ok := w.next(); ok != (want < 3) || ok && got != want {
			t.Errorf("%d, %t", got, ok)
		}
	}
}

func TestRequestsAreCountedByTheirAnswers(t *testing.T) {
	t.Parallel()
	tally := newTally()
	for _, err := range []error{nil, block.ErrNotFound, block.ErrExists, block.ErrConflict, &block.BusyError{}, block.ErrUnknown} {
		tally.answered(err, putPool, losePool)
	}
	o := outcome{Requests: tally.count, Done: 2}
	if tally.count[putPool] != 2 || tally.count[losePool] != 2 || tally.count[refused] != 1 || tally.count[unanswered] != 1 {
		t.Errorf("%v", tally.count)
	}
	if conflicts, writes := o.sum(request.conflicting), o.sum(request.writing); conflicts != 1 || writes != 2 {
		t.Errorf("%.1f conflicts and %.1f writes for each", conflicts, writes)
	}
}

// The rest of the cost is what a request of nothing takes.
func TestWhatAThingCostsIsTheDifference(t *testing.T) {
	t.Parallel()
	got := line(cost{Work: 4 * ms, Alone: 9 * ms}, cost{Work: 4*ms + (many-few)*10*time.Microsecond})
	if want := (cost{Work: 3900 * time.Microsecond, Each: 10 * time.Microsecond, Alone: 8900 * time.Microsecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := line(cost{Work: 4 * ms, Alone: ms}, cost{Work: 3 * ms}); got != (cost{Work: 4 * ms, Alone: ms}) {
		t.Errorf("less with more things: %+v", got)
	}
}

func TestPoolsHaveAsManyBlocksAsFillThem(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s            scenario
		spaces, most int
	}{
		{scenario{Design: blocks, Nodes: 10, Fill: 50}, 1, 20},
		{scenario{Design: blocks, Nodes: 5000, Fill: 90}, 1, 5556},
		{scenario{Design: blocks, Nodes: 10_000, Fill: 90, Joined: 80}, 1, 100_000},
		{scenario{Design: blocks, Nodes: 5000, Fill: 90, Rule: sharding}, 22, 253},
		{scenario{Design: shared, Nodes: 5000}, 0, 0},
	} {
		spaces, err := tt.s.spaces()
		if err != nil || len(spaces) != tt.spaces {
			t.Fatalf("%+v: %d spaces, error %v", tt.s, len(spaces), err)
		}
		for _, s := range spaces {
			if s.Blocks() != tt.most {
				t.Errorf("%+v: %d blocks, want %d", tt.s, s.Blocks(), tt.most)
			}
		}
	}
}

func TestHintsAreNumbersOfBlocks(t *testing.T) {
	t.Parallel()
	s := scenario{Design: blocks, Nodes: 70_000, Fill: 90, Hints: true}
	spaces, err := s.spaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []int{0, 1, 255, 256, 65_535, 65_536, 69_999} {
		if got, ok := spaces[0].Hint(s.member(actor{number: number}).Own); !ok || got != number {
			t.Errorf("node %d has hint %d, %t", number, got, ok)
		}
	}
}

func TestThePoolIsOneThatAnOperatorMayWrite(t *testing.T) {
	t.Parallel()
	if err := blockPool(11_112).Validate(); err != nil {
		t.Error(err)
	}
}

func TestRowsAreOfOneLength(t *testing.T) {
	t.Parallel()
	columns := strings.Count(strings.SplitN(header, "\n", 2)[0], "|")
	for _, o := range []outcome{
		{scenario: scenario{Design: blocks, Nodes: 10, Fill: 50, Hints: true}, Done: 10, Elapsed: time.Second},
		{scenario: scenario{Design: shared, Nodes: 10}, Done: 3, Elapsed: time.Minute},
		{},
	} {
		if row := o.row(""); strings.Count(row, "|") != columns || strings.Contains(row, "NaN") {
			t.Errorf("%s\n%s", header, row)
		}
	}
	var out bytes.Buffer
	printCosts(&out, even())
	if !strings.Contains(out.String(), "| create block | 1.00 |  | 5.00 |") {
		t.Errorf("got\n%s", &out)
	}
}
