// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

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
