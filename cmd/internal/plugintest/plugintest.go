// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package plugintest runs the scripts that test the programs roce and roce-ipam in the
// way a runtime calls them, for all cases that need no network namespace. It also calls verbs in
// the process of a test.
//
// It is for tests only. Cases that need a namespace are in integration/cni. Everything
// is in this file; the scripts are in the folder testdata of each program.
package plugintest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// Run runs testdata/*.txtar for a plugin that testscript.Main knows by its name.
//
// A script starts with the environment of an ADD of interface net1 of container c1.
// The namespace of c1 does not exist. In its .json files $WORK is the script's
// folder. The state folder of the node is "state" in there, unless the script has a
// node.json. Besides the commands of package testscript there is
//
//	refused CODE TEXT...
//
// which calls the plugin and checks that it refuses as the protocol wants. The exit
// status is 1. Standard output has one JSON document and nothing else. Its code is
// CODE. Its message is one line that starts with the plugin's name and the code in
// brackets. Its details say what to do. Each TEXT is in the message or in the
// details. Standard error is empty. The plugin makes, changes and removes no file in
// the script's folder, and makes no default folder of records.
func Run(t *testing.T, plugin string, update bool) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		UpdateScripts:       update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"refused": func(ts *testscript.TestScript, neg bool, args []string) { refused(ts, plugin, neg, args) },
		},
	})
}

// Settings returns where the settings of the node are in a script.
func Settings() string { return os.Getenv(settingsVar) }

const settingsVar = "ROCE_TEST_SETTINGS"

func setup(env *testscript.Env) error {
	file := filepath.Join(env.WorkDir, "node.json")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) { // the script has none
		if err := os.WriteFile(file, []byte(`{"version": 1, "stateDir": "$WORK/state"}`), 0o600); err != nil {
			return err
		}
	}
	env.Vars = append(
		env.Vars, "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=net1",
		"CNI_NETNS="+filepath.Join(env.WorkDir, "netns"), "CNI_PATH="+env.WorkDir, settingsVar+"="+file,
		"GORACE=atexit_sleep_ms=0", // otherwise each process of a test with -race ends with a sleep of a second
	)
	files, err := filepath.Glob(filepath.Join(env.WorkDir, "*.json"))
	for _, path := range files {
		b, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr, os.WriteFile(path, []byte(strings.ReplaceAll(string(b), "$WORK", env.WorkDir)), 0o600))
	}
	return err
}

func refused(ts *testscript.TestScript, plugin string, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: refused CODE TEXT...")
	}
	code, texts := args[0], args[1:]
	before := look(ts)
	err := ts.Exec(plugin)
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 1 {
		ts.Fatalf("want exit status 1, got %v", err)
	}
	if s := ts.ReadFile("stderr"); s != "" {
		ts.Fatalf("standard error has %q", s)
	}
	ts.Check(complain(ts.ReadFile("stdout"), plugin, code, texts))
	if after := look(ts); !slices.Equal(before, after) {
		ts.Fatalf("files before: %q, after: %q", before, after)
	}
}

// complain reports the faults in the answer of a plugin that had to refuse.
func complain(answer, plugin, code string, texts []string) error {
	var e struct {
		CNIVersion string `json:"cniVersion"`
		Code       json.Number
		Msg        string
		Details    string
	}
	d := json.NewDecoder(strings.NewReader(answer))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return fmt.Errorf("standard output is no JSON document: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("standard output has more than one JSON document: %s", answer)
	}
	if e.Code.String() != code {
		return fmt.Errorf("want code %s, got %s", code, e.Code)
	}
	if want := fmt.Sprintf("%s[%s] ", plugin, code); !strings.HasPrefix(e.Msg, want) || strings.ContainsAny(e.Msg, "\n\x00") {
		return fmt.Errorf("want one line that starts with %q, got %q", want, e.Msg)
	}
	if e.Details == "" {
		return errors.New("no hint")
	}
	for _, text := range texts {
		if !strings.Contains(e.Msg, text) && !strings.Contains(e.Details, text) {
			return fmt.Errorf("neither message nor hint says %q", text)
		}
	}
	return nil
}

// look returns the state that a refused call must not change: the files of the
// script, and whether there is a default folder of records.
func look(ts *testscript.TestScript) []string {
	var out []string
	err := filepath.WalkDir(ts.MkAbs("."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == "calls" { // refused calls are noted, too
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out = append(out, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime()))
		return nil
	})
	ts.Check(err)
	_, err = os.Stat(settings.DefaultStateDir)
	return append(out, fmt.Sprint(settings.DefaultStateDir, err == nil))
}

// Call calls a verb in this process. It returns what the verb prints: the addresses of a result,
// or "ok" for nothing. The verb prints to stdout, if that is not nil.
func Call(t *testing.T, stdout *os.File, verb func() error) (string, error) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	printed := &os.Stdout //nolint:forbidigo // where a verb prints
	before := *printed
	*printed = cmp.Or(stdout, out)
	failed := verb()
	*printed = before
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if len(b) == 0 {
		return "ok", failed
	}
	var r types100.Result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	var all []string
	for _, ip := range r.IPs {
		all = append(all, ip.Address.String())
	}
	return strings.Join(all, " "), failed
}
