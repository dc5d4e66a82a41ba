// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// told returns the interfaces and addresses of a result, a line for each.
func told(res *current.Result) []string {
	var out []string
	for _, ip := range res.IPs {
		i := res.Interfaces[*ip.Interface]
		out = append(out, fmt.Sprintf("%s %s via %s", i.Name, ip.Address.String(), ip.Gateway))
	}
	return out
}

func TestAllRailsGetTheSameSlotInOneADD(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	res := w.mustCome("c1")
	var names []string
	for _, i := range res.Interfaces {
		names = append(names, i.Name)
	}
	if diff := cmp.Diff([]string{"net1", "net1-1", "net1-2"}, names); diff != "" {
		t.Error(diff)
	}
	slots := map[string]bool{}
	for _, ip := range res.IPs {
		if v4 := ip.Address.IP.To4(); v4 != nil {
			slots[fmt.Sprint(v4[3])] = true
		}
	}
	if len(res.IPs) != 6 || len(slots) != 1 {
		t.Errorf("got %v: want two addresses on each rail, with one host part", told(res))
	}
	if len(w.wire.asked) != 1 {
		t.Errorf("asked the wire %d times, want one question for all rails: %v", len(w.wire.asked), w.wire.asked)
	}
	w.mustBeWhole("c1")
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestOnlyTheRailWhoseMACIsTakenIsInUse(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	var log strings.Builder
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	w.before = func(op plan.Op, undo bool) error {
		if up, ok := op.Kind.(plan.Up); ok && up.Link == "net1-1" && !undo {
			w.before = nil
			return &kernel.MACInUseError{Link: up.Link}
		}
		return nil
	}
	w.mustAdd(w.request("c1", "net1", ""))
	if said := log.String(); strings.Count(said, "address is in use") != 1 || !strings.Contains(said, "interface=net1-1") {
		t.Errorf("got %s, want net1-1 alone", said)
	}
}

func TestADDFailsIfTheNICOfARailIsDown(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Host().IP("link set ens2 down")
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if cnierr.CodeOf(err) != cnierr.BadParent || !strings.Contains(err.Error(), `rail "1 (net1-1)"`) || !strings.Contains(err.Error(), `"ens2"`) {
		t.Errorf("got %v, want code %d that names the rail and the NIC", err, cnierr.BadParent)
	}
	w.mustBeEmpty("after an ADD that failed")
}

func TestARailMayBeSkipped(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Host().IP("link set ens2 down")
	var log bytes.Buffer
	n := w.node()
	n.Log = slog.New(slog.NewTextHandler(&log, nil))
	res, err := n.Add(ctx, w.request("c1", "net1", `, "minRails": 2`))
	must(t, err)
	if len(res.Interfaces) != 2 || res.Interfaces[1].Name != "net1-2" {
		t.Errorf("got %v, want net1 and net1-2", res.Interfaces)
	}
	rec, err := record.Store{Dir: w.dir, BootID: w.boot}.Load(c1)
	if err != nil || len(rec.LeftOut) != 1 || !strings.Contains(rec.LeftOut[0], "ens2") {
		t.Errorf("the record says %q, %v: want why a rail is left out", rec.LeftOut, err)
	}
	if !strings.Contains(log.String(), "left out") || !strings.Contains(log.String(), "ens2") {
		t.Errorf("the log says %q", log.String())
	}
	w.mustCheck(w.request("c1", "net1", `, "minRails": 2`))
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

// A rail of which the node lacks the RDMA device is left out, too.
func TestARailWithoutItsDeviceMayBeSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rails": [{"master": "ens1"}, {"master": {"rdma": "mlx5_9"}}], "minRails": 1,
		"rdma": %q, "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.17.{rail}.0/29"}]}%s}`
	res := w.mustCome("c1")
	rec, err := w.node().Records.Load(c1)
	if err != nil || len(res.Interfaces) != 1 || len(rec.LeftOut) != 1 || !strings.Contains(rec.LeftOut[0], "mlx5_9") {
		t.Errorf("got %v, the record says %q, %v", res.Interfaces, rec.LeftOut, err)
	}
}

func TestOtherFaultsOfARailDoNotSkipIt(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1")).IP("link add net1-1 type dummy")
	_, err := w.node().Add(ctx, w.request("c1", "net1", `, "minRails": 1`))
	if cnierr.CodeOf(err) != cnierr.BadEnv || !strings.Contains(err.Error(), "net1-1") {
		t.Errorf("got %v, want code %d for the name that the pod has", err, cnierr.BadEnv)
	}
}

func TestCheckNamesTheRail(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"link":    "link del net1-2",
		"down":    "link set net1-2 down",
		"address": "addr del %s dev net1-2",
		"rule":    "rule del from %s priority 32000",
		"route":   "route del default dev net1-2 table 102",
	} {
		w := newRailsWorld(t)
		res := w.mustCome("c1")
		ip := res.IPs[4].Address
		switch name {
		case "address":
			damage = fmt.Sprintf(damage, ip.String())
		case "rule":
			damage = fmt.Sprintf("rule del from %s/32 lookup 102 priority 32000", ip.IP)
		}
		w.pod.IP(damage)
		err := w.node().Check(ctx, w.request("c1", "net1", ""))
		if err == nil || !strings.Contains(err.Error(), `rail "2 (net1-2)"`) || strings.Contains(err.Error(), `rail "1 `) {
			t.Errorf("%s: got %v, want findings of rail 2 alone", name, err)
		}
	}
}

