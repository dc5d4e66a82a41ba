// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

// frameOf is an LLDP frame of a switch: chassis, port, time to live, name.
func frameOf(name, port string) []byte {
	tlv := func(typ byte, value string) []byte { return append([]byte{typ << 1, byte(len(value))}, value...) }
	f := append([]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}, 2, 0, 0, 0, 0, 1, 0x88, 0xcc)
	return slices.Concat(f, tlv(1, "\x04\x02\x00\x00\x00\x00\x01"), tlv(2, "\x05"+port), tlv(3, "\x00\x78"), tlv(5, name), []byte{0, 0})
}

// TestTheAgentHearsTheSwitchOfEachNIC has a switch that sends LLDP, the cable in another
// switch at the second time that the agent listens, and no switch at the third.
func TestTheAgentHearsTheSwitchOfEachNIC(t *testing.T) {
	n := kerneltest.NewNode(t)
	n.NIC("ens1")
	sends := func(frame []byte) (stop func()) {
		ctx, end := context.WithCancel(t.Context())
		done := cnitest.SendFrames(ctx, t, n.Wire.Do, "ens1", 0x88cc, frame)
		return func() {
			end()
			<-done // no frame is on its way when the agent listens again
		}
	}
	stop := sends(frameOf("leaf-1", "swp1"))

	rail := 0
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var heard []fleet.Connection
	var silent []bool
	var reports []fleet.Report
	r := &reporter{
		node:    "gpu-01",
		publish: func(_ context.Context, _ string, r fleet.Report) error { reports = append(reports, r); return nil },
		ports: func(context.Context) ([]nic.Details, error) {
			return []nic.Details{{Rail: &rail, Netdev: "ens1", State: "ACTIVE"}, {Device: "mlx5_9"}, {Netdev: "ens8", State: "DOWN"}}, nil
		},
		silent: map[string]bool{"ens8": false}, // a port that is down hears nothing, and is not silent
		now:    func() time.Duration { return time.Hour }, log: slog.New(slog.DiscardHandler),
	}
	r.wait = func(context.Context, time.Duration) error {
		heard = append(heard, r.connections()["ens1"])
		silent = append(silent, r.silent["ens1"] || r.silent["ens8"])
		switch len(heard) {
		case 1:
			stop()
			stop = sends(frameOf("leaf-2", "swp7"))
		case 2:
			stop()
			end()
		default:
			return errors.New("the end")
		}
		return nil
	}
	r.listen(ctx)
	if want := []bool{false, false, true}; !slices.Equal(silent, want) {
		t.Errorf("the switch was lost: %v, want %v", silent, want)
	}
	if want := []fleet.Connection{{Switch: "leaf-1", Port: "swp1"}, {Switch: "leaf-2", Port: "swp7"}, {}}; !slices.Equal(heard, want) {
		t.Errorf("heard %+v, want %+v", heard, want)
	}

	r.heard, r.silent = map[string]fleet.Connection{"ens1": heard[1]}, nil
	looks := 0
	r.wait = func(context.Context, time.Duration) error {
		if looks++; looks == 2 {
			return errors.New("the end")
		}
		return nil
	}
	r.run(t.Context())
	if want := []agent.Rail{{Netdev: "ens1", Up: true, Ready: true}}; !slices.Equal(r.rails(), want) {
		t.Errorf("the metrics have %+v, want %+v", r.rails(), want)
	}
	if len(reports) != 1 || len(reports[0].Rails) != 1 || reports[0].Rails[0].Switch != "leaf-2" || reports[0].Rails[0].SwitchPort != "swp7" {
		t.Errorf("reported %+v", reports)
	}
}

