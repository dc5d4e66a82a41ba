// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// daemonSet is a DaemonSet of servers of verify, and how kubectl finds it.
type daemonSet struct {
	name string
	kubectlIn
}

// kubectlIn is the user's kubectl in a namespace; "" is that of its context.
type kubectlIn struct {
	namespace string
	cluster.Kubectl
}

// stateOf is "" if the pod can take part, and otherwise what it is. The first pod leads the test, so
// it matters that its node is there: that of a pod that runs may have gone, and a container may
// end again and again.
func stateOf(p core.Pod) string {
	ready := func(c core.PodCondition) bool { return c.Type == core.PodReady && c.Status == core.ConditionTrue }
	switch {
	case p.Status.Phase != core.PodRunning || p.Status.PodIP == "" || p.Spec.NodeName == "":
		return cmp.Or(string(p.Status.Phase), "new")
	case !slices.ContainsFunc(p.Status.Conditions, ready):
		return "not ready"
	}
	return ""
}

// kubectl returns a command of kubectl. It reads the same files as the user's kubectl, and
// signs in as that does.
func (d kubectlIn) kubectl(cmd *cobra.Command, args ...string) *exec.Cmd {
	var flags []string
	for _, f := range []struct{ flag, value string }{{"--namespace=", d.namespace}, {"--kubeconfig=", d.Kubeconfig}, {"--context=", d.Context}} {
		if f.value != "" {
			flags = append(flags, f.flag+f.value)
		}
	}
	return exec.CommandContext(cmd.Context(), "kubectl", append(flags, args...)...) //nolint:gosec // the caller is its user
}

// in is the flag of kubectl in commands for people.
func (d kubectlIn) in() string {
	if d.namespace == "" {
		return "kubectl"
	}
	return shell.Command("kubectl -n %s", d.namespace)
}

// lacks returns which rights of the Role in conf-examples/deploy/samples/verify.yaml the user does
// not have. It is for what has failed: kubectl has the same status for each error.
func (d daemonSet) lacks(cmd *cobra.Command) []string {
	var out []string
	for _, right := range []struct{ verb, resource, sub string }{
		{"get", "daemonsets.apps/" + d.name, ""}, {"get", "pods", ""}, {"list", "pods", ""}, {"create", "pods", "exec"},
	} {
		said, _ := d.kubectl(cmd, "auth", "can-i", "--subresource="+right.sub, "--", right.verb, right.resource).Output() // a no is an error, too
		if answer, _, _ := strings.Cut(strings.TrimSpace(string(said)), " "); answer == "no" {
			out = append(out, right.verb+" "+strings.Trim(right.resource+"/"+right.sub, "/"))
		}
	}
	return out
}

// failed is the error of a call of kubectl. If the user lacks rights, it names them all, and the
// command that gives them.
func (d daemonSet) failed(cmd *cobra.Command, call, of, hint string, err error) error {
	lacks := d.lacks(cmd)
	if len(lacks) == 0 {
		return cnierr.New(cnierr.IO, call, of, hint, "%w", err)
	}
	who, _ := d.kubectl(cmd, "auth", "whoami", "--output=jsonpath={.status.userInfo.username}").Output()
	where := cmp.Or(d.namespace, "of your context")
	return cnierr.New(cnierr.IO, call, of,
		"an administrator applies conf-examples/deploy/samples/verify.yaml, which has a Role with these rights, and binds it: "+
			d.in()+shell.Command(" create rolebinding rails-verify --role=rails-verify --user=%s", cmp.Or(string(who), "NAME")),
		"%w; in the namespace %s you may not: %s", err, where, strings.Join(lacks, ", "))
}

// get asks the API server for objects. Behind "--" kubectl reads no flags.
func (d kubectlIn) get(cmd *cobra.Command, into any, args ...string) error {
	call := d.kubectl(cmd, slices.Insert(slices.Clone(args), 1, "--output=json")...)
	var said bytes.Buffer
	call.Stderr = &said
	b, err := call.Output()
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, report.Printable(strings.TrimSpace(said.String())))
	}
	return nil
}

// read is get for verify.
func (d daemonSet) read(cmd *cobra.Command, into any, args ...string) error {
	if err := d.get(cmd, into, args...); err != nil {
		return d.failed(cmd, "kubectl "+args[0], d.name, "apply conf-examples/deploy/samples/verify.yaml, and name the DaemonSet's namespace with --namespace", err)
	}
	return nil
}

