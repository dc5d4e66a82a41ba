// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	core "k8s.io/api/core/v1"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// agents chooses the pods of the agents.
const agents = "app.kubernetes.io/name=roce-cni,app.kubernetes.io/component=agent"

// inCluster is the flags of a command about the pods of a node that can also run in the agent of
// another node, which sees the state folder there.
type inCluster struct {
	all             bool
	node, namespace string // namespace is that of the agents
	cluster.Kubectl
}

// orInCluster adds these flags to a command. As a plugin of kubectl the command runs there.
func orInCluster(cmd *cobra.Command, plugin bool) *cobra.Command {
	var c inCluster
	cmd.Flags().BoolVar(&c.all, "cluster", plugin, "ask the agent of the pod's node, by kubectl exec")
	cmd.Flags().StringVar(&c.node, "node", "", "with --cluster, ask the agent of this `NODE`, where the pod may be gone")
	cmd.Flags().StringVar(&c.namespace, "agent-namespace", "roce-cni", "with --cluster, the `NAMESPACE` of the agents")
	c.Register(cmd, "with --cluster, ")
	before, here := cmd.PreRunE, cmd.RunE
	cmd.PreRunE = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if c.all {
			return c.run(cmd, append(args, "")[0])
		}
		if err := cmp.Or(notOfNode(cmd, "node", "agent-namespace", "kubeconfig", "context"), before(cmd, args)); err != nil {
			return err
		}
		return here(cmd, args)
	}
	return cmd
}

// run runs the command in the agent, with the flags that the user gave. Only a terminal ends a
// command there that goes on.
func (c inCluster) run(cmd *cobra.Command, pod string) (err error) {
	if c.node == "" {
		if c.node, pod, err = c.nodeOf(cmd, pod); err != nil {
			return err
		}
	}
	agent, err := c.agent(cmd)
	if err != nil {
		return err
	}
	args := []string{"exec", "--container=agent", agent.Name}
	watch := cmd.Flag("watch") != nil && cmd.Flag("watch").Changed
	if watch {
		args = append(args, "-it")
	}
	args = append(args, "--", "/rocectl", cmd.Name())
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"cluster", "node", "agent-namespace", "kubeconfig", "context"}, f.Name) {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	if pod != "" {
		args = append(args, "--", pod)
	}
	call := kubectlIn{c.namespace, c.Kubectl}.kubectl(cmd, args...)
	out, errOut := &said{to: cmd.OutOrStdout(), endless: watch}, &said{to: cmd.ErrOrStderr(), endless: watch}
	call.Stdin, call.Stdout, call.Stderr = cmd.InOrStdin(), out, errOut
	err = call.Run()
	if err := errors.Join(out.end(), errOut.end()); err != nil {
		return cnierr.New(cnierr.IO, "ask agent", agent.Name, "no command of ours says as much, so another program may answer there: look at node "+c.node, "%w", err)
	}
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return cli.StatusError(ended.ExitCode()) // kubectl has said why
	}
	return err
}

// said writes what a container says, in lines that a terminal does not obey, and up to a limit: who
// has taken over the node of the container chooses what that is. What is endless has a limit for
// each line.
type said struct {
	to      io.Writer
	endless bool
	line    []byte // that has not ended yet
	n       int
}

const mostSaid = 64 << 20

func (s *said) Write(b []byte) (int, error) {
	if s.n += len(b); s.n > mostSaid {
		return 0, io.ErrShortWrite
	}
	begun := len(s.line)
	s.line = append(s.line, b...)
	ended := begun + bytes.LastIndexByte(b, '\n') + 1
	if ended == begun {
		return len(b), nil
	}
	var lines strings.Builder
	for line := range strings.Lines(string(s.line[:ended])) {
		text := strings.TrimRight(line, "\r\n") // kubectl exec -t ends a line with both
		lines.WriteString(report.Printable(text) + line[len(text):])
	}
	s.line = s.line[ended:]
	if s.endless {
		s.n = len(s.line)
	}
	_, err := io.WriteString(s.to, lines.String())
	return len(b), err
}

// end ends the last line.
func (s *said) end() error {
	if s.n > mostSaid {
		return fmt.Errorf("it says more than %d MiB", mostSaid>>20)
	}
	if len(s.line) == 0 {
		return nil
	}
	_, err := s.Write([]byte("\n"))
	return err
}

// nodeOf returns the node of a pod, and the name of the pod with its namespace.
func (c inCluster) nodeOf(cmd *cobra.Command, name string) (node, pod string, err error) {
	const op = "find node of pod"
	if name == "" {
		return "", "", cnierr.New(cnierr.BadConfig, op, "", "name a pod, or a node with --node; on the node itself use rocectl, or --cluster=false", "no pod is named")
	}
	in := kubectlIn{cmd.Flag("namespace").Value.String(), c.Kubectl}
	if namespace, rest, both := strings.Cut(name, "/"); both {
		in.namespace, name = namespace, rest
	}
	var p core.Pod
	if err := in.get(cmd, &p, "get", "pod", "--", name); err != nil {
		return "", "", cnierr.New(cnierr.IO, op, name, "name its namespace; if the pod is gone, its node still knows it: name that with --node", "%w", err)
	}
	if p.Spec.NodeName == "" {
		return "", "", cnierr.New(cnierr.NotAvailable, op, name, in.in()+" describe pod says why it is not scheduled", "it has no node yet")
	}
	return p.Spec.NodeName, p.Namespace + "/" + p.Name, nil
}

// agent returns the pod of the agent of the node. It need not be ready: its pool may be full.
func (c inCluster) agent(cmd *cobra.Command) (core.Pod, error) {
	const op = "find agent of node"
	of := kubectlIn{c.namespace, c.Kubectl}
	var list core.PodList
	if err := of.get(cmd, &list, "get", "pods", "--selector="+agents, "--field-selector=spec.nodeName="+c.node); err != nil {
		return core.Pod{}, cnierr.New(cnierr.IO, op, c.node, "name the namespace of the agents with --agent-namespace; you need the rights list pods and create pods/exec there", "%w", err)
	}
	i := slices.IndexFunc(list.Items, func(p core.Pod) bool { return p.Status.Phase == core.PodRunning })
	if i < 0 {
		err := of.get(cmd, new(struct{}), "get", "node", "--", c.node)
		return core.Pod{}, cnierr.New(cnierr.NotAvailable, op, c.node, "kubectl get pods -A -o wide -l "+agents+" shows the agents; name another namespace than "+c.namespace+" with --agent-namespace", "%w",
			cmp.Or(err, errors.New("no agent of roce-cni runs there")))
	}
	return list.Items[i], nil
}
