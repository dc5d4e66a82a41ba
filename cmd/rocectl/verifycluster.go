// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/doctor"
	"github.com/roce-cni/roce-cni/pkg/verify"
)

// daemonSet is a DaemonSet of servers of verify, and how kubectl finds it.
type daemonSet struct {
	name, namespace, kubeconfig, context string
}

// fleetPod is what a test of all nodes needs of a pod.
type fleetPod struct {
	Metadata struct {
		Name              string `json:"name"`
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase string     `json:"phase"`
		PodIP netip.Addr `json:"podIP"`
	} `json:"status"`
}

// kubectl returns a command of kubectl. It reads the same files as the user's kubectl, and
// signs in as that does.
func (d daemonSet) kubectl(cmd *cobra.Command, args ...string) *exec.Cmd {
	var flags []string
	for _, f := range []struct{ flag, value string }{{"--namespace=", d.namespace}, {"--kubeconfig=", d.kubeconfig}, {"--context=", d.context}} {
		if f.value != "" {
			flags = append(flags, f.flag+f.value)
		}
	}
	return exec.CommandContext(cmd.Context(), "kubectl", append(flags, args...)...) //nolint:gosec // the caller is its user
}

// read asks the API server for objects. Behind "--" kubectl reads no flags.
func (d daemonSet) read(cmd *cobra.Command, into any, args ...string) error {
	call := d.kubectl(cmd, slices.Insert(slices.Clone(args), 1, "--output=json")...)
	var said bytes.Buffer
	call.Stderr = &said
	b, err := call.Output()
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "kubectl "+args[0], d.name, "apply conf-examples/deploy/samples/verify.yaml, and name the DaemonSet's namespace with --namespace",
			"%w: %s", err, doctor.Printable(strings.TrimSpace(said.String())))
	}
	return nil
}

// pods returns the pods of the DaemonSet, and on how many nodes it wants one.
func (d daemonSet) pods(cmd *cobra.Command) (pods []fleetPod, want int, err error) {
	var set struct {
		Spec struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
		} `json:"spec"`
		Status struct {
			Desired int `json:"desiredNumberScheduled"`
		} `json:"status"`
	}
	if err := d.read(cmd, &set, "get", "daemonset", "--", d.name); err != nil {
		return nil, 0, err
	}
	var labels []string
	for k, v := range set.Spec.Selector.MatchLabels {
		labels = append(labels, k+"="+v)
	}
	if len(labels) == 0 {
		return nil, 0, cnierr.New(cnierr.BadConfig, "read DaemonSet", d.name, "use matchLabels, as conf-examples/deploy/samples/verify.yaml does", "its selector has no matchLabels")
	}
	slices.Sort(labels)
	var list struct {
		Items []fleetPod `json:"items"`
	}
	err = d.read(cmd, &list, "get", "pods", "--selector="+strings.Join(labels, ","))
	slices.SortFunc(list.Items, func(a, b fleetPod) int {
		return strings.Compare(a.Spec.NodeName+"/"+a.Metadata.Name, b.Spec.NodeName+"/"+b.Metadata.Name)
	})
	return list.Items, set.Status.Desired, err
}

// fleet lets the pods of a DaemonSet test each other, and writes what they find. The names
// of nodes are those of the API server. The first pod leads the test.
func (f *verifyFlags) fleet(cmd *cobra.Command) error {
	pods, want, err := f.set.pods(cmd)
	if err != nil {
		return err
	}
	var running []fleetPod
	var absent []doctor.Answer
	for _, p := range pods {
		switch {
		case p.Metadata.DeletionTimestamp != "": // another one takes its place
		case p.Status.Phase == "Running" && p.Status.PodIP.IsValid() && p.Spec.NodeName != "":
			running = append(running, p)
		default:
			absent = append(absent, untested(p.Metadata.Name, fmt.Sprintf("the pod is %s, on node %q", p.Status.Phase, p.Spec.NodeName), "kubectl describe pod "+p.Metadata.Name))
		}
	}
	if n := want - len(running) - len(absent); n > 0 {
		absent = append(absent, untested("DaemonSet "+f.set.name, fmt.Sprintf("%d of %d nodes have no pod of it", n, want), "kubectl describe daemonset "+f.set.name))
	}
	if len(running) == 0 {
		return cnierr.New(cnierr.NotAvailable, "test", f.set.name, "kubectl describe daemonset "+f.set.name, "none of its %d pods runs", len(pods))
	}
	report, err := f.lead(cmd, running)
	if err != nil {
		return err
	}
	report.Answers = append(absent, report.Answers...)
	return f.write(cmd.OutOrStdout(), report)
}

func untested(of, found, missing string) doctor.Answer {
	return doctor.Answer{Check: verify.Reach, Finding: doctor.Finding{Verdict: doctor.CannotTell, Of: of, Found: found, Missing: missing}}
}

// lead runs the test in the first pod. The others are listed on its standard input: an
// address of the API server would be too long with a thousand of them.
func (f *verifyFlags) lead(cmd *cobra.Command, pods []fleetPod) (verify.Report, error) {
	var list strings.Builder
	for _, p := range pods[1:] {
		fmt.Fprintf(&list, "%s=%s\n", p.Spec.NodeName, netip.AddrPortFrom(p.Status.PodIP, verifyPort))
	}
	args := []string{"exec", "-i", pods[0].Metadata.Name, "--", "/rocectl", "verify", "--all", "--json", "--name=" + pods[0].Spec.NodeName}
	if f.tests.Cross {
		args = append(args, "--cross")
	}
	if f.tests.RDMA {
		args = append(args, "--rdma")
	}
	call := f.set.kubectl(cmd, append(args, "-")...)
	var out bytes.Buffer
	call.Stdin, call.Stdout = strings.NewReader(list.String()), &out
	said, err := call.StderrPipe()
	if err == nil {
		err = call.Start()
	}
	if err == nil {
		forward(cmd.ErrOrStderr(), said)
		err = call.Wait()
	}
	var ended *exec.ExitError
	var report verify.Report
	if unread := json.Unmarshal(out.Bytes(), &report); unread != nil || err != nil && !errors.As(err, &ended) {
		return report, cnierr.New(cnierr.IO, "test from pod", pods[0].Metadata.Name, "read what it says above; its image needs /rocectl, and its container "+tokenVariable, "%w", errors.Join(err, unread))
	}
	for i, a := range report.Answers {
		if !a.Verdict.Valid() {
			report.Answers[i].Verdict = doctor.CannotTell
		}
	}
	return report, nil
}

// forward copies lines to a terminal, which obeys what it cannot print.
func forward(w io.Writer, from io.Reader) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		fmt.Fprintln(w, doctor.Printable(lines.Text()))
	}
	_, _ = io.Copy(io.Discard, from) // a line that is too long; the program must not wait for us
}