// pods returns the pods of the DaemonSet, and on how many nodes it wants one.
func (d daemonSet) pods(cmd *cobra.Command) (pods []core.Pod, want int, err error) {
	var set struct {
		Spec struct {
			Selector metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
		Status struct {
			Desired int `json:"desiredNumberScheduled"`
		} `json:"status"`
	}
	if err := d.read(cmd, &set, "get", "daemonset", "--", d.name); err != nil {
		return nil, 0, err
	}
	selector := labels.Set(set.Spec.Selector.MatchLabels).String()
	if selector == "" {
		return nil, 0, cnierr.New(cnierr.BadConfig, "read DaemonSet", d.name, "use matchLabels, as conf-examples/deploy/samples/verify.yaml does", "its selector has no matchLabels")
	}
	var list core.PodList
	err = d.read(cmd, &list, "get", "pods", "--selector="+selector)
	slices.SortFunc(list.Items, func(a, b core.Pod) int {
		return strings.Compare(a.Spec.NodeName+"/"+a.Name, b.Spec.NodeName+"/"+b.Name)
	})
	return list.Items, set.Status.Desired, err
}

// fleet lets the pods of a DaemonSet test each other, and returns what they find. The names
// of nodes are those of the API server. The first pod leads the test.
func (f *verifyFlags) fleet(cmd *cobra.Command) (found verify.Report, err error) {
	pods, want, err := f.set.pods(cmd)
	if err != nil {
		return found, err
	}
	var running, absent []core.Pod
	for _, p := range pods {
		switch {
		case p.DeletionTimestamp != nil: // another one takes its place
		case stateOf(p) == "":
			running = append(running, p)
		default:
			absent = append(absent, p)
		}
	}
	if len(running) == 0 {
		return found, cnierr.New(cnierr.NotAvailable, "test", f.set.name, f.set.describe(), "none of its %d pods is ready", len(pods))
	}
	cluster, _ := f.set.kubectl(cmd, "config", "view", "--minify", "--output=jsonpath={.clusters[0].name}").Output() // the page has no name then
	found, err = f.lead(cmd, running)
	found.Cluster = string(cluster)
	for _, p := range absent {
		found.Miss(cmp.Or(p.Spec.NodeName, p.Name), untested(p.Name, fmt.Sprintf("the pod is %s, on node %q", stateOf(p), p.Spec.NodeName), f.set.in()+" describe pod "+p.Name))
	}
	if n := want - len(running) - len(absent); n > 0 {
		found.Answers = append(found.Answers, untested("DaemonSet "+f.set.name, fmt.Sprintf("%d of %d nodes have no pod of it", n, want), f.set.describe()))
	}
	return found, err
}

func (d daemonSet) describe() string { return d.in() + shell.Command(" describe daemonset %s", d.name) }

func untested(of, found, missing string) report.Answer {
	return report.Answer{Check: verify.Reach, Finding: report.Finding{Verdict: report.CannotTell, Of: of, Found: found, Missing: missing}}
}

// lead runs the test in the first pod. The others are listed on its standard input: an
// address of the API server would be too long with a thousand of them. The input stays open
// until the test ends, so the leader ends with this process or with kubectl, however these end.
func (f *verifyFlags) lead(cmd *cobra.Command, pods []core.Pod) (verify.Report, error) {
	var list strings.Builder
	for _, p := range pods[1:] {
		fmt.Fprintf(&list, "%s=%s\n", p.Spec.NodeName, net.JoinHostPort(p.Status.PodIP, fmt.Sprint(verifyPort)))
	}
	args := []string{"exec", "-i", pods[0].Name, "--", "/rocectl", "verify", "--all", "--output=json", "--name=" + pods[0].Spec.NodeName}
	if f.tests.Cross {
		args = append(args, "--cross")
	}
	if f.tests.RDMA {
		args = append(args, "--rdma")
	}
	call := f.set.kubectl(cmd, append(args, "-")...)
	list.WriteString(".\n")
	var text bytes.Buffer
	out, errOut := &said{to: &text}, &said{to: cmd.ErrOrStderr()}
	call.Stdout, call.Stderr = out, errOut
	in, err := call.StdinPipe()
	if err == nil {
		err = call.Start()
	}
	if err == nil {
		go func() { _, _ = io.WriteString(in, list.String()) }() // if it fails, kubectl has ended, and says why
		err = errors.Join(call.Wait(), out.end(), errOut.end())
	}
	var found verify.Report
	if unread := json.Unmarshal(text.Bytes(), &found); unread != nil || err != nil && !errors.As(err, new(*exec.ExitError)) {
		return found, f.set.failed(cmd, "test from pod", pods[0].Name, "read what it says above; its image needs /rocectl, and its container "+verify.TokenVariable, errors.Join(err, unread))
	}
	return found, nil
}
