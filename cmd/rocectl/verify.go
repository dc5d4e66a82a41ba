// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

type verifyFlags struct {
	env    envFlags // which pod
	name   string
	all    bool
	tests  verify.Tests
	format cli.Format
	each   bool // print each answer
	page   string
	set    daemonSet // all of its pods are tested
}

const verifyPort = 9483

func verifyCommand(node *nodeFlags) *cobra.Command {
	f := verifyFlags{env: envFlags{node: node}}
	cmd := &cobra.Command{
		Use:   "verify [NAMESPACE/POD] [PEER...]",
		Short: "Test the rails of a pod, and those between pods",
		Args:  cobra.ArbitraryArgs,
		RunE:  f.command,
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "test each pair of pods, not only those with this pod")
	cmd.Flags().BoolVar(&f.tests.Cross, "cross", false, "test each rail with all rails to which it has a route")
	cmd.Flags().BoolVar(&f.tests.RDMA, "rdma", false, "test by RDMA, too: rping and ib_write_bw")
	f.format.Register(cmd)
	cmd.Flags().BoolVar(&f.each, "verbose", false, "print each answer first, also those that are ok")
	cmd.Flags().StringVar(&f.page, "html", "", "write the report to this `FILE` as one HTML page, too")
	cmd.Flags().StringVar(&f.set.name, "daemonset", "", "test all pods of the DaemonSet of this `NAME` with each other, by kubectl")
	cmd.Flags().StringVarP(&f.set.namespace, "namespace", "n", "", "the `NAMESPACE` of the DaemonSet (default: that of kubectl)")
	f.set.Register(cmd, "")
	for _, flag := range []string{"netns", "pid", "container", "all", "name"} {
		cmd.MarkFlagsMutuallyExclusive("daemonset", flag)
	}
	cmd.AddCommand(serveCommand(node))
	return cmd
}

func serveCommand(node *nodeFlags) *cobra.Command {
	f := verifyFlags{env: envFlags{node: node}}
	var listen string
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Let other pods test the rails of this pod",
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.env.at = f.env.at.of(args)
			key, err := verify.KeyOf(os.Getenv(verify.TokenVariable))
			if err != nil {
				return err
			}
			return f.pod(cmd, func(p verify.Pod) error {
				var l net.Listener
				if err := p.Enter(func() (err error) { l, err = net.Listen("tcp", listen); return err }); err != nil {
					return cnierr.New(cnierr.IO, "listen", listen, "stop the other program, or choose another --listen", "%w", err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s listens on %s\n", p.Name, l.Addr())
				s := verify.Server{Pod: p, Key: key}
				return s.Serve(cmd.Context(), l)
			})
		},
	}
	takesPod(cmd)
	f.register(cmd)
	cmd.Flags().StringVar(&listen, "listen", fmt.Sprintf(":%d", verifyPort), "the `ADDRESS` to listen on")
	return cmd
}

func (f *verifyFlags) register(cmd *cobra.Command) {
	f.env.register(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "the `NAME` of this pod in answers (default $NODE_NAME, or the host name)")
}

// pod calls do with the pod that the flags name.
func (f *verifyFlags) pod(cmd *cobra.Command, do func(verify.Pod) error) error {
	if err := f.env.given(cmd); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this pod"
	}
	p := verify.Pod{Name: cmp.Or(f.name, os.Getenv("NODE_NAME"), host), Enter: func(fn func() error) error { return fn() }}
	path, err := f.env.path()
	if err != nil {
		return err
	}
	p.RDMA = func(context.Context) ([]gids.Rail, error) {
		ns, err := f.env.read(cmd)
		return ns.Rails, err
	}
	if path == "" {
		p.Usable = f.env.usable
		return do(p)
	}
	k, err := kernel.Open(path, os.DirFS("/sys"))
	if errors.Is(err, kernel.ErrHostNetns) {
		return do(p)
	}
	if err != nil {
		return err
	}
	defer k.Close()
	p.Enter = k.Enter
	return do(p)
}

// self is the pod of the caller among the members.
type self struct {
	verify.Pod
	ctx context.Context //nolint:containedctx // it is that of one command
	key verify.Key
}

// Local implements verify.Member.
func (s self) Local() ([]report.Answer, error) { return s.Pod.Local(s.ctx) }

// Test implements verify.Member.
func (s self) Test(address string, tests verify.Tests) ([]report.Answer, error) {
	return s.Pod.Test(s.ctx, address, s.key, tests)
}

// listed replaces "-" by the words of the standard input. caller is the rest of that, if a
// line "." has ended the list: when it ends, the caller has gone.
func listed(peers []string, in io.Reader) (out []string, caller io.Reader, err error) {
	i := slices.Index(peers, "-")
	if i < 0 {
		return peers, nil, nil
	}
	lines := bufio.NewReader(in)
	var words []string
	for caller == nil && err == nil {
		var line string
		if line, err = lines.ReadString('\n'); strings.TrimSpace(line) == "." {
			caller = lines
			continue
		}
		words = append(words, strings.Fields(line)...)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, cnierr.New(cnierr.IO, "read", "standard input", "give it the PEERs, one a line", "%w", err)
	}
	return slices.Replace(slices.Clone(peers), i, i+1, words...), caller, nil
}

// peerOf reads NODE=ADDRESS:PORT, of which only the address must be there.
func peerOf(given string) (name, address string) {
	name, address, found := strings.Cut(given, "=")
	if !found {
		name, address = "", given
	}
	if !strings.Contains(address, ":") || strings.Count(address, ":") > 1 && !strings.HasPrefix(address, "[") {
		address = net.JoinHostPort(address, fmt.Sprint(verifyPort))
	}
	return name, address
}

