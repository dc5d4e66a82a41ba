// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// image is the folder of the plugins in the image.
const image = "/plugins"

// installFlags are the flags of rocectl install and uninstall.
type installFlags struct {
	from, to, settings, settingsTo string
	tools                          bool
}

func (f *installFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.to, "to", "/opt/cni/bin", "the plugin `FOLDER` of the container runtime")
	cmd.Flags().BoolVar(&f.tools, "tools", false, "also rocectl: it goes into the same folder")
}

func installCommand() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the plugins into the folder of the container runtime",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			programs, err := f.programs()
			if err != nil {
				return err
			}
			if err := f.installSettings(cmd.OutOrStdout()); err != nil || len(programs) == 0 {
				return err
			}
			if err := os.MkdirAll(f.to, 0o755); err != nil { //nolint:gosec // as distributions make /opt/cni/bin
				return installError(f.to, err)
			}
			for _, program := range programs {
				did, err := f.install(program)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", f.path(program), did)
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&f.from, "from", image, "the `FOLDER` of the plugins in the image")
	cmd.Flags().StringVar(&f.settings, "settings", "", "a `FILE` with the settings of the node, to install; without "+image+" it is installed alone")
	cmd.Flags().StringVar(&f.settingsTo, "settings-to", conf.SettingsFile, "the `FILE` in which the plugins look for the settings")
	return cmd
}

func uninstallCommand(stateDir func() (string, error)) *cobra.Command {
	var f installFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the installed plugins",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !force {
				dir, err := stateDir()
				if err == nil {
					err = unused(cmd.Context(), dir)
				}
				if err != nil {
					return err
				}
			}
			programs := []string{conf.PluginType, conf.PoolType}
			if f.tools {
				programs = append(programs, self)
			}
			for _, program := range programs {
				path := f.path(program)
				switch err := os.Remove(path); {
				case errors.Is(err, fs.ErrNotExist):
				case err != nil:
					return cnierr.New(cnierr.IO, "remove", path, "check that the folder is writable; in a container it must be mounted", "%w", err)
				default:
					fmt.Fprintf(cmd.OutOrStdout(), "%s: removed\n", path)
				}
			}
			return netns.Remove(plan.FillerNetns)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove them while pods of this node still need them")
	return cmd
}

// unused refuses while pods of the node need the plugins.
func unused(ctx context.Context, stateDir string) error {
	boot, err := plugin.BootID()
	if err != nil {
		return err
	}
	attached, err := record.Store{Dir: stateDir, BootID: boot}.List()
	if err != nil {
		return err
	}
	leases, err := plugin.Book(stateDir, boot, nil, nil).List(ctx, "")
	if err != nil {
		return err
	}
	held := 0
	for _, l := range leases {
		if l.Owner.ContainerID != "" && l.State.String() == "leased" {
			held++
		}
	}
	if len(attached)+held == 0 {
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "uninstall plugins of", stateDir, "drain the node, and check again: rocectl show; --force removes them anyway",
		"%d attachments and %d leased addresses of pods are left", len(attached), held)
}

// programs returns the paths of the programs in the folder from, and, with tools, of
// this program.
func (f installFlags) programs() ([]string, error) {
	entries, err := os.ReadDir(f.from)
	if f.settings != "" && f.from == image && !f.tools && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the settings alone
	}
	if err != nil {
		return nil, installError(f.from, err)
	}
	var out []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			out = append(out, filepath.Join(f.from, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, cnierr.New(cnierr.BadConfig, "look for plugins in", f.from, "name the folder of the plugins with --from", "there is none")
	}
	if f.tools {
		out = append(out, self)
	}
	return out, nil
}

// self is this program.
const self = "/proc/self/exe"

// path returns the path to which a program is installed.
func (f installFlags) path(program string) string {
	if program == self {
		return filepath.Join(f.to, "rocectl")
	}
	return filepath.Join(f.to, filepath.Base(program))
}

// install installs one program, and says what it has done.
func (f installFlags) install(program string) (string, error) {
	path := f.path(program)
	want, err := os.ReadFile(program)
	if err != nil {
		return "", installError(program, err)
	}
	if same(path, want) {
		return "there already", nil
	}
	err = errors.Join(trusted.Sweep(path), trusted.Replace(path, want, 0o755))
	if err == nil {
		err = os.Chmod(path, 0o755) //nolint:gosec // all users may run it, whatever the umask is
	}
	if err != nil {
		return "", installError(path, err)
	}
	return "installed", nil
}

// same says whether a file is a program with that content, and whether all users may
// run it.
func same(path string, content []byte) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o755 || info.Size() != int64(len(content)) {
		return false
	}
	got, err := os.ReadFile(path)
	return err == nil && bytes.Equal(got, content)
}

func installError(subject string, err error) error {
	return cnierr.New(cnierr.IO, "install", subject, "check that the folder is writable and has space; in a container it must be mounted", "%w", err)
}

// installSettings installs the settings of the node, if the user names a file. It refuses
// settings with a fault, and then the old ones stay. The plugins always find the old or
// the new settings.
func (f installFlags) installSettings(out io.Writer) error {
	if f.settings == "" {
		return nil
	}
	b, err := os.ReadFile(f.settings)
	if err != nil {
		return installError(f.settings, err)
	}
	if _, err := settings.Parse(f.settings, b); err != nil {
		return err
	}
	err = trusted.MakeFolder(filepath.Dir(f.settingsTo), 0o755)
	if err == nil {
		err = trusted.Replace(f.settingsTo, b, 0o644)
	}
	if err != nil {
		return installError(f.settingsTo, err)
	}
	fmt.Fprintf(out, "%s: installed\n", f.settingsTo)
	return nil
}
