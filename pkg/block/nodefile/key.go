// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Key is whose addresses are kept: an interface of a pod that comes back under its
// name.
type Key struct {
	Namespace, Pod, Interface string // Interface is CNI_IFNAME
}

// Sticky returns the key of a pod's interface, and whether the pod is one that
// comes back under its name: that ends in the number of a StatefulSet's replica.
// Longer numbers than of four digits are none, so that the five random characters
// at the end of the pods of other controllers never are.
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

// String returns the name of the key's files: what is hashed may be longer than a
// file's name, and have characters that one has not.
func (k Key) String() string {
	sum := sha256.Sum256([]byte(k.Namespace + "/" + k.Pod + "/" + k.Interface))
	return hex.EncodeToString(sum[:16])
}
