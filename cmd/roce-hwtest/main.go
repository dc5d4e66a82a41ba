// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program roce-hwtest tests whether the RoCE NICs of a node and their drivers behave as
// roce-cni assumes, and writes one file for the project: docs/hardware.md.
//
// It is no part of an installation: it fails bonds over, fills tables and reloads drivers.
// main.go is the test of this node, serve.go the second node of a test between two, and
// replay.go runs the steps on a file. Its texts follow the rules of rocectl's.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/doctor"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

func main() { os.Exit(cli.Run(root(cli.Output(os.Stdout), os.Stderr))) }

// flags are the flags of a test of this node.
type flags struct {
	out     string
	names   []string
	mutate  bool
	disrupt []string
	peer    string
	key     verify.Key // for the peer
}

func root(out, errOut io.Writer) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:           "roce-hwtest",
		Short:         "Test whether the NICs of this node behave as roce-cni assumes",
		Version:       buildversion.BuildVersion,
		SilenceErrors: true,
		SilenceUsage:  true,
		Long: `Test whether the RoCE NICs of this node and their drivers behave as roce-cni assumes,
and write one file that you can send to the project: docs/hardware.md. Run it as root
on the node. Without --mutate nothing is changed.

Each step asks the kernel as the plugin does. Its answer is "ok", "problem", or "cannot
tell", with what was found; the file also has what was expected. The exit status is
that of rocectl doctor: 0, 1 for a problem, 2 if a step could not tell.

With --mutate it also makes pods: network namespaces with interfaces on each active
RoCE NIC, as ADD makes them, with addresses of 198.18.0.0/15 and 2001:2::/48, which are
reserved for tests. In exclusive mode RDMA devices move there and back: programs that
use them fail. So use a node without jobs. At the end everything is removed, also after
an interrupt or when it is killed: a second process waits for that. What it could not
remove, the next run does, which also makes the slave of a bond active again that was it
before. The file has the results of all steps
that ended before an error or an interrupt.

Some steps disturb programs that use a NIC: they fill its GID table, fail over a bond, or
reload the driver. They run with --mutate and --disrupt STEP.

With --mutate and --peer it also tests each rail between a pod of this node and one of
another node, which runs "roce-hwtest serve": ARP, UDP with the full MTU, and
ib_write_bw, ib_send_lat and rping if both nodes have them.

The file (tar, gzip) has the answers, the answers of rocectl doctor about NICs, the bytes that
the kernel sent about RDMA devices and interfaces, and the files of sysfs about them.
Addresses, hardware addresses and GUIDs are replaced by others, the same value by the
same one in all files. The name of the node is replaced, too, unless every such file can
have it as a word. Names of interfaces and RDMA devices stay: --name replaces them. Look
at the file before you send it: tar -xzOf FILE | less

` + listSteps(),
		Example: `  roce-hwtest
  roce-hwtest --mutate
  roce-hwtest --name acme0 --out acme.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.Flags().StringVar(&f.out, "out", "roce-hwtest.tar.gz", "the `FILE` to write")
	cmd.Flags().BoolVar(&f.mutate, "mutate", false, "also run the steps that make pods and move devices")
	cmd.Flags().StringArrayVar(&f.names, "name", nil, "a `NAME` to replace too; repeat it for more")
	cmd.Flags().StringSliceVar(&f.disrupt, "disrupt", nil, "with --mutate, also run these `STEPS`, which disturb programs that use the NICs: "+strings.Join(disruptions(), ", "))
	cmd.Flags().StringVar(&f.peer, "peer", "", "with --mutate, the `ADDRESS` of another node that runs roce-hwtest serve, with a port if it is not 9484")
	cmd.AddCommand(serveCommand(), replayCommand(), guardCommand())
	return cmd
}

// listSteps returns a line for each step.
func listSteps() string {
	var b strings.Builder
	list := func(title string, steps []hwtest.Step) {
		b.WriteString(title + ":\n")
		for _, s := range steps {
			fmt.Fprintf(&b, "\n  %-14s %s", s.Name, s.Asks)
		}
	}
	list("The steps are", hwtest.Steps())
	list("\n\nWith --mutate", hwtest.Changing())
	list("\n\nWith --mutate and --disrupt", hwtest.Disrupting())
	list("\n\nWith --peer", hwtest.Between())
	return b.String()
}

// disruptions are the names of the steps that --disrupt takes.
func disruptions() []string {
	var out []string
	for _, s := range hwtest.Disrupting() {
		out = append(out, s.Name)
	}
	return out
}

// contradictory returns an error for flags that lack another one, or the token, and for a name
// that cannot be replaced.
func (f *flags) contradictory() (err error) {
	if f.peer != "" && !f.mutate {
		return cnierr.New(cnierr.BadConfig, "read flag", "--peer", "add --mutate", "it needs pods")
	}
	if f.peer != "" {
		if f.key, err = verify.KeyOf(os.Getenv(verify.TokenVariable)); err != nil {
			return err
		}
	}
	for _, step := range f.disrupt {
		if !f.mutate || !slices.Contains(disruptions(), step) {
			return cnierr.New(cnierr.BadConfig, "read flag", "--disrupt", "add --mutate, and choose of "+strings.Join(disruptions(), ", "), "got %q", step)
		}
	}
	for _, n := range f.names {
		if hwtest.Usual(n) {
			return cnierr.New(cnierr.BadConfig, "read flag", "--name", "name only what tells who you are", "%q is a word that every file of roce-hwtest can have: it could not be read any more", n)
		}
	}
	return nil
}

func (f flags) run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var bench hwtest.Bench
	if err := f.contradictory(); err != nil {
		return err
	}
	file, err := report.Output(f.out, 0o600) // a run of minutes is lost without it
	if err != nil {
		return cnierr.New(cnierr.IO, "make", f.out, "name a file that can be written: --out", "%w", err)
	}
	defer file.Discard()
	if left := hwtest.Left(); !f.mutate && len(left) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "# a run that was killed has left %s: --mutate removes it\n", strings.Join(left, ", "))
	}
	if f.mutate {
		b, unlock, err := openBench(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		if err := b.Clean(ctx); err != nil { // a run that was killed may have left devices in pods
			return err
		}
		b.Disrupt = f.disrupt
		bench = b
	}
	out := cmd.OutOrStdout()
	var rec recording.Recording
	rec.Sys = recording.Capture(os.DirFS("/sys"))
	node := hwtest.Live(&rec)
	r := hwtest.Results{Version: buildversion.BuildVersion, Date: time.Now().UTC().Format(time.DateOnly), Stack: node.Stack, Changed: f.mutate, Peer: f.peer != ""}
	node = node.Keeping(&r)
	tell := func(a hwtest.Answer) {
		r.Answers = append(r.Answers, a)
		_ = report.WriteText(out, a.Answer) // the file has it, too
	}
	if r.Ports, err = node.Look(ctx, tell); err == nil && f.mutate {
		err = f.changing(ctx, bench, node, tell)
	}
	if err != nil && len(r.Answers) == 0 {
		return err
	}
	if err != nil { // the steps before it have their results
		r.Stopped = err.Error()
	} else {
		r.Doctor = slices.Collect(doctor.Run(ctx, doctor.Live(nodefile.Store{}, nil, ""), aboutNICs()))
	}
	r.Rows = hwtest.Rows(r.Answers)
	return f.finish(out, file, r, rec, err)
}

// finish keeps the file, if it can be written, and returns the error of the run or of the file.
func (f flags) finish(out io.Writer, file report.File, r hwtest.Results, rec recording.Recording, err error) error {
	lost := f.write(out, file, r, rec)
	if lost == nil {
		lost = file.Keep()
	}
	if lost != nil {
		return errors.Join(err, lost)
	}
	return cmp.Or(err, f.end(out, r))
}

// changing runs the steps that change the node.
func (f flags) changing(ctx context.Context, b hwtest.Bench, node hwtest.Node, tell func(hwtest.Answer)) error {
	b.Node = node
	b.Tell = func(a hwtest.Answer) {
		if ctx.Err() == nil { // otherwise the answer is only that it was interrupted
			tell(a)
		}
	}
	if err := b.Run(ctx); err != nil {
		return err
	}
	if f.peer != "" && ctx.Err() == nil {
		address := f.peer
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = net.JoinHostPort(strings.Trim(address, "[]"), "9484")
		}
		if err := b.With(ctx, address, f.key); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return cnierr.New(cnierr.TryAgain, "test", "NICs", "run it again", "it was interrupted; everything that it made is removed")
	}
	return nil
}

// openBench returns the bench of this node, which one process at a time may use. Until
// unlock is called, a second process removes everything if this one is killed.
func openBench(ctx context.Context) (b hwtest.Bench, unlock func(), err error) {
	b, lock, err := bench()
	if err != nil {
		return b, nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second) // a guard may be at work
	defer cancel()
	if err := flock.Wait(waiting, lock, unix.LOCK_EX); err != nil {
		_ = lock.Close()
		return b, nil, cnierr.New(cnierr.IO, "lock", lock.Name(), "run it once at a time", "another roce-hwtest runs: %w", err)
	}
	end, err := startGuard()
	if err != nil {
		_ = lock.Close()
		return b, nil, err
	}
	return b, func() { end(); _ = lock.Close() }, nil
}

// bench returns the bench of this node, and the file to lock before it is used.
func bench() (b hwtest.Bench, lock *os.File, err error) {
	boot, err := plugin.BootID()
	if err != nil {
		return b, nil, err
	}
	id, host, err := plugin.NodeID()
	if err != nil {
		return b, nil, err
	}
	log := slog.New(slog.DiscardHandler)
	records := record.Store{Dir: hwtest.StateDir, BootID: boot}
	b = hwtest.Bench{StateDir: hwtest.StateDir, Netns: "/run/netns", Attach: attach.Node{
		ID:      id,
		Machine: attach.Linux{Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Rand: rand.Reader, Records: records, Log: log},
		Fillers: "/run/netns/roce-hwtest-gids", RemoveFillers: true,
		Addresses: lease.Allocator{
			Book: plugin.Book(hwtest.StateDir, boot, log, nil), Program: conf.PluginType, Agent: nodefile.Store{Dir: hwtest.StateDir, BootID: boot},
			Now: plugin.BootTime, NodeName: host, ReadFile: trusted.Read, Log: log,
		},
		Now:     plugin.BootTime,
		Records: records,
		Log:     log,
	}}
	const file = hwtest.StateDir + ".lock"
	lock, err = os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return b, nil, cnierr.New(cnierr.IO, "open", file, "run it as root", "%w", err)
	}
	return b, lock, nil
}

// aboutNICs returns the checks of doctor that concern NICs.
func aboutNICs() []doctor.Check {
	checks, err := doctor.Named(
		"rdma-modules", "rdma-driver", "rdma-devices", "rdma-netns-mode", "rdma-ports", "rdma-mtu", "rdma-bond", "eswitch-mode",
		"vf-trust", "nic-firmware", "nic-qos", "pcie-link", "gid-table", "rdma-files",
	)
	if err != nil {
		panic(err) // a check has another name now: a test sees it
	}
	return checks
}

// write writes the file. It replaces what identifies the node, and says what it does not
// replace.
func (f flags) write(out, file io.Writer, r hwtest.Results, rec recording.Recording) error {
	with := redact.NewAlike()
	for _, n := range f.nodes() {
		if hwtest.Usual(n) {
			fmt.Fprintf(out, "# the name %q of a node is not replaced: every file of roce-hwtest can have this word\n", n)
			continue
		}
		with.Name("node", n)
	}
	for _, n := range f.names {
		with.Name("name", n)
	}
	err := hwtest.Write(file, r, rec, with)
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return cnierr.New(cnierr.IO, "write", f.out, "name a file on another disk: --out", "%w", err)
	}
	return err
}

// nodes returns the names of this node and of the peer.
func (f flags) nodes() []string {
	out := []string{os.Getenv("NODE_NAME")}
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		out = append(out, host, short)
	}
	peer := f.peer
	if host, _, err := net.SplitHostPort(peer); err == nil {
		peer = host
	}
	if _, err := netip.ParseAddr(strings.Trim(peer, "[]")); err != nil { // addresses are replaced in any case
		out = append(out, peer)
	}
	out = slices.DeleteFunc(out, func(n string) bool { return n == "" })
	slices.Sort(out)
	return slices.Compact(out)
}

// end prints the summary, and returns the exit status as an error.
func (f flags) end(out io.Writer, r hwtest.Results) error {
	answers := make([]report.Answer, 0, len(r.Answers))
	for _, a := range r.Answers {
		answers = append(answers, a.Answer)
	}
	fmt.Fprintf(out, "# %s\n# %s has the results; look at it before you send it: tar -xzOf %s | less\n", report.Summary(answers), f.out, f.out)
	if status := report.Status(answers); status != 0 {
		return cli.StatusError(status)
	}
	return nil
}