func TestAReportIsShortAndHasOnlyPrintableCharacters(t *testing.T) {
	t.Parallel()
	evil := strings.Repeat("\x1b[2J\u202e", 100)
	var ports []nic.Details
	for i := range 40 {
		ports = append(ports, nic.Details{
			Rail: &i, Netdev: "ens1", PCI: evil, Device: evil, Number: 1, State: evil, VendorID: evil, DeviceID: evil,
			Driver: nic.Driver{Name: evil, Version: evil, Firmware: evil}, GPUs: make([]nic.GPU, 40), QoS: evil,
		})
	}
	ports = append(ports, nic.Details{Device: "mlx5_9"}) // no rail
	got := reportOf(ports, map[string]fleet.Connection{"ens1": {Switch: evil, Port: evil}}, fleet.Report{})
	if len(got.Rails) != fleet.MaxRails {
		t.Fatalf("%d rails", len(got.Rails))
	}
	for _, r := range got.Rails {
		for _, s := range []string{r.Netdev, r.PCI, r.Device, r.State, r.Vendor, r.DeviceID, r.Driver, r.Firmware, r.Switch, r.SwitchPort} {
			if len(s) > 64 || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("%q", s)
			}
		}
		if len(r.QoS) != 128 || strings.Contains(r.QoS, "\x1b") {
			t.Errorf("%q", r.QoS)
		}
		if len(r.GPUs) > fleet.MaxGPUs {
			t.Errorf("%d GPUs", len(r.GPUs))
		}
	}
}

