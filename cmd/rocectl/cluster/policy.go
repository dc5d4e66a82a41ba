// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/roce-cni/roce-cni/pkg/policy"
	"github.com/roce-cni/roce-cni/pkg/trusted"
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
	temp := f.policyTo + ".new"
	if err := trusted.Create(temp, b, 0o644, 0o755); err != nil {
		return installError(f.policyTo, err)
	}
	if err := os.Rename(temp, f.policyTo); err != nil {
		return installError(f.policyTo, errors.Join(err, os.Remove(temp)))
	}
	fmt.Fprintf(out, "%s: installed\n", f.policyTo)
	return nil
}
