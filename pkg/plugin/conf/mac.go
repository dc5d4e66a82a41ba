// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"net"
)

// MAC is an Ethernet address. The zero value means none.
type MAC [6]byte

// ParseMAC reads an Ethernet address that a host may have. It must have 48
// bits, and must be neither zero nor a group address.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	if len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("address %s: want 48 bits, got %d", s, len(hw)*8)
	}
	m := MAC(hw)
	if m.IsZero() || m[0]&1 != 0 {
		return MAC{}, fmt.Errorf("address %s: zero or a group address", s)
	}
	return m, nil
}

// IsZero says whether m is the zero value.
func (m MAC) IsZero() bool { return m == MAC{} }

// String returns the usual form with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText returns String, and nothing for the zero value.
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	v, err := ParseMAC(string(b))
	if err != nil {
		return err
	}
	*m = v
	return nil
}
