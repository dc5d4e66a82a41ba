// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnierr_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestMessageIsOperationSubjectCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("device busy")
	tests := []struct{ op, subject, want string }{
		{"add macvlan", "net1", `add macvlan "net1": device busy`},
		{"add macvlan", "", `add macvlan: device busy`},
		{"", "net1", `"net1": device busy`},
		{"", "", `device busy`},
		{"set alias of", "a\nb", `set alias of "a\nb": device busy`},
	}
	for _, tt := range tests {
		err := &cnierr.Error{Code: cnierr.IO, Op: tt.op, Subject: tt.subject, Hint: "not in the message", Err: cause}
		if got := err.Error(); got != tt.want {
			t.Errorf("op %q, subject %q: message %s, want %s", tt.op, tt.subject, got, tt.want)
		}
	}
}

func TestCauseStaysReachable(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("attach: %w", cnierr.New(cnierr.IO, "read record", "net1", "", "it is gone: %w", fs.ErrNotExist))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("errors.Is does not find the cause of %v", err)
	}
}

func TestCodeIsThatOfTheOutermostError(t *testing.T) {
	t.Parallel()
	inner := cnierr.New(cnierr.IO, "open", "x", "", "no")
	other := cnierr.New(cnierr.BadParent, "find master", "y", "", "no")
	tests := []struct {
		name string
		err  error
		want cnierr.Code
	}{
		{"as it is", inner, cnierr.IO},
		{"wrapped", fmt.Errorf("a: %w", fmt.Errorf("b: %w", inner)), cnierr.IO},
		{"classified again", cnierr.New(cnierr.Unreadable, "load", "z", "", "lost: %w", inner), cnierr.Unreadable},
		{"the first of those joined", errors.Join(errors.New("plain"), other, inner), cnierr.BadParent},
		{"joined below a wrapping", fmt.Errorf("a: %w", errors.Join(inner, other)), cnierr.IO},
		{"not classified", errors.New("plain"), cnierr.Bug},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := cnierr.CodeOf(tt.err); got != tt.want {
				t.Errorf("code %d, want %d", got, tt.want)
			}
		})
	}
}