func TestAReportHasEachPropertyOfANIC(t *testing.T) {
	t.Parallel()
	six := 6
	port := nic.Details{
		Rail: &six, Netdev: "ens1", PCI: "0000:01:00.0", Device: "mlx5_0", Number: 2, State: "ACTIVE", Speed: 400000, MTU: 9000,
		VendorID: "15b3", DeviceID: "1021", Driver: nic.Driver{Name: "mlx5_core", Version: "6.18", Firmware: "28.39.1002"},
		GIDs: nic.GIDs{Size: 256, Width: 3, Used: 7}, QoS: "PFC 3",
		GPUs: []nic.GPU{{Name: "0000:02:00.0", Distance: "PIX"}, {Name: "0000:03:00.0", Distance: "PIX"}},
	}
	want := fleet.Rail{
		Rail: 6, Netdev: "ens1", PCI: "0000:01:00.0", Device: "mlx5_0", Port: 2, State: "ACTIVE", Speed: 400000, MTU: 9000,
		Vendor: "15b3", DeviceID: "1021", Driver: "mlx5_core 6.18", Firmware: "28.39.1002", GIDs: 256, GIDWidth: 3, QoS: "PFC 3",
		GPUs: []string{"0000:02:00.0", "0000:03:00.0"}, Distance: "PIX", Switch: "leaf", SwitchPort: "swp1",
	}
	got := reportOf([]nic.Details{port}, map[string]fleet.Connection{"ens1": {Switch: "leaf", Port: "swp1"}}, fleet.Report{})
	if diff := cmp.Diff(fleet.Report{Rails: []fleet.Rail{want}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestADeviceOfAPodIsReportedAsBefore has two NICs, of which a pod has the second one, and one
// that is at its place later.
func TestADeviceOfAPodIsReportedAsBefore(t *testing.T) {
	t.Parallel()
	zero, one := 0, 1
	first := nic.Details{Rail: &zero, Netdev: "ens1", PCI: "0000:01:00.0", Device: "mlx5_0", Number: 1, State: "ACTIVE"}
	port := nic.Details{Rail: &one, Netdev: "ens2", PCI: "0000:02:00.0", Device: "mlx5_1", Number: 1, State: "ACTIVE", MTU: 9000, GIDs: nic.GIDs{Size: 256}}
	before := reportOf([]nic.Details{first, port}, map[string]fleet.Connection{"ens2": {Switch: "leaf", Port: "swp1"}}, fleet.Report{})
	port.State, port.GIDs = nic.Away, nic.GIDs{}
	if now := reportOf([]nic.Details{first, port}, nil, before.With(map[string][]fleet.Fault{"ens2": {fleet.Down}})); !reflect.DeepEqual(now, before) {
		t.Errorf("%+v, before %+v", now, before)
	}
	for name, change := range map[string]func(*nic.Details){
		"a port that is down":   func(p *nic.Details) { p.State = "DOWN" },
		"another NIC":           func(p *nic.Details) { p.PCI = "0000:03:00.0" },
		"a NIC of another rail": func(p *nic.Details) { p.Rail = new(2) },
	} {
		p := port
		change(&p)
		if now := reportOf([]nic.Details{first, p}, nil, before); !reflect.DeepEqual(now, reportOf([]nic.Details{first, p}, nil, fleet.Report{})) {
			t.Errorf("%s is reported as %+v", name, now)
		}
	}
}

// A device that a pod has tells no state, and a port that is no rail has no metrics.
func TestTheMetricsHaveEachRailOfTheLastLook(t *testing.T) {
	t.Parallel()
	port := func(rail *int, netdev, state string) nic.Details {
		return nic.Details{Rail: rail, Netdev: conf.LinkName(netdev), Device: "of-" + netdev, Number: 2, State: state, GIDs: nic.GIDs{Size: 256, Used: 7}}
	}
	r := &reporter{
		seen:    []nic.Details{port(new(0), "ens1", "ACTIVE"), port(new(1), "ens2", nic.Away), port(new(2), "ens3", "DOWN"), port(nil, "ens4", "ACTIVE"), port(new(fleet.MaxRails), "ens5", "ACTIVE")},
		faults:  map[string][]fleet.Fault{"ens3": {fleet.Down}},
		traffic: map[usage.Source]usage.Traffic{{Device: "of-ens1", Port: 2}: {Sent: 5, Received: 6, Unit: "bytes"}, {Device: "of-ens2", Port: 1}: {Sent: 9}},
	}
	want := []agent.Rail{
		{Number: 0, Netdev: "ens1", Device: "of-ens1", Up: true, GIDs: 7, GIDTable: 256, Ready: true, Sent: 5, Received: 6, Unit: "bytes"},
		{Number: 1, Netdev: "ens2", Device: "of-ens2", Up: true, GIDs: 7, GIDTable: 256, Ready: true},
		{Number: 2, Netdev: "ens3", Device: "of-ens3", GIDs: 7, GIDTable: 256},
	}
	if diff := cmp.Diff(want, r.rails()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// minutes is a node with an agent that looks at its ports once a minute.
type minutes struct {
	*reporter
	sent []fleet.Report
	now  time.Duration
}

// during lets the agent look at ports that look returns for each minute, from 0 on.
func during(t *testing.T, count int, look func(r *reporter, minute int) []nic.Details) minutes {
	t.Helper()
	m, looks := minutes{}, 0
	m.reporter = newReporter("gpu-01", time.Minute, []string{"ens9"}, func(_ context.Context, _ string, r fleet.Report) error {
		m.sent = append(m.sent, r)
		return nil
	}, slog.New(slog.DiscardHandler))
	m.reporter.now = func() time.Duration { return m.now }
	m.reporter.ports = func(context.Context) ([]nic.Details, error) { return look(m.reporter, looks), nil }
	m.reporter.wait = func(context.Context, time.Duration) error {
		m.now += time.Minute
		if looks++; looks == count {
			return errors.New("the end")
		}
		return nil
	}
	m.run(t.Context())
	return m
}

// portsIn are two ports, the second in a state, and a third one that no network uses.
func portsIn(state string, free int) []nic.Details {
	numbers := []int{0, 1, 2}
	gids := nic.GIDs{Size: 256, Width: 2, Used: 256 - free}
	return []nic.Details{
		{Rail: &numbers[0], Netdev: "ens1", Device: "mlx5_0", State: "ACTIVE", GIDs: gids},
		{Rail: &numbers[1], Netdev: "ens2", Device: "mlx5_1", State: state, GIDs: nic.GIDs{Width: 2}}, // of unknown size
		{Rail: &numbers[2], Netdev: "ens9", Device: "mlx5_9", State: "DOWN"},
	}
}

func TestANICThatCannotBeHeardIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := &reporter{
		ports: func(context.Context) ([]nic.Details, error) {
			return []nic.Details{{Rail: new(0), Netdev: "none0", State: "ACTIVE"}, {Rail: new(1), Netdev: "none1", State: "DOWN"}}, nil
		},
		wait: func(context.Context, time.Duration) error { return context.Canceled },
		log:  slog.New(slog.NewTextHandler(&log, nil)),
	}
	before := map[string]bool{"none0": false, "none1": true}
	r.heard, r.silent = map[string]fleet.Connection{"none0": {Switch: "leaf"}}, before
	if r.listen(t.Context()); told(&log) != "WARN" || !strings.Contains(log.String(), "none0") {
		t.Errorf("the log is\n%s", log.String())
	}
	if !reflect.DeepEqual(r.silent, before) || len(r.heard) > 0 {
		t.Errorf("the switches that are lost: %v, want %v; heard %v", r.silent, before, r.heard)
	}
}

// The agent goes on then.
func TestNICsThatCannotBeListedAreAnError(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	r := newReporter("gpu-01", 10*time.Minute, nil, nil, slog.New(slog.DiscardHandler))
	if r.flaps.Calm != 30*time.Minute {
		t.Errorf("with a look in ten minutes, a port is calm after %s", r.flaps.Calm)
	}
	if ports, err := r.ports(ctx); !errors.Is(err, context.Canceled) || ports != nil {
		t.Errorf("it finds %v, %v", ports, err)
	}
}

// TestAPortThatFlapsIsReportedOnce has a port that changes its state at each look for an hour.
func TestAPortThatFlapsIsReportedOnce(t *testing.T) {
	t.Parallel()
	m := during(t, 75, func(_ *reporter, minute int) []nic.Details {
		if minute >= 3 && minute < 63 && minute%2 == 1 {
			return portsIn("DOWN", 100)
		}
		return portsIn("ACTIVE", 100)
	})
	var conditions []string
	for _, r := range m.sent {
		conditions = append(conditions, r.Condition().Status+" "+r.Condition().Message)
	}
	conditions = slices.Compact(conditions)
	if want := []string{"True each rail can serve new pods", "False rail 1 (ens2): Down", "True each rail can serve new pods"}; !slices.Equal(conditions, want) || len(m.sent) > 5+10 { // ten are the same again
		t.Errorf("%d reports, %q", len(m.sent), conditions)
	}
}

func TestAFullTableAndASilentSwitchAreFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state  string
		free   int
		silent bool
		want   string
	}{
		"an address fits":               {"ACTIVE", 2, false, "each rail can serve new pods"},
		"no address fits":               {"ACTIVE", 1, false, "rail 0 (ens1): GIDTableFull"},
		"and no switch is heard":        {"ACTIVE", 1, true, "rail 0 (ens1): GIDTableFull, NeighbourLost"},
		"a port that is down is silent": {"DOWN", 2, false, "rail 1 (ens2): Down"},
		"a pod has the device":          {nic.Away, 2, false, "each rail can serve new pods"},
	} {
		m := during(t, 5, func(r *reporter, _ int) []nic.Details {
			r.silent = map[string]bool{"ens1": tt.silent}
			return portsIn(tt.state, tt.free)
		})
		if got := m.sent[len(m.sent)-1].Condition().Message; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		ready := m.rails()[0].Ready
		if want := !strings.Contains(tt.want, "rail 0"); ready != want {
			t.Errorf("%s: the metrics say %t", name, ready)
		}
	}
}

// TestTheAgentLooksAsOftenAsItIsTold has the pauses between looks at the NICs, and says whether it
// listens to switches.
func TestTheAgentLooksAsOftenAsItIsTold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags agentFlags
		want  []time.Duration
	}{
		"never":            {agentFlags{lldp: true}, nil},
		"each minute":      {agentFlags{rails: time.Minute}, []time.Duration{5 * time.Second, time.Minute, time.Minute}},
		"each second":      {agentFlags{rails: time.Second}, []time.Duration{time.Second, time.Second, time.Second}},
		"and for switches": {agentFlags{rails: time.Second, lldp: true}, []time.Duration{time.Second, time.Second, time.Second}},
	} {
		var mu sync.Mutex
		var pauses []time.Duration
		listens := false
		r := newReporter("gpu-01", tt.flags.rails, nil, nil, slog.New(slog.DiscardHandler))
		r.ports = func(context.Context) ([]nic.Details, error) { return nil, errors.New("no sysfs") }
		r.wait = func(_ context.Context, d time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			if d == listenEvery {
				listens = true
				return errors.New("the end")
			}
			if pauses = append(pauses, d); len(pauses) == 3 {
				return errors.New("the end")
			}
			return nil
		}
		tt.flags.report(t.Context(), r)() // it waits for the end
		if !slices.Equal(pauses, tt.want) || listens != (tt.flags.lldp && tt.want != nil) {
			t.Errorf("%s: the pauses are %v, want %v; it listens: %t", name, pauses, tt.want, listens)
		}
	}
}
