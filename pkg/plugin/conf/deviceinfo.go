// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import "github.com/roce-cni/roce-cni/pkg/base/strict"

// deviceInfoFile reads runtimeConfig.CNIDeviceInfoFile, which Multus gives to
// plugins with that capability.
func deviceInfoFile(v strict.Value) string {
	if v.Raw() == `""` {
		return ""
	}
	s, _ := v.Absolute()
	return s
}
