// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

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
