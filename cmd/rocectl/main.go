// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program rocectl is the operator's tool: it shows what an ADD would do,
// what was done on this node and whether it still stands, restores what was
// lost, shows which addresses are leased, and explains errors.
//
// Each command is in one file of this folder or of cluster, and its help in help. Their texts follow these rules:
//
//   - Texts are lower case and have no full stop, but for the paragraphs of a
//     command's help, which are sentences.
//   - Results go to standard output, errors to standard error; the exit status
//     is 1 when there was an error, or when check or doctor finds something, and
//     2 when a command cannot tell: doctor, and what needs to see the pods'
//     namespaces.
//   - An error is one line, rocectl[code] operation "subject": cause, and a
//     line "hint: " that says what to do. A command line that cannot be read
//     has no code.
//   - Commands for a shell are printed so that they can be pasted; what is
//     printed between them starts with "#".
//   - -o json and -o yaml print one document, in the words of the records.
package main

import (
	"cmp"
	"embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// settingsFile is where the settings of the node are. The linker sets another path in
// programs for tests; nothing sets it in one that runs.
var settingsFile = conf.SettingsFile //nolint:gochecknoglobals // the linker can set a variable of a package, and nothing else

func main() { os.Exit(cli.Run(root(cli.Output(os.Stdout), os.Stderr))) }

// helpTexts has what --help of a command says, in help/COMMAND.txt.
//
//go:embed help
var helpTexts embed.FS

// examples begins the examples in such a text.
const examples = "\n\nExamples:\n"

// addHelp gives commands the texts and examples of their files. One without has no more to say.
func addHelp(above string, commands []*cobra.Command) {
	for _, c := range commands {
		var text string
		text, c.Example, _ = strings.Cut(help(above+c.Name()), examples)
		c.Long = cmp.Or(c.Long, text)
		addHelp(c.Name()+"-", c.Commands())
	}
}

func help(command string) string {
	text, _ := helpTexts.ReadFile("help/" + command + ".txt")
	return strings.TrimSpace(string(text))
}

// version is what rocectl version prints for programs.
type version struct {
	Version string `json:"version"`
}

func versionCommand() *cobra.Command {
	var format cli.Format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return format.Print(cmd.OutOrStdout(), version{buildversion.BuildVersion}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, cmd.Root().DisplayName(), buildversion.BuildVersion)
				return cli.Written(err)
			})
		},
	}
	format.Register(cmd)
	return cmd
}

func root(out, errOut io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "rocectl",
		Short:         "Manage the RoCE attachments of this node's pods",
		Version:       buildversion.BuildVersion,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	plugin := filepath.Base(os.Args[0]) == "kubectl-roce" // kubectl starts it for "kubectl roce"
	if plugin {
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl roce"}
	}
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	node := &nodeFlags{}
	group := func(title string, commands ...*cobra.Command) {
		cmd.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
		for _, c := range commands {
			c.GroupID = title
		}
		addHelp("", commands)
		cmd.AddCommand(commands...)
	}
	group("The node", node.flag(statusCommand(node), doctorCommand(node), railsCommand(node, plugin), gidsCommand(node), topCommand(node), bundleCommand(node))...)
	group("Pods of the node", node.flag(orInCluster(showCommand(node), plugin), checkCommand(node), repairCommand(node), forgetCommand(node), envCommand(node), verifyCommand(node), orInCluster(traceCommand(node), plugin))...)
	group("Pools", append(node.flag(poolCommand(node)), cluster.PoolsCommand())...)
	group("What the pods of roce-cni run", append(node.flag(append(cluster.NodeCommands(node.dir, node.mustExist), healCommand(node))...), cluster.Commands()...)...)
	group("Configuration and errors", append(node.flag(planCommand(node, plugin)), generateCommand(plugin), explainCommand(), versionCommand())...)
	if plugin {
		for _, c := range cmd.Commands() {
			if !slices.Contains([]string{"rails", "show", "trace", "verify", "pools", "gc", "plan", "generate", "explain", "version"}, c.Name()) {
				onlyOnNodes(c)
			}
		}
	}
	return cmd
}

// onlyOnNodes lets a command, and those below it, refuse to work as a plugin of kubectl: it would
// answer about the machine of its user.
func onlyOnNodes(cmd *cobra.Command) {
	cmd.Hidden, cmd.Args = true, cobra.ArbitraryArgs
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		path := cmd.CommandPath()
		return cnierr.New(cnierr.BadConfig, "run command", path,
			"run /opt/cni/bin/rocectl"+strings.TrimPrefix(path, cmd.Root().CommandPath())+" on the node or, without a login, in the pod of conf-examples/deploy/tools there",
			"it is about the node on which it runs")
	}
}
