// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// folder is a folder of a test with files.
type folder struct {
	t    *testing.T
	root string
}

func (f folder) write(name, text string, mode os.FileMode) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		f.t.Fatal(err)
	}
}

// files returns the files below a folder with their modes and their beginnings.
func (f folder) files(name string) string {
	f.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(f.root, name), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		out = append(out, fmt.Sprintf("%s %o %s", d.Name(), info.Mode().Perm(), b[:min(len(b), 4)]))
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.Join(out, ", ")
}

// run runs rocectl install or uninstall in the folder. It returns what is printed and the code
// of the error.
func (f folder) run(command, args string) string {
	f.t.Helper()
	cmd := installCommand()
	if command == "uninstall" {
		cmd = uninstallCommand(func() (string, error) { return filepath.Join(f.root, "state"), nil })
	}
	said, err := runs(f.t, cmd, strings.Fields(strings.ReplaceAll(args, "@", f.root+"/"))...)
	if err != nil {
		said += fmt.Sprint(cnierr.CodeOf(err), " ", err)
	}
	return regexp.MustCompile(`\.new-[0-9a-f]{16}`).ReplaceAllString(strings.ReplaceAll(said, f.root+"/", "@"), ".new-X")
}

// TestThePluginsAreInstalledWholeAndRemoved: what is there already stays as it is, and what is
// different, cannot be run, or was left half is replaced.
func TestThePluginsAreInstalledWholeAndRemoved(t *testing.T) {
	t.Parallel()
	f := folder{t, t.TempDir()}
	f.write("from/roce", "one program", 0o600)
	f.write("from/roce-ipam", "another", 0o600)
	f.write("from/folder/x", "", 0o600)
	f.write("bin/macvlan", "m", 0o755)
	const both = "@bin/roce: installed\n@bin/roce-ipam: installed"
	for _, step := range []struct {
		before                func()
		command, args, prints string
		files                 string // in bin; "" if it is all the same
	}{
		{nil, "install", "--from @from --to @bin", both, "macvlan 755 m, roce 755 one , roce-ipam 755 anot"},
		{nil, "install", "--from @from --to @bin", "@bin/roce: there already\n@bin/roce-ipam: there already", ""},
		{func() { f.write("bin/roce", "two program", 0o755); f.write("bin/roce-ipam", "another", 0o644) }, "install", "--from @from --to @bin", both, ""},
		{
			func() { f.write("bin/roce", "one", 0o755); f.write("bin/roce.new-0123456789abcdef", "o", 0o755) }, "install", "--from @from --to @bin",
			"@bin/roce: installed\n@bin/roce-ipam: there already", "",
		},
		{nil, "install", "--tools --from @from --to @bin", "@bin/roce: there already\n@bin/roce-ipam: there already\n@bin/rocectl: installed", "macvlan 755 m, roce 755 one , roce-ipam 755 anot, rocectl 755 \x7fELF"},
		{nil, "uninstall", "--to @bin", "@bin/roce: removed\n@bin/roce-ipam: removed", "macvlan 755 m, rocectl 755 \x7fELF"},
		{nil, "uninstall", "--to @bin", "", ""},
		{nil, "uninstall", "--to @bin --tools", "@bin/rocectl: removed", "macvlan 755 m"},
		{nil, "uninstall", "--to @from/roce", `5 remove "@from/roce/roce": remove @from/roce/roce: not a directory`, ""},
		{nil, "install", "--from @none --to @bin", `5 install "@none": open @none: no such file or directory`, ""},
		{nil, "install", "--from @from/folder/x --to @bin", `5 install "@from/folder/x": open @from/folder/x: not a directory`, ""},
		{nil, "install", "--from @bin/.. --to @bin", `7 look for plugins in "@bin/..": there is none`, ""},
		{func() { f.write("bad/roce/x", "", 0o600) }, "install", "--from @from --to @bad", `5 install "@bad/roce": rename @bad/roce.new-X @bad/roce: file exists`, ""},
		{nil, "install", "--from @from --to @from/roce", `5 install "@from/roce": mkdir @from/roce: not a directory`, ""},
	} {
		was := f.files("bin")
		if step.before != nil {
			step.before()
		}
		if step.files == "" {
			step.files = was
		}
		if diff := cmp.Diff(step.prints, f.run(step.command, step.args)); diff != "" {
			t.Errorf("%s %s (-want +got)\n%s", step.command, step.args, diff)
		}
		if diff := cmp.Diff(step.files, f.files("bin")); diff != "" {
			t.Errorf("after %s %s (-want +got)\n%s", step.command, step.args, diff)
		}
	}
}