func TestRuntimesGetOneLineAndAHint(t *testing.T) {
	t.Parallel()
	remedy := cnierr.Explain(cnierr.BadParent).Remedy
	hinted := cnierr.New(cnierr.BadParent, "find master", "eth9", "try eth0", "no such link")
	inner := func(subject, hint string) error {
		return cnierr.New(cnierr.BadParent, "find master", subject, hint, "no")
	}
	tests := []struct {
		name string
		err  error
		want *types.Error
	}{
		{"its own hint", hinted, &types.Error{Code: 102, Msg: `roce[102] find master "eth9": no such link`, Details: "try eth0"}},
		{"through a wrapping", fmt.Errorf("attach: %w", hinted), &types.Error{Code: 102, Msg: `roce[102] attach: find master "eth9": no such link`, Details: "try eth0"}},
		{
			"the remedy of the code", cnierr.New(cnierr.BadParent, "find master", "eth9", "", "no such link"),
			&types.Error{Code: 102, Msg: `roce[102] find master "eth9": no such link`, Details: remedy},
		},
		{
			"causes joined in one line", errors.Join(hinted, errors.New("undo: busy")),
			&types.Error{Code: 102, Msg: `roce[102] find master "eth9": no such link; undo: busy`, Details: "try eth0"},
		},
		{
			"the hints of all causes, each once", errors.Join(hinted, fmt.Errorf("b: %w", inner("eth8", "try eth1")), inner("eth7", "try eth0"), inner("eth6", "")),
			&types.Error{
				Code: 102, Msg: `roce[102] find master "eth9": no such link; b: find master "eth8": no; find master "eth7": no; find master "eth6": no`,
				Details: "try eth0; try eth1",
			},
		},
		{
			"the hints of all, each once", errors.Join(hinted, cnierr.New(cnierr.IO, "undo", "x", "look at x", "busy"), hinted),
			&types.Error{Code: 102, Msg: `roce[102] find master "eth9": no such link; undo "x": busy; find master "eth9": no such link`, Details: "try eth0; look at x"},
		},
		{
			"the hint below an error without one", cnierr.New(cnierr.Unreadable, "load", "z", "", "lost: %w", hinted),
			&types.Error{Code: 107, Msg: `roce[107] load "z": lost: find master "eth9": no such link`, Details: "try eth0"},
		},
		{
			"not the hint below an error with one", cnierr.New(cnierr.Unreadable, "load", "z", "keep it", "lost: %w", hinted),
			&types.Error{Code: 107, Msg: `roce[107] load "z": lost: find master "eth9": no such link`, Details: "keep it"},
		},
		{
			"control characters out, UTF-8 as it is", errors.New("a\tb\rç\x00d"),
			&types.Error{Code: 199, Msg: "roce[199] a b ç d", Details: cnierr.Explain(cnierr.Bug).Remedy},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, cnierr.CNI("roce", tt.err)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestNoErrorIsNoError(t *testing.T) {
	t.Parallel()
	if got := cnierr.CNI("roce", nil); got != nil {
		t.Errorf("CNI of nil: %v", got)
	}
}

// libcni gives runtimes an error with the text that types.Error makes of it.
func TestConvertedErrorPrintsMessageAndHint(t *testing.T) {
	t.Parallel()
	err := error(cnierr.CNI("roce", cnierr.New(cnierr.GatewaySilent, "ask gateway", "172.16.11.254", "look at VLAN 11", "no answer")))
	if !strings.Contains(err.Error(), "no answer") || !strings.Contains(err.Error(), "look at VLAN 11") {
		t.Errorf("runtimes would print %q", err)
	}
}

func TestInNamesTheObjectOfEachErrorThatIsJoined(t *testing.T) {
	t.Parallel()
	one := cnierr.New(cnierr.BadParent, "use master", "ens1", "bring it up", "it is down")
	two := cnierr.New(cnierr.NoRDMA, "find device", "", "load the driver", "there is none")
	got := cnierr.In("rail", "3 (net1-3)", errors.Join(one, errors.Join(two)))
	want := "rail \"3 (net1-3)\": use master \"ens1\": it is down\nrail \"3 (net1-3)\": find device: there is none"
	if got.Error() != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := cnierr.CNI("roce", got); e.Code != uint(cnierr.BadParent) || e.Details != "bring it up; load the driver" {
		t.Errorf("got code %d and hints %q", e.Code, e.Details)
	}
	if each := cnierr.Each(got); len(each) != 2 || cnierr.CodeOf(each[1]) != cnierr.NoRDMA {
		t.Errorf("got %v, want that each has its own code", each)
	}
	if err := cnierr.In("rail", "0", nil); err != nil {
		t.Errorf("of nil: %v", err)
	}
}

func TestSTATUSSaysWhetherNothingOrOnlySomeCanBeServed(t *testing.T) {
	t.Parallel()
	for code, want := range map[cnierr.Code]cnierr.Code{
		cnierr.BadParent: cnierr.Limited, cnierr.PoolExhausted: cnierr.NotAvailable, cnierr.IO: cnierr.NotAvailable,
	} {
		e := cnierr.CNI("roce", cnierr.Unavailable(fmt.Errorf("a: %w", cnierr.New(code, "find", "x", "do this", "no"))))
		if e.Code != uint(want) || e.Details != "do this" || !strings.HasSuffix(e.Msg, `serve "ADD": a: find "x": no`) {
			t.Errorf("of code %d: got %+v, want code %d", code, e, want)
		}
	}
	if err := cnierr.Unavailable(nil); err != nil {
		t.Errorf("of nil: %v", err)
	}
}

// TestNoNameIsLostOfMany: the names of a list are those that are named and the number of the others.
func TestNoNameIsLostOfMany(t *testing.T) {
	t.Parallel()
	if got := cnierr.Some(nil); got != "" {
		t.Errorf("of no names: %q", got)
	}
	var names []string
	for n := 1; n < 30; n++ {
		names = append(names, fmt.Sprintf("pod-%d", n))
		given := slices.Clone(names)
		named, more := strings.Split(cnierr.Some(names), ", "), 0
		if _, err := fmt.Sscanf(named[len(named)-1], "and %d more", &more); err == nil {
			named = named[:len(named)-1]
		}
		if len(named)+more != n || !slices.Equal(named, names[:len(named)]) || (more > 0) != (n > 12) || more == 0 && len(cnierr.Some(names)) != len(strings.Join(names, ", ")) {
			t.Errorf("of %d names: %q", n, cnierr.Some(names))
		}
		if !slices.Equal(given, names) {
			t.Errorf("the names of the caller are now %q", names)
		}
	}
}

func TestEachIsWhatIsJoinedHoweverDeep(t *testing.T) {
	t.Parallel()
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	if got := cnierr.Each(errors.Join(a, errors.Join(errors.Join(b), c))); !slices.Equal(got, []error{a, b, c}) {
		t.Errorf("got %v", got)
	}
	if got := cnierr.Each(nil); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}
