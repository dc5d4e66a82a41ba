// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/doctor"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

type bundleFlags struct {
	node  *nodeFlags
	out   string
	logs  []string
	names []string
}

func bundleCommand(node *nodeFlags) *cobra.Command {
	f := bundleFlags{node: node}
	cmd := &cobra.Command{
		Use:     "bundle",
		Short:   "Pack what a bug report needs into one file, without names and addresses",
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.out, "out", "roce-bundle.tar.gz", "the `FILE` to write")
	cmd.Flags().StringArrayVar(&f.logs, "log", nil, "a log `FILE` of the plugins (log.file); repeat it for more")
	cmd.Flags().StringArrayVar(&f.names, "name", nil, "a `NAME` to replace too; repeat it for more")
	return cmd
}

type entry struct{ name, text string }

func (f bundleFlags) run(cmd *cobra.Command) error {
	in, err := f.node.folder()
	if err != nil {
		return err
	}
	rows, unreadable := attachments(in.records)
	shown := recordsText(rows, unreadable)
	entries := []entry{{"versions.txt", versions(cmd)}, {"show.json", shown}}
	for _, c := range []string{"doctor --all", "rails -o wide", "rails -o json", "check", "show", "gids", "pool list"} {
		name := strings.NewReplacer(" --all", "", " -o wide", "", " -o ", ".", " ", "-").Replace(c)
		entries = append(entries, entry{name + ".txt", f.output(cmd, strings.Fields(c))})
	}
	for i, log := range f.logs {
		entries = append(entries, entry{fmt.Sprintf("log-%d.txt", i+1), tail(log)})
	}
	said, err := report.RunProgram(cmd.Context(), "dmesg")
	kernel := aboutRDMA(said)
	if err != nil {
		kernel = "dmesg: " + err.Error() + "\n"
	}
	entries = append(entries, entry{"dmesg.txt", kernel})
	r := redact.New()
	f.learn(cmd, userNames{r: r, words: bundleWords(entries), out: cmd.OutOrStdout(), seen: map[string]bool{}}, rows, in)
	if err := write(f.out, entries, r); err != nil {
		return cnierr.New(cnierr.IO, "write bundle", f.out, "name a file that can be written: --out", "%w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s has %d files; look at it before you send it: tar -xzOf %s | less\n", f.out, len(entries), f.out)
	return nil
}

// bundleWords are texts of a bundle that do not come from the user: those of doctor, the
// keys of JSON, and the kinds of operations.
func bundleWords(entries []entry) string {
	var b strings.Builder
	for _, c := range doctor.Checks() {
		fmt.Fprintln(&b, c.Name, c.Asks, c.Why)
	}
	fmt.Fprintln(&b, report.OK, report.Problem, report.CannotTell)
	word := regexp.MustCompile(`"[a-zA-Z]+": |"op": "[a-z0-9]+"`)
	for _, e := range entries {
		fmt.Fprintln(&b, word.FindAllString(e.text, -1))
	}
	return b.String()
}

// userNames tells a redactor the names of the user, but not those that are also words of the
// bundle. It says which stay.
type userNames struct {
	r     *redact.Redactor
	words string
	out   io.Writer
	seen  map[string]bool
}

func (n userNames) add(kind, name string) {
	if name == "" || n.seen[name] {
		return
	}
	n.seen[name] = true
	if redact.Usual(name, n.words) {
		fmt.Fprintf(n.out, "# the name %q of a %s is not replaced: it is also a word of these files; --name replaces it\n", name, kind)
		return
	}
	n.r.Name(kind, name)
}

// asked adds a name that is replaced whatever it is.
func (n userNames) asked(kind, name string) {
	n.seen[name] = true
	n.r.Name(kind, name)
}

// learn tells the redactor the names of the user.
func (f bundleFlags) learn(cmd *cobra.Command, known userNames, rows []record.Record, in folder) {
	for _, n := range f.names {
		known.asked("name", n)
	}
	for _, row := range rows {
		known.add("pod", row.Pod.Name)
		known.add("namespace", row.Pod.Namespace)
		known.add("network", row.Network)
		known.add("pool", row.Pool)
		known.asked("container", string(row.ContainerID))
		known.asked("netns", filepath.Base(row.Netns))
	}
	leases, _ := in.book.List(cmd.Context(), "") // what it cannot read, no other file has
	for _, l := range leases {
		known.add("pool", l.Pool)
		known.add("pod", l.Owner.PodName)
		known.add("namespace", l.Owner.PodNamespace)
		known.add("network", l.Owner.Network)
		known.asked("container", l.Owner.ContainerID)
	}
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		known.add("node", host)
		known.add("node", short)
	}
	known.add("node", os.Getenv("NODE_NAME"))
	known.asked("folder", strings.Trim(in.records.Dir, "/"))
}

