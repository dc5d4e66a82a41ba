// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestOnlyAStateFolderThatIsNamedMustExist(t *testing.T) {
	t.Parallel()
	there := t.TempDir()
	missing := filepath.Join(there, "none")
	for name, c := range map[string]struct {
		ofNode string
		args   []string
		ok     bool
	}{
		"the default is there":      {there, nil, true},
		"the default is missing":    {missing, nil, true},
		"the named one is there":    {missing, []string{"--state-dir", there}, true},
		"the named one is not":      {there, []string{"--state-dir", missing}, false},
		"the default is named":      {missing, []string{"--state-dir", missing}, false},
		"the named one has no name": {there, []string{"--state-dir", ""}, false},
	} {
		node := &nodeFlags{}
		cmd := &cobra.Command{
			SilenceErrors: true, SilenceUsage: true,
			PreRunE: node.mustExist,
			Run:     func(*cobra.Command, []string) {},
		}
		cmd.Flags().StringVar(&node.stateDir, "state-dir", c.ofNode, "")
		cmd.SetArgs(append([]string{}, c.args...)) // nil would be the test's own
		err := cmd.Execute()
		if c.ok && err != nil || !c.ok && cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