// command tests the DaemonSet that the flags name, or this pod and others.
func (f *verifyFlags) command(cmd *cobra.Command, peers []string) error {
	if f.set.name != "" {
		return f.tell(cmd, func() (verify.Report, error) { return f.fleet(cmd) })
	}
	if len(peers) > 0 && strings.Contains(peers[0], "/") { // no address has one
		f.env.at, peers = f.env.at.of(peers), peers[1:]
	}
	return f.pod(cmd, func(p verify.Pod) error {
		return f.tell(cmd, func() (verify.Report, error) { return f.run(cmd, p, peers) })
	})
}

// run tests this pod, and others. If the caller goes, it ends the test, and waits for that,
// because the test uses the namespace of the pod.
func (f *verifyFlags) run(cmd *cobra.Command, p verify.Pod, peers []string) (verify.Report, error) {
	peers, caller, err := listed(peers, cmd.InOrStdin())
	switch {
	case err != nil:
		return verify.Report{}, err
	case caller == nil:
		return f.test(cmd, p, peers)
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	cmd.SetContext(ctx)
	var gone atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, caller) // however it ends
		gone.Store(true)
		stop()
	}()
	r, err := f.test(cmd, p, peers)
	if gone.Load() {
		return verify.Report{}, cnierr.New(cnierr.NotAvailable, "test for", "the caller", "start the test again", "its end of the standard input is closed")
	}
	return r, err
}

func (f *verifyFlags) test(cmd *cobra.Command, p verify.Pod, peers []string) (verify.Report, error) {
	none, key := verify.Report{}, verify.Key{}
	if len(peers) > 0 {
		var err error
		if key, err = verify.KeyOf(os.Getenv(verify.TokenVariable)); err != nil {
			return none, err
		}
	}
	_, err := p.Rails(cmd.Context())
	if err != nil && (!f.all || cnierr.CodeOf(err) != cnierr.BadConfig) {
		return none, err
	}
	var seats []verify.Seat
	if err == nil {
		seats = append(seats, verify.Seat{Member: self{p, cmd.Context(), key}, Name: p.Name})
	}
	guests := make([]verify.Guest, len(peers))
	for i, given := range peers {
		guests[i].Name, guests[i].Address = peerOf(given)
	}
	invited := p.Invite(cmd.Context(), guests, key)
	defer verify.Leave(invited)
	for i, s := range invited {
		if s.Absent != nil && (!f.all || guests[i].Name == "") { // a test of all nodes also tells which cannot be tested
			return none, cnierr.New(cnierr.IO, "connect to", s.Address, "run rocectl verify serve in that pod, with the same $"+verify.TokenVariable, "%w", s.Absent)
		}
	}
	seats = append(seats, invited...)
	r := verify.All(cmd.Context(), seats, f.tests, !f.all, progress(cmd.ErrOrStderr()))
	r.Version = buildversion.BuildVersion
	return r, nil
}

// progress returns what tells of rounds: how many, how long, and how long the others will take if
// they are like the former ones. Of rounds that take no time it tells one in a second.
func progress(w io.Writer) func(round, of int) {
	var began, told time.Time
	return func(round, of int) {
		now := time.Now()
		took := now.Sub(began)
		switch {
		case round == 0:
			fmt.Fprintln(w, "each pod tests itself")
			return
		case round == 1:
			began, took = now, 0
		case round < of && now.Sub(told) < time.Second:
			return
		}
		told = now
		line := fmt.Sprintf("round %d of %d", round, of)
		if round > 1 {
			line += fmt.Sprintf(" after %s, about %s left", took.Round(time.Second), (took / time.Duration(round-1) * time.Duration(of-round+1)).Round(time.Second))
		}
		fmt.Fprintln(w, line)
	}
}

// tell writes the report of a test. The file of the page is opened before the test, which may
// take an hour. Whatever happens to the page, the report is printed.
func (f *verifyFlags) tell(cmd *cobra.Command, test func() (verify.Report, error)) error {
	write := func(verify.Report) error { return nil }
	if f.page != "" {
		file, err := report.Output(f.page, 0o644)
		if err != nil {
			return f.pageFailed(err)
		}
		defer file.Discard()
		write = func(r verify.Report) error { return f.pageFailed(errors.Join(r.WritePage(file), file.Keep())) }
	}
	r, err := test()
	if err != nil {
		return err
	}
	return errors.Join(write(r), f.write(cmd.OutOrStdout(), r))
}

func (f *verifyFlags) pageFailed(err error) error {
	if err == nil {
		return nil
	}
	return cnierr.New(cnierr.IO, "write page", f.page, "name a file that can be written", "%w", err)
}

func (f *verifyFlags) write(w io.Writer, r verify.Report) error {
	if err := f.format.Print(w, r, func(w io.Writer) error { return cli.Written(f.report(w, r)) }); err != nil {
		return err
	}
	if status := report.Status(r.Answers); status != 0 {
		return cli.StatusError(status)
	}
	return nil
}

func (f *verifyFlags) report(w io.Writer, r verify.Report) (err error) {
	for i := 0; f.each && err == nil && i < len(r.Answers); i++ {
		err = report.WriteText(w, r.Answers[i])
	}
	if err != nil {
		return err
	}
	return r.WriteText(w)
}
