// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// TestWhatProgramsInAPodNeed: rail 0 of the pod has a GID, rail 1 has none.
func TestWhatProgramsInAPodNeed(t *testing.T) {
	t.Parallel()
	rails := []Rail{{Number: 0, Link: "net1"}, {Number: 1, Link: "net2"}}
	have := []gids.Rail{{Link: "net1", Addr: netip.MustParseAddr("172.16.10.1"), Index: 5}}
	have[0].Port.Device.Name, have[0].Port.Number = "mlx5_0", 1
	lacking := cnierr.New(cnierr.NoRDMA, "open", "uverbs0", "request the resource", "no such file")
	gid := []string{
		"ok gid rail 0 of a: 172.16.10.1 of net1 has GID index 5 of mlx5_0:1",
		"problem gid rail 1 of a: no RoCE v2 GID has an address of net2 (rocectl doctor gid-table rdma-ports  # on the node)",
	}
	for name, c := range map[string]struct {
		err    error // of the GIDs
		usable func([]gids.Rail) error
		want   []string
	}{
		"in the container":     {nil, func([]gids.Rail) error { return nil }, append(gid[:2:2], "ok container a: it can open the RDMA devices and lock memory")},
		"without the resource": {nil, func([]gids.Rail) error { return lacking }, append(gid[:2:2], "problem container a: open \"uverbs0\": no such file (request the resource)")},
		"on the node":          {nil, nil, append(gid[:2:2], "cannot tell container a: this is not the container")},
		"no GID":               {cnierr.New(cnierr.NoGID, "look for", "GID", "", "none"), nil, []string{"problem gid all rails of a: look for \"GID\": none (rocectl doctor gid-table  # on the node)"}},
		"no answer":            {errors.New("denied"), nil, []string{"cannot tell gid all rails of a: denied"}},
	} {
		p := Pod{Name: "a", Usable: c.usable, RDMA: func(context.Context) ([]gids.Rail, error) { return have, c.err }}
		var got []string
		for _, a := range p.inside(t.Context(), rails) {
			line := fmt.Sprintf("%s %s %s: %s", a.Verdict, a.Check, a.Of, a.Found)
			if a.Fix != "" {
				line += " (" + a.Fix + ")"
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestWhatCannotBeAskedIsNotAnswered: without NET_RAW, no question leaves the pod.
func TestWhatCannotBeAskedIsNotAnswered(t *testing.T) {
	t.Parallel()
	p := Pod{Name: "a", Enter: func(func() error) error { return unix.EPERM }}
	r := Rail{Link: "net1", Addr: netip.MustParseAddr("172.16.10.1"), Gateway: netip.MustParseAddr("172.16.10.254")}
	for _, a := range []report.Answer{p.gateway(t.Context(), r), p.duplicate(t.Context(), r)} {
		if a.Verdict != report.CannotTell || !strings.Contains(a.Missing, "NET_RAW") {
			t.Errorf("got %+v, want that it cannot tell without NET_RAW", a)
		}
	}
}

// TestBothPodsRunThePrograms has shell scripts in place of the programs. That of ib_write_bw fails
// in both pods. Rail 1 has no GID.
func TestBothPodsRunThePrograms(t *testing.T) {
	w := newWorld(t, "a", "b")
	dir := t.TempDir()
	for name, script := range map[string]string{
		"rping":       "case $1 in -s) exec sleep 60;; esac",
		"ib_write_bw": `case $* in *172.16.1?.2) exit 1;; esac; echo no memory >&2; exit 1`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	for i, p := range w.pods {
		enter := p.Enter
		p.Enter = func(fn func() error) error { // the end of a thread kills what it has started
			done := make(chan error)
			go func() { _ = enter(func() error { done <- fn(); <-end; return nil }) }()
			return <-done
		}
		p.RDMA = func(context.Context) ([]gids.Rail, error) {
			link, v4 := conf.LinkName("net1"), netip.MustParseAddr(fmt.Sprint("172.16.10.", i+1))
			return []gids.Rail{{Link: link, Addr: netip.MustParseAddr("fd00::1"), Index: 1}, {Link: link, Addr: v4, Index: 5}}, nil
		}
	}
	w.serve()
	answers, err := w.pods[0].Test(t.Context(), w.pods[1].address, testKey, Tests{RDMA: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range answers {
		if a.Check == Handshake || a.Check == Bandwidth {
			got = append(got, fmt.Sprintf("%s %s: %s%s", a.Verdict, a.Of, a.Found, a.Missing))
		}
	}
	want := []string{
		"ok rail 0 of a to b: rping connects by rdma_cm and transfers",
		"problem rail 0 of a to b: ib_write_bw -d  -i 0 -x 5 -p PORT --size=65536 --iters=500 --report_gbits --CPU-freq 172.16.10.2: exit status 1: ; b says: no memory",
		"cannot tell rail 1 of a to b: not testeda GID for 172.16.11.1 of a: rocectl doctor on its node",
		"cannot tell rail 1 of a to b: not testeda GID for 172.16.11.1 of a: rocectl doctor on its node",
	}
	for i := range got {
		got[i] = regexp.MustCompile(`-p \d+`).ReplaceAllString(got[i], "-p PORT")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
