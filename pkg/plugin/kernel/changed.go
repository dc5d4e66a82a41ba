// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"fmt"
	"strings"
)

// ChangedError is in the finding of Check about a property that another program has
// set since Do: the MAC and the MTU of a link, its settings, the name of its master, and the
// route to a subnet that it has moved to a table of its own. Plugins behind roce do that, such as tuning
// and sbr, so that it is no damage.
type ChangedError struct {
	Property  string // MAC, MTU, the name of an RDMA device, a route, or the path of a setting
	Want, Got string
	// Raise is the MTU of ADD if it is higher, and the NIC allows it now; else 0. The kernel
	// lowers the MTU of a child with that of its NIC, and does not raise it again. Repair
	// does: a lower MTU is to be set by roce itself.
	Raise int
}

// Error says what Do set, and what is there now.
func (e *ChangedError) Error() string {
	if strings.Contains(e.Property, "/") { // the subject of the finding has the path
		return fmt.Sprintf("want %s, got %s", e.Want, e.Got)
	}
	if e.Raise > 0 {
		return fmt.Sprintf("want %s %s, got %s: its NIC had that for a time, or a program set it; rocectl repair raises it", e.Property, e.Want, e.Got)
	}
	return fmt.Sprintf("want %s %s, got %s", e.Property, e.Want, e.Got)
}

// The properties of a link in a ChangedError.
const (
	MAC    = "MAC"
	MTU    = "MTU"
	Master = "master" // its name

	subnetRoute = "the route to its subnet"
)
