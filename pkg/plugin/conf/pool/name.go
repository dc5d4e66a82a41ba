// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"regexp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// longestName is the longest name that a pool may have.
const longestName = 63

// Name returns the name of the pool. The default is the name of the network. Of
// the network's name, it checks only the length.
func Name(v strict.Value, network string, f *strict.Faults) string {
	if !v.Present() {
		if len(network) > longestName {
			f.Add(cnierr.BadConfig, "name", "use a shorter name, or set ipam.pool",
				"%d characters, at most %d can name a pool", len(network), longestName)
		}
		return network
	}
	s, ok := v.Text("")
	if ok && (!regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`).MatchString(s) || s == "." || s == "..") {
		v.Bad("use 1 to 63 letters, digits and _.-", "%q is not the name of a pool", s)
	}
	return s
}
