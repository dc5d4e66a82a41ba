// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/policy"
)

// installPolicy installs the policy of the node, if the user names one. It refuses a
// policy with a fault, and then the old policy stays. The plugins always find the old
// or the new policy.
func (f installFlags) installPolicy(out io.Writer) error {
	if f.policy == "" {
		return nil
	}
	b, err := os.ReadFile(f.policy)
	if err != nil {
		return installError(f.policy, err)
	}
	if _, err := policy.Parse(f.policy, b); err != nil {
		return err
	}
	err = trusted.MakeFolder(filepath.Dir(f.policyTo), 0o755)
	if err == nil {
		err = trusted.Replace(f.policyTo, b, 0o644)
	}
	if err != nil {
		return installError(f.policyTo, err)
	}
	fmt.Fprintf(out, "%s: installed\n", f.policyTo)
	return nil
}