// TestTheCommandsOfANodeNeedItsFolder: uninstall refuses one that the user names and that is missing.
func TestTheCommandsOfANodeNeedItsFolder(t *testing.T) {
	t.Parallel()
	missing := errors.New("no such folder")
	state := func() (string, error) { return "", errors.New("no state folder") }
	var got []string
	for _, cmd := range append(Commands(), NodeCommands(state, func(*cobra.Command, []string) error { return missing })...) {
		got = append(got, cmd.Name())
		if cmd.Name() != "uninstall" {
			continue
		}
		if said, err := runs(t, cmd, "--to", t.TempDir(), "--force"); !errors.Is(err, missing) || said != "" {
			t.Errorf("it prints %q, and returns %v", said, err)
		}
	}
	if want := []string{"gc", "install", "agent", "uninstall"}; !cmp.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

// TestThePluginsStayWhilePodsNeedThem: a pod has a record, or an address.
func TestThePluginsStayWhilePodsNeedThem(t *testing.T) {
	t.Parallel()
	f := folder{t, t.TempDir()}
	f.write("bin/roce", "one program", 0o755)
	boot, err := plugin.BootID()
	if err != nil {
		t.Fatal(err)
	}
	book := plugin.Book(filepath.Join(f.root, "state"), boot, nil, nil)
	owner := ipam.Owner{ContainerID: "c1", IfName: "net1", Network: "p"}
	ask := ipam.Ask{Pool: "p", Owner: owner, Subnets: []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.77.0.0/24")}}, Quarantine: 1 << 40}
	if _, err = book.Acquire(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	const stays = `11 uninstall plugins of "@state": %d attachments and %d leased addresses of pods are left`
	if got := f.run("uninstall", "--to @bin"); got != fmt.Sprintf(stays, 0, 1) {
		t.Errorf("with an address: %s", got)
	}
	if err := book.Release(t.Context(), owner.Key(), owner.Netns); err != nil {
		t.Fatal(err)
	}
	f.write("state/attachments/c1/net1.json", "{}", 0o600)
	if got := f.run("uninstall", "--to @bin"); got != fmt.Sprintf(stays, 1, 0) {
		t.Errorf("with a record, and an address in quarantine: %s", got)
	}
	if got := f.run("uninstall", "--to @bin --force"); got != "@bin/roce: removed" {
		t.Errorf("with force: %s", got)
	}
}

// TestTheSettingsAreInstalledIfTheyHaveNoFault: alone, or with the plugins.
func TestTheSettingsAreInstalledIfTheyHaveNoFault(t *testing.T) {
	t.Parallel()
	f := folder{t, t.TempDir()}
	const good, bad = `{"version": 1}`, `{"version": 1, "stateDirs": "/x"}`
	f.write("good", good, 0o600)
	f.write("bad", bad, 0o600)
	f.write("from/roce", "one program", 0o600)
	const to = " --settings-to @etc/roce/node.json --to @bin"
	for _, step := range []struct{ args, prints, files string }{
		{"--settings @good" + to, "@etc/roce/node.json: installed", "node.json 644 {\"ve"},
		{"--settings @good --tools" + to, `5 install "/plugins": open /plugins: no such file or directory`, "node.json 644 {\"ve"},
		{"--settings @none --from @from" + to, `5 install "@none": open @none: no such file or directory`, "node.json 644 {\"ve"},
		{"--settings @bad --from @from" + to, `7 read settings of the node "@bad": "stateDirs": unknown key`, "node.json 644 {\"ve"},
		{"--settings @good --from @from --to @bin --settings-to @good/x", `5 install "@good/x": `, "node.json 644 {\"ve"},
		{"--settings @good --from @from" + to, "@etc/roce/node.json: installed\n@bin/roce: installed", "node.json 644 {\"ve"},
	} {
		if got := f.run("install", step.args); got != step.prints && !(strings.HasSuffix(step.prints, ": ") && strings.HasPrefix(got, step.prints)) {
			t.Errorf("install %s prints\n%s, want\n%s", step.args, got, step.prints)
		}
		if diff := cmp.Diff(step.files, f.files("etc")); diff != "" {
			t.Errorf("after install %s (-want +got)\n%s", step.args, diff)
		}
	}
	if info, err := os.Stat(filepath.Join(f.root, "etc/roce")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the folder of the settings is %v, %v", info.Mode(), err)
	}
	if got := f.files("bin"); got != "roce 755 one " {
		t.Errorf("the programs are %s", got)
	}
}