func TestDELWithoutARecordRemovesAllRails(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.mustCome("c1")
	must(t, os.RemoveAll(filepath.Join(w.dir, "attachments", "c1")))
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

const derivedConfig = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rails": [{"master": "ens1"}, {"master": "ens2"}],
	"rdma": %q, "ipam": {"type": "roce-ipam", "fromMaster": true, "gateway": "last", "derive": {"base": 64, "perHost": 8}}%s}`

func TestARailIsSkippedIfItsNICHasNoSubnet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = derivedConfig
	w.fake.Pod(podPath("c1"))
	w.fake.Host().IP("addr add 10.2.0.5/24 dev ens2")
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if cnierr.CodeOf(err) != cnierr.BadParent || !strings.Contains(err.Error(), `rail "0 (net1)"`) {
		t.Errorf("got %v, want code %d that names the rail", err, cnierr.BadParent)
	}
	w.mustBeEmpty("after an ADD that failed")
	res := w.mustAdd(w.request("c1", "net1", `, "minRails": 1`))
	if got := told(res); len(got) != 1 || !strings.HasPrefix(got[0], "net1-1 10.2.0.") {
		t.Errorf("got %v, want net1-1 alone", got)
	}
}

// TestARailWithAFullGIDTableIsLeftOut as one with a NIC that is down.
func TestARailWithAFullGIDTableIsLeftOut(t *testing.T) {
	t.Parallel()
	for each, size := range map[int]int{1: 8, 2: 17} { // with RoCE v1 an address takes two entries, and one is free
		w := newRailsWorld(t)
		w.mode = conf.RDMAAuto
		w.hca.each, w.hca.tables = true, newGIDTables(size, each, 0, 8, 0)
		w.fake.Pod(podPath("c1"))
		w.mustAdd(w.request("c1", "net1", `, "minRails": 2`))
		rec, err := record.Store{Dir: w.dir, BootID: w.boot}.Load(c1)
		if err != nil || len(rec.LeftOut) != 1 || !strings.Contains(rec.LeftOut[0], "rail \"1 (net1-1)\"") || !strings.Contains(rec.LeftOut[0], "its GID table is full") {
			t.Errorf("the record says %q, %v", rec.LeftOut, err)
		}
		w.fake.Pod(podPath("c2"))
		w.hca.tables = newGIDTables(size, each, 8, 8, 0)
		if _, err := w.node().Add(ctx, w.request("c2", "net1", `, "minRails": 2`)); cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "want 2 of 3, got 1") {
			t.Errorf("with two full tables: %v", err)
		}
	}
}

func TestTooFewRailsSayHowManyAreWanted(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Host().IP("link set ens2 down")
	w.fake.Host().IP("link set ens3 down")
	_, err := w.node().Add(ctx, w.request("c1", "net1", `, "minRails": 2`))
	if cnierr.CodeOf(err) != cnierr.BadParent || !strings.HasPrefix(err.Error(), `use rails "minRails": want 2 of 3, got 1`) {
		t.Errorf("got %v, want code %d and how many there are", err, cnierr.BadParent)
	}
	if got := cnierr.CNI("roce", err).Details; !strings.Contains(got, "ens2") || !strings.Contains(got, "ens3") {
		t.Errorf("the hint is %q, want what to do about both NICs", got)
	}
	status := w.node().Status(ctx, w.request("c1", "net1", `, "minRails": 2, "status": {"rails": "require"}`))
	if got := cnierr.CNI("roce", status).Details; cnierr.CodeOf(status) != cnierr.Limited || !strings.Contains(got, "ens3") {
		t.Errorf("STATUS: %v, hint %q", status, got)
	}
}

func TestTwoRailsOnOneNICAreRefused(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	req := w.request("c1", "net1", "")
	facts, err := machine{w}.Facts(ctx, req)
	must(t, err)
	facts[2].Parent = facts[0].Parent // found under another name
	if _, err := w.node().Preview(ctx, req, facts); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "rail 0 uses it, too") {
		t.Errorf("got %v, want code %d", err, cnierr.BadConfig)
	}
}

func TestStatusOfRails(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	const require = `, "status": {"rails": "require"}`
	status := func(extra string) error { return w.node().Status(ctx, w.request("c1", "net1", extra)) }
	if err := errors.Join(status(require), status("")); err != nil {
		t.Errorf("with all NICs: %v", err)
	}
	w.fake.Host().IP("link set ens2 down")
	if err := status(require); cnierr.CodeOf(err) != cnierr.Limited || !strings.Contains(err.Error(), `rail "1 (net1-1)"`) || !strings.Contains(err.Error(), "ens2") {
		t.Errorf("with a NIC down: got %v, want code %d", err, cnierr.Limited)
	}
	if err := errors.Join(status(require+`, "minRails": 2`), status("")); err != nil {
		t.Errorf("with enough NICs: %v", err)
	}
	w.fake.Host().IP("link set ens1 down")
	if err := status(""); err != nil {
		t.Errorf("with one NIC: %v", err)
	}
	w.fake.Host().IP("link set ens3 down")
	if err := status(""); cnierr.CodeOf(err) != cnierr.Limited || !strings.Contains(err.Error(), "ens3") {
		t.Errorf("without a NIC: got %v, want code %d", err, cnierr.Limited)
	}
}

func TestStatusSeesAFullGIDTable(t *testing.T) {
	t.Parallel()
	const require = `, "status": {"rails": "require"}`
	full := func(gid, extra string, host ...int) error {
		w := newRailsWorld(t)
		w.config = strings.Replace(railsConfig, `"rdma": %q`, `"rdma": {"mode": %q, "gid": "`+gid+`"}`, 1)
		w.mode = conf.RDMAAuto
		w.hca.each, w.hca.tables = true, newGIDTables(8, 1, host...)
		return w.node().Status(ctx, w.request("c1", "net1", extra))
	}
	if err := errors.Join(full("require", "", 8, 8, 0), full("require", require+`, "minRails": 2`, 0, 8, 0), full("warn", require, 8, 8, 8)); err != nil {
		t.Errorf("with enough rails: %v", err)
	}
	for name, err := range map[string]error{"one is full": full("require", require, 0, 8, 0), "all are full": full("require", "", 8, 8, 8)} {
		if cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(err.Error(), `rail "1 (net1-1)"`) || !strings.Contains(err.Error(), "its GID table is full") {
			t.Errorf("%s: got %v, want code %d that names rail 1", name, err, cnierr.NotAvailable)
		}
	}
}

func TestStatusCannotKnowWhichInterfacesOfAPodAreMeant(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	for mode, want := range map[conf.RDMAMode]cnierr.Code{conf.RDMAAuto: 0, conf.RDMAExclusive: cnierr.NotAvailable} { // the node shares its devices
		w.mode = mode
		if err := w.node().Status(ctx, w.request("c1", "net1", `, "linkInContainer": true`)); (err == nil) != (want == 0) || err != nil && cnierr.CodeOf(err) != want {
			t.Errorf("mode %s: got %v, want code %d", mode, err, want)
		}
	}
}

func TestRequestedAddressesGoToTheirRails(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	res := w.mustAdd(w.request("c1", "net1", `, "runtimeConfig": {"ips": ["172.16.13.4", "172.16.11.2"]}`))
	got := told(res)
	want := func(s string) bool {
		return slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, s) })
	}
	if !want("net1 172.16.11.2/") || !want("net1-2 172.16.13.4/") {
		t.Errorf("got %v", got)
	}
}

// What is on the host for all rails belongs to no interface of the pod.
func TestCheckOfSeveralRailsSeesWhatBelongsToNoInterface(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.fake.Pod(podPath("c1"))
	req := w.request("c1", "net1", "")
	w.mustAdd(req)
	rec, err := w.node().Records.Load(c1)
	must(t, err)
	rec.Plan.Ops = append(rec.Plan.Ops, sharedRoute())
	must(t, w.node().Records.Save(rec))
	err = w.node().Check(ctx, req)
	if cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "10.9.0.0/24") || strings.Contains(err.Error(), `rail "`) {
		t.Errorf("the host lacks a route: CHECK says %v", err)
	}
	w.fake.Host().IP("route add 10.9.0.0/24 dev ens1 table 200 proto 82 scope link")
	w.mustCheck(req)
}
