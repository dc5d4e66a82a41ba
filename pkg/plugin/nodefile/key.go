// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Key is the owner of sticky addresses: an interface of a pod that comes back under
// its name.
type Key struct {
	Namespace, Pod, Interface string // Interface is CNI_IFNAME
}

// Sticky returns the key of a pod's interface, and whether the pod comes back under
// its name. Such a name ends in the number of a StatefulSet's replica. The number has
// at most four digits. So the five random characters in the pod names of other
// controllers never count as a number.
func Sticky(namespace, pod, ifName string) (Key, bool) {
	k := Key{namespace, pod, ifName}
	i := strings.LastIndexByte(pod, '-')
	if i < 1 || namespace == "" || ifName == "" {
		return k, false
	}
	number := pod[i+1:]
	digits := number != "" && strings.Trim(number, "0123456789") == ""
	return k, digits && len(number) <= 4 && (number == "0" || number[0] != '0')
}

// String returns a hash of the key. The order in which an agent tries the sticky
// addresses of a pool for the key follows from it.
func (k Key) String() string {
	sum := sha256.Sum256([]byte(k.Namespace + "/" + k.Pod + "/" + k.Interface))
	return hex.EncodeToString(sum[:16])
}
