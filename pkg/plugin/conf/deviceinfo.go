// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import "github.com/roce-cni/roce-cni/pkg/base/strict"

// deviceInfoFile reads runtimeConfig.CNIDeviceInfoFile, which Multus gives to
// plugins with that capability.
func deviceInfoFile(v strict.Value) string {
	s, ok := v.Text("")
	if ok && s != "" && !cleanAbs(s) {
		v.Bad("", "%q is not a clean absolute path", s)
	}
	return s
}
