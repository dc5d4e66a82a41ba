// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nic

// Model returns the name by which people know a NIC, by its PCI vendor and device; "" for one
// that is not listed. The names are those of pci.ids, without the number of the chip.
func Model(vendor, device string) string {
	return map[string]string{
		"15b3:1013": "ConnectX-4", "15b3:1015": "ConnectX-4 Lx", "15b3:1017": "ConnectX-5", "15b3:1019": "ConnectX-5 Ex",
		"15b3:101b": "ConnectX-6", "15b3:101d": "ConnectX-6 Dx", "15b3:101f": "ConnectX-6 Lx", "15b3:1021": "ConnectX-7",
		"15b3:1023": "ConnectX-8", "15b3:a2d2": "BlueField", "15b3:a2d6": "BlueField-2", "15b3:a2dc": "BlueField-3", "15b3:a2df": "BlueField-4",
		"14e4:16d7": "BCM57414", "14e4:16d8": "BCM57416", "14e4:1750": "BCM57508", "14e4:1751": "BCM57504", "14e4:1752": "BCM57502",
		"8086:1591": "E810-C", "8086:1592": "E810-C", "8086:1593": "E810-C", "8086:159b": "E810-XXV",
	}[vendor+":"+device]
}