// output returns what a command of rocectl prints, errors included.
func (f bundleFlags) output(cmd *cobra.Command, args []string) string {
	var out bytes.Buffer
	c := root(&out, &out)
	if f.node.stateDir != "" {
		args = append(args, "--state-dir", f.node.stateDir)
	}
	c.SetArgs(args)
	called, err := c.ExecuteContextC(cmd.Context())
	if err != nil {
		cli.PrintError(&out, called, err)
	}
	return out.String()
}

// recordsText returns the records without the configurations of other plugins, which
// may contain secrets.
func recordsText(rows []record.Record, unreadable error) string {
	for i := range rows {
		rows[i].Config = nil
	}
	b, err := json.MarshalIndent(rows, "", "  ")
	if err = errors.Join(err, unreadable); err != nil {
		return string(b) + "\n" + err.Error() + "\n"
	}
	return string(b) + "\n"
}

func versions(cmd *cobra.Command) string {
	out := "rocectl " + buildversion.BuildVersion + "\n"
	for _, c := range [][]string{
		{"/opt/cni/bin/roce", "--version"}, {"/opt/cni/bin/roce-ipam", "--version"}, {"uname", "-rvm"}, {"ofed_info", "-s"}, {"ibv_devinfo", "-l"},
	} {
		said, err := report.RunProgram(cmd.Context(), c[0], c[1:]...)
		out += strings.Join(c, " ") + ": " + strings.TrimSpace(said)
		if err != nil {
			out += " (" + err.Error() + ")"
		}
		out += "\n"
	}
	return out
}

// aboutRDMA returns some lines of the kernel. Those of audit have the commands of users, and
// gid= for their groups.
func aboutRDMA(said string) string {
	wanted := regexp.MustCompile(`(?i)mlx|bnxt|irdma|infiniband|rdma|rxe|macvlan|\bgids?\b([^=]|$)`)
	var out strings.Builder
	for line := range strings.Lines(said) {
		if wanted.MatchString(line) && !strings.Contains(line, "audit") {
			out.WriteString(line)
		}
	}
	return out.String()
}

const maxLog = 1 << 20

// tail returns the last lines of a file, or why it cannot be read.
func tail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error() + "\n"
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	start := max(0, size-maxLog)
	b, unread := io.ReadAll(io.NewSectionReader(file, start, maxLog))
	if err = cmp.Or(err, unread); err != nil {
		return err.Error() + "\n"
	}
	if start > 0 {
		_, b, _ = bytes.Cut(b, []byte("\n")) // the first line is not whole
	}
	return string(b)
}

func write(path string, entries []entry, r *redact.Redactor) error {
	file, err := report.Output(path, 0o600)
	if err != nil {
		return err
	}
	defer file.Discard()
	z := gzip.NewWriter(file)
	t := tar.NewWriter(z)
	for _, e := range entries {
		text := r.Text(e.text)
		if err := t.WriteHeader(&tar.Header{Name: "roce-bundle/" + e.name, Mode: 0o600, Size: int64(len(text))}); err != nil {
			return err
		}
		if _, err := t.Write([]byte(text)); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close(), file.Keep())
}
