// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// gc calls GC of a network on its node; valid as the specification has it.
func (a attachment) gc(t *testing.T, program string, valid any) *types.Error {
	t.Helper()
	a.network = a.network.With("name", a.network["name"]) // a copy
	a.network["cni.dev/valid-attachments"] = valid
	a.id, a.netns, a.ifName, a.args = "", "", "", nil
	_, err := a.raw(t, program, "GC", a.text(t))
	return err
}

func valid(all ...attachment) []any {
	out := []any{}
	for _, a := range all {
		out = append(out, map[string]any{"containerID": a.id, "ifname": a.ifName})
	}
	return out
}

func TestGCRemovesInvalidAttachmentsOfItsOwnNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p, q := w.pod(t), w.pod(t)
	pBefore := p.snapshot(t)
	goes, stays, other := w.attach(w.rail(0), p, "net1"), w.attach(w.rail(0), q, "net1"), w.attach(w.rail(1).With("ipam.pool", "rail0"), q, "net2")
	goes.mustAdd(t)
	stays.mustAdd(t)
	other.mustAdd(t)
	before := q.snapshot(t)
	if err := goes.gc(t, "roce", valid(stays)); err != nil {
		t.Fatalf("GC: %v", err)
	}
	p.unchanged(t, pBefore)
	q.unchanged(t, before)
	if got := w.leases(t, "leased"); len(got) != 2 {
		t.Errorf("leased: %q, want the two addresses of the pod that is valid", got)
	}
	for _, a := range []attachment{stays, other} {
		if err := a.check(t); err != nil {
			t.Errorf("CHECK %s after GC: %v", a.ifName, err)
		}
	}
	if err := goes.gc(t, "roce", nil); err != nil {
		t.Fatalf("GC of all: %v", err)
	}
	if err := other.gc(t, "roce", valid()); err != nil {
		t.Fatalf("GC of all of the other network: %v", err)
	}
	w.nothingLeased(t)
	w.noRecords(t)
	goes.mustDel(t)
	stays.mustDel(t)
}

func TestGCOfTheIPAMPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	theirs := w.delegate("172.16.10.64-172.16.10.80").With("cniVersion", "1.1.0")
	goes, stays := w.attach(theirs, p, "net1"), w.attach(theirs, p, "net2")
	ours := w.attach(w.rail(0).With("ipam.pool", "shared"), p, "net3")
	for _, a := range []attachment{goes, stays} {
		if _, err := a.raw(t, "roce-ipam", "ADD", a.text(t)); err != nil {
			t.Fatal(err)
		}
	}
	ours.mustAdd(t)
	if err := goes.gc(t, "roce-ipam", valid(stays)); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if _, err := stays.raw(t, "roce-ipam", "CHECK", stays.text(t)); err != nil {
		t.Errorf("CHECK of the valid one: %v", err)
	}
	if _, err := goes.raw(t, "roce-ipam", "CHECK", goes.text(t)); err == nil {
		t.Error("CHECK of the one that went: no error")
	}
	if got := w.leases(t, "leased"); len(got) != 2 {
		t.Errorf("leased: %q, want two addresses", got)
	}
}

func TestStatusReportsWhetherAddCanBeServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.wire(t, 7)
	w.IP(t, "link set dev rail7 down")
	full := w.rail(0).With("ipam.subnets", []any{map[string]any{"subnet": "10.9.0.0/32"}}).With("ipam.pool", "full")
	w.attach(full, w.pod(t), "net1").mustAdd(t)
	tests := []struct {
		name string
		c    network
		code uint // 0: ADD can be served
		says string
	}{
		{"all is well", w.rail(0), 0, ""},
		{"the pool is exhausted", full, 50, "10.9.0.0/32"},
		{"the pool is exhausted and that is no matter", full.With("status", map[string]any{"pool": "off"}), 0, ""},
		{"no RDMA device", w.rail(0).With("rdma", nil), 50, "RDMA"},
		{"the master is gone", w.rail(0).With("master", "rail9"), 51, "rail9"},
		{"the master is down", w.rail(0).With("master", "rail7"), 51, "rail7"},
	}
	node := w.snapshot(t)
	for _, tt := range tests {
		a := w.attach(tt.c, &pod{w.leaf, "", ""}, "")
		e := a.call().Status(t)
		switch {
		case tt.code == 0 && e != nil:
			t.Errorf("%s: got %v, want none", tt.name, e)
		case tt.code != 0 && (e == nil || e.Code != tt.code || !strings.Contains(e.Error(), tt.says) || e.Details == ""):
			t.Errorf("%s: got %v, want error %d that says %q, and a hint", tt.name, e, tt.code, tt.says)
		}
	}
	files := w.files(t)
	w.state = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(w.state, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.attach(w.rail(0), &pod{w.leaf, "", ""}, "")
	if e := a.call().Status(t); e == nil || e.Code != 50 || !strings.Contains(e.Error(), "not a directory") {
		t.Errorf("the state folder cannot be used: got %v, want error 50", e)
	}
	w.unchanged(t, node)
	if got := files; slices.ContainsFunc(got, func(name string) bool { return strings.Contains(name, "status") }) {
		t.Errorf("STATUS left %q", got)
	}
}
