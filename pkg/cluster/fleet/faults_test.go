// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package fleet

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestAFaultIsConfirmedAndTakenBackLate looks once a minute at a port.
func TestAFaultIsConfirmedAndTakenBackLate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ seen, want string }{ // x: down, or confirmed to be
		"it goes down and comes back":    {"..xxx........", "...xxxxxx...."},
		"one look":                       {"..x..........", "............."},
		"twice within five minutes":      {"..x...x......", "......xxxxx.."},
		"twice, six minutes apart":       {"..x.....x....", "............."},
		"it flaps, and is never calm":    {"x.xx..x...x.x", "..xxxxxxxxxxx"},
		"one look while it is confirmed": {"xx...x.......", ".xxxxxxxxx..."},
	} {
		f, got := Flaps{Calm: 5 * time.Minute}, ""
		for i, c := range tt.seen {
			found := map[string][]Fault{"ens1": nil}
			if c == 'x' {
				found["ens1"] = []Fault{Down}
			}
			word := "."
			if len(f.Look(time.Duration(i)*time.Minute, found)["ens1"]) > 0 {
				word = "x"
			}
			got += word
		}
		if got != tt.want {
			t.Errorf("%s:\nseen %s\ngot  %s\nwant %s", name, tt.seen, got, tt.want)
		}
	}
}

// Each port and each fault is on its own.
func TestFaultsOfTwoPortsAreConfirmedApart(t *testing.T) {
	t.Parallel()
	f := Flaps{Calm: 5 * time.Minute}
	f.Look(0, map[string][]Fault{"ens1": {NeighbourLost, GIDTableFull}, "ens2": {Down}})
	if late := (&Flaps{Calm: f.Calm, seen: f.seen}).Look(f.Calm, map[string][]Fault{"ens2": {Down}}); len(late) > 0 {
		t.Errorf("what was seen too long ago confirms %v", late)
	}
	got := f.Look(time.Minute, map[string][]Fault{"ens1": {NeighbourLost, GIDTableFull, Down}, "ens2": nil, "ens3": {Down}})
	if want := (map[string][]Fault{"ens1": {GIDTableFull, NeighbourLost}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestAPortThatFlapsForAnHourChangesLittle flaps with each period of whole minutes.
func TestAPortThatFlapsForAnHourChangesLittle(t *testing.T) {
	t.Parallel()
	most := 0
	for down := 1; down < 12; down++ {
		for up := 1; up < 12; up++ {
			f, changes := Flaps{Calm: 5 * time.Minute}, 0
			last := 0
			for i := range 60 {
				found := map[string][]Fault{}
				if i%(down+up) < down {
					found["ens1"] = []Fault{Down}
				}
				now := len(f.Look(time.Duration(i)*time.Minute, found))
				if now != last {
					changes++
				}
				last = now
			}
			most = max(most, changes)
		}
	}
	if most > 20 { // down for two minutes, up for five
		t.Errorf("%d changes in an hour", most)
	}
	t.Logf("at most %d changes", most)
}

func TestAReportMakesACondition(t *testing.T) {
	t.Parallel()
	r := Report{Rails: []Rail{{Rail: 0, Netdev: "ens1"}, {Rail: 1, Netdev: "ens2", Faults: []Fault{Down}}, {Rail: 2, Netdev: "ens3"}}}
	for want, faults := range map[Condition]map[string][]Fault{
		{"True", "RailsReady", "each rail can serve new pods"}:                                                 {"gone": {Down}},
		{"False", "RailsNotReady", "rail 2 (ens3): Down"}:                                                      {"ens3": {Down}},
		{"False", "RailsNotReady", "rail 0 (ens1): GIDTableFull, NeighbourLost; rail 2 (ens3): NeighbourLost"}: {"ens1": {GIDTableFull, NeighbourLost}, "ens3": {NeighbourLost}},
	} {
		if got := r.With(faults).Condition(); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if r.Rails[1].Faults == nil || reflect.DeepEqual(r.With(nil), r) || !slices.Equal(r.Rails[1].Faults, []Fault{Down}) {
		t.Error("With changes the report, or faults make no difference")
	}
	if got := (Report{}).Condition(); got.Status != "Unknown" || got.Reason != "NoRails" {
		t.Errorf("without rails: %v", got)
	}
}
