// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// TestHealDoesWhatTheSettingsWant, and with a fault in them nothing. It does something else as soon as
// it has read that they have changed.
func TestHealDoesWhatTheSettingsWant(t *testing.T) {
	before := settingsFile
	settingsFile = filepath.Join(t.TempDir(), "node.json")
	defer func() { settingsFile = before }()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(settingsFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]duties{
		`{"version": 1, "heal": "all"}`:                                 {heal: settings.HealAll},
		`{"version": 1, "heal": "routes"}`:                              {heal: settings.HealRoutes},
		`{"version": 1, "heal": "off"}`:                                 {heal: settings.HealOff},
		`{"version": 1, "rdma": {"counts": "pods"}, "heal": "off"}`:     {heal: settings.HealOff, count: true},
		`{"version": 1, "rdma": {"foreignGID": "tell"}, "heal": "off"}`: {heal: settings.HealOff, tellForeigns: true},
		`{"version": 1, "heal": "all", "x": 1}`:                         {heal: settings.HealOff},
	} {
		write(text)
		if got, err := readDuties(); got != want || (err != nil) != (text == `{"version": 1, "heal": "all", "x": 1}`) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write(`{"version": 1, "heal": "all"}`)
		now, err := readDuties()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ended := time.Duration(0)
		go func() {
			now.changed(t.Context())
			ended = time.Since(began)
		}()
		time.Sleep(10*settingsEvery + time.Second)
		synctest.Wait()
		if ended != 0 {
			t.Fatalf("the same settings have changed after %s", ended)
		}
		write(`{"version": 1, "heal": "off"}`)
		time.Sleep(settingsEvery)
		synctest.Wait()
		if ended != 11*settingsEvery {
			t.Errorf("other settings are seen after %s", ended)
		}
	})
}

// TestHealRestoresWhatItsLevelAllows, also what was lost before it began, and it ends when it is told to.
// A pod has lost a link and a rule.
func TestHealRestoresWhatItsLevelAllows(t *testing.T) {
	n := kerneltest.NewNode(t)
	dir := t.TempDir()
	before := settingsFile
	settingsFile = filepath.Join(dir, "node.json")
	defer func() { settingsFile = before }()
	pod := n.PodAt(filepath.Join(dir, "pod"))
	pod.IP("link add net1 type veth peer name peer")
	there, err := netns.At(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	rec := record.Record{
		Network: "rails", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "job"}, Netns: pod.Path, NetnsID: there.ID, Committed: true,
		Plan: plan.Plan{Interfaces: []plan.Interface{{Name: "net1"}}, Ops: plan.InPod(plan.Up{Link: "net1"}, plan.Rule{From: netip.MustParsePrefix("172.16.0.5/32"), Table: 100, Priority: 32000})},
	}
	state := filepath.Join(dir, "state")
	for _, c := range []struct {
		level, until, want string
		up, rule           bool
	}{
		{"off", "healing", "healing heal=off\n", false, false},
		{"routes", "healed", "healing heal=routes\nhealed pod=ml/job container=c1 interface=net1 network=rails made=[rule]\n", false, true},
		{"all", "healed", "healing heal=all\nhealed pod=ml/job container=c1 interface=net1 network=rails made=[up]\nhealed pod=ml/job container=c1 interface=net1 network=rails made=[up]\n", true, true},
	} {
		if err := os.WriteFile(settingsFile, fmt.Appendf(nil, `{"version": 1, "stateDir": %q, "heal": %q}`, state, c.level), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		reader, writer := io.Pipe()
		var log strings.Builder
		ended := make(chan bool)
		go func() {
			for lines := bufio.NewScanner(reader); lines.Scan(); {
				_, said, _ := strings.Cut(lines.Text(), " msg=")
				said, _, _ = strings.Cut(said, " took=")
				if ctx.Err() == nil { // else it has been told to end
					log.WriteString(said + "\n")
				}
				switch {
				case !strings.HasPrefix(said, c.until):
				case c.level == "all" && strings.Count(log.String(), c.until) == 1: // and it is lost again
					pod.IP("link set net1 down")
				default:
					stop()
				}
			}
			close(ended)
		}()
		cmd := healCommand(&nodeFlags{})
		cmd.SetErr(writer)
		cmd.SetArgs([]string{})
		err := cmd.ExecuteContext(ctx)
		_ = writer.Close()
		<-ended
		stop()
		up, rule := strings.Contains(pod.IP("-br link show dev net1"), ",UP"), strings.Contains(pod.IP("rule show priority 32000"), "172.16.0.5")
		if diff := cmp.Diff(c.want, log.String()); diff != "" || err != nil || up != c.up || rule != c.rule {
			t.Errorf("%s: the link is up: %t, the rule is there: %t, %v (-want +got)\n%s", c.level, up, rule, err, diff)
		}
		if c.level == "off" {
			if _, err := os.Stat(state); err == nil {
				t.Error("it makes a folder")
			}
			save(t, state, rec)
		}
	}
}
