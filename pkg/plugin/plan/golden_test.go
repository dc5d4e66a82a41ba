// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

// TestPlanIsAsInItsGolden makes the plan of each testdata/*.txtar from
// conf.json, facts.json and lease.json and compares it, as text, to plan.txt,
// the result to result.json, or the error to error.txt. An archive with ops.txt has what
// commands do not show, too: each operation as it is in the record, and which of them are
// undone one by one.
func TestPlanIsAsInItsGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			arc, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, arc)
			if *update {
				if err := os.WriteFile(path, txtar.Format(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(txtar.Format(arc)), string(txtar.Format(got))); diff != "" {
				t.Errorf("plan differs from its golden; if it should, run make golden (-want +got):\n%s", diff)
			}
		})
	}
}

// run returns the archive with outputs that are made from its inputs again.
func run(t *testing.T, arc *txtar.Archive) *txtar.Archive {
	t.Helper()
	in := map[string][]byte{}
	out := &txtar.Archive{Comment: arc.Comment}
	recorded := false
	for _, f := range arc.Files {
		switch f.Name {
		case "conf.json", "facts.json", "lease.json":
			in[f.Name] = f.Data
			out.Files = append(out.Files, f)
		case "ops.txt":
			recorded = true
		case "plan.txt", "result.json", "error.txt":
		default:
			t.Fatalf("unknown section %q", f.Name)
		}
	}
	req := parse(t, in["conf.json"])
	p, err := plan.Make(req, rails(t, req, in["facts.json"], in["lease.json"]))
	if err != nil {
		e := cnierr.CNI("roce", err)
		text := fmt.Sprintf("%s\nhint: %s\n", e.Msg, e.Details)
		out.Files = append(out.Files, txtar.File{Name: "error.txt", Data: []byte(text)})
		return out
	}
	roundTrip(t, p)
	laws(t, p)
	otherAddress(t, req, rails(t, req, in["facts.json"], in["lease.json"]), p)
	text := strings.Join(p.Ops.Commands("pod"), "\n") + "\n"
	out.Files = append(out.Files,
		txtar.File{Name: "plan.txt", Data: []byte(text)},
		txtar.File{Name: "result.json", Data: told(t, p, req)})
	if recorded {
		out.Files = append(out.Files, txtar.File{Name: "ops.txt", Data: lines(t, p.Ops)})
	}
	return out
}

// lines returns operations as records have them, a line for each.
func lines(t *testing.T, ops plan.Ops) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, op := range ops {
		b, err := json.Marshal(plan.Ops{op})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(b[1:len(b)-1], '\n'))
	}
	for _, op := range ops.Teardown() {
		out.WriteString(strings.TrimSuffix(fmt.Sprintf("undo %s on %s: %s", op.Name(), op.Place, op.Link()), ": ") + "\n")
	}
	return out.Bytes()
}

// rails reads the facts and the lease of an attachment with one interface, or
// lists of both for one with several. A rail with null as its facts is left
// out.
func rails(t *testing.T, req conf.Request, facts, leases []byte) []plan.Rail {
	t.Helper()
	if len(req.Rails) == 1 {
		r := plan.Rail{Rail: req.Rails[0]}
		strict(t, facts, &r.Facts)
		strict(t, leases, &r.Lease)
		r.Facts.Parent.Index = 2
		return []plan.Rail{r}
	}
	var f []*plan.Facts
	var l []plan.Lease
	strict(t, facts, &f)
	strict(t, leases, &l)
	if len(f) != len(req.Rails) || len(l) != len(f) {
		t.Fatalf("%d rails, facts of %d and leases of %d", len(req.Rails), len(f), len(l))
	}
	var out []plan.Rail
	for i, one := range req.Rails {
		if f[i] != nil {
			f[i].Parent.Index = int32(2 + i)
			out = append(out, plan.Rail{Rail: one, Facts: *f[i], Lease: l[i]})
		}
	}
	return out
}

func parse(t *testing.T, config []byte) conf.Request {
	t.Helper()
	req, err := conf.Parse(conf.Input{ContainerID: "c1", Netns: "/run/netns/pod", IfName: "net1", Stdin: config})
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func strict(t *testing.T, b []byte, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
}

// roundTrip checks that the plan survives its record.
func roundTrip(t *testing.T, p plan.Plan) {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var again plan.Plan
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	same := cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}
	if diff := cmp.Diff(p, again, same); diff != "" {
		t.Errorf("the plan changes on its way through JSON (-before +after):\n%s", diff)
	}
}

// laws checks what the commands of a plan do not show.
func laws(t *testing.T, p plan.Plan) {
	t.Helper()
	// The commands for a namespace by its path differ in how they name it.
	byName := strings.NewReplacer("nsenter --net=/n/7 ip ", "ip -n pod ", "nsenter --net=/n/7", "ip netns exec pod", "netns /n/7", "netns pod", "netns ../../n/7", "netns pod")
	byPath := byName.Replace(strings.Join(p.Ops.Commands("/n/7"), "\n"))
	if diff := cmp.Diff(strings.Join(p.Ops.Commands("pod"), "\n"), byPath); diff != "" {
		t.Errorf("commands for a namespace by its path (-want +got):\n%s", diff)
	}
	for c := range plan.All[plan.Conflict](p.Ops) {
		if c.Mode == conf.Off {
			t.Errorf("a conflict would have no effect: %+v", c)
		}
	}
	for a := range plan.All[plan.Align](p.Ops) {
		for i, r := range a.Rails {
			var leased []netip.Prefix
			for _, one := range p.Interfaces[i].Addresses {
				leased = append(leased, one.Prefix)
			}
			if diff := cmp.Diff(leased, r.Addresses, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("the addresses of %s that get the index (-want +got):\n%s", r.Link, diff)
			}
		}
	}
}

// otherAddress checks that MACFromAddress is right, with another first address.
func otherAddress(t *testing.T, req conf.Request, rails []plan.Rail, p plan.Plan) {
	t.Helper()
	if len(rails[0].Lease.Addresses) == 0 {
		return
	}
	a := &rails[0].Lease.Addresses[0]
	a.Prefix = netip.PrefixFrom(a.Prefix.Addr().Next(), a.Prefix.Bits())
	other, err := plan.Make(req, rails)
	if err != nil {
		t.Fatal(err)
	}
	if changes := other.Interfaces[0].MAC != p.Interfaces[0].MAC; plan.MACFromAddress(req) != changes {
		t.Errorf("another address gives another MAC: %t", changes)
	}
}

// told returns what the runtime is told, in the version that it asked for.
func told(t *testing.T, p plan.Plan, req conf.Request) []byte {
	t.Helper()
	res, err := p.Result(req).GetAsVersion(req.CNIVersion)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}
