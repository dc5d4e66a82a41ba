// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nic

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// QoS is what an interface does for the classes of traffic: PFC and DSCP as dcbnl tells
// them, ECN as NVIDIA's own driver does.
type QoS struct {
	PFC  Priorities     // these are paused and not dropped
	DSCP [64]Priorities // that of packets with this DSCP; 0 if no mapping says it
	ECN  Priorities     // with congestion notification, as sender and as receiver
	// TellsECN says that ECN is known.
	TellsECN bool
}

// Priorities is a set of priorities: bit i is priority i.
type Priorities uint8

// Lossless returns the DSCPs that lead to a priority with PFC.
func (q QoS) Lossless() (dscps []int) {
	for dscp, p := range q.DSCP {
		if p&q.PFC != 0 {
			dscps = append(dscps, dscp)
		}
	}
	return dscps
}

func (q QoS) String() string {
	out := "PFC off"
	if dscps := q.Lossless(); len(dscps) > 0 {
		out = fmt.Sprintf("PFC for priority %s, DSCP %s there", q.PFC, ranges(dscps))
	} else if q.PFC != 0 {
		out = fmt.Sprintf("PFC for priority %s, no DSCP there", q.PFC)
	}
	switch {
	case q.ECN != 0:
		out += fmt.Sprintf(", ECN for priority %s", q.ECN)
	case q.TellsECN:
		out += ", ECN off"
	}
	return out
}

func (p Priorities) String() string {
	var set []int
	for i := range 8 {
		if p&(1<<i) != 0 {
			set = append(set, i)
		}
	}
	return ranges(set)
}

// ranges returns ascending numbers as people write them: "0-7,26".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		part := fmt.Sprint(numbers[i])
		if last > i {
			part += fmt.Sprint("-", numbers[last])
		}
		parts, i = append(parts, part), last+1
	}
	return strings.Join(parts, ",")
}

// Numbers of dcbnl (linux/dcbnl.h).
const (
	dcbCmdIEEEGet  = 21
	dcbAttrIfname  = 1
	dcbAttrIEEE    = 13
	ieeePFC        = 2
	ieeeApps       = 3
	ieeeApp        = 1
	appIsDSCP      = 5 // IEEE_8021QAZ_APP_SEL_DSCP
	pfcEnabledByte = 1 // of struct ieee_pfc
)

// ReadQoS asks the kernel for the settings of an interface. The error is EOPNOTSUPP for one
// without PFC, such as a virtual link.
func ReadQoS(sys fs.FS, netdev string) (QoS, error) {
	c, err := nlsock.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return QoS{}, err
	}
	defer c.Close()
	return askQoS(c, sys, netdev)
}

func askQoS(c nlsock.Socket, sys fs.FS, netdev string) (QoS, error) {
	dcbmsg := []byte{unix.AF_UNSPEC, dcbCmdIEEEGet, 0, 0}
	replies, err := c.Exchange(context.Background(), nlsock.Request{Type: unix.RTM_GETDCB, Body: nlsock.AppendText(dcbmsg, dcbAttrIfname, netdev)})
	if err != nil {
		return QoS{}, err
	}
	if r := replies[0]; r.Err != nil || len(r.Rows) == 0 || len(r.Rows[0]) < len(dcbmsg) {
		return QoS{}, cmp.Or(r.Err, error(unix.ENODATA))
	}
	q, err := parseQoS(replies[0].Rows[0][len(dcbmsg):])
	q.ECN, q.TellsECN = readECN(sys, netdev)
	return q, err
}

// readECN reads which priorities have congestion notification, as reaction point and as
// notification point. Only NVIDIA's own driver has these files.
func readECN(sys fs.FS, netdev string) (on Priorities, told bool) {
	for i := range 8 {
		both := true
		for _, side := range []string{"roce_rp", "roce_np"} {
			b, err := fs.ReadFile(sys, fmt.Sprintf("class/net/%s/ecn/%s/enable/%d", netdev, side, i))
			if err != nil {
				return 0, false
			}
			both = both && strings.TrimSpace(string(b)) == "1"
		}
		if both {
			on |= 1 << i
		}
	}
	return on, true
}

func parseQoS(b []byte) (q QoS, err error) {
	ieee := within(b, dcbAttrIEEE)
	pfc := within(ieee, ieeePFC)
	if len(pfc) <= pfcEnabledByte {
		return q, unix.EOPNOTSUPP // the driver has no PFC
	}
	q.PFC = Priorities(pfc[pfcEnabledByte])
	for typ, v := range nlsock.Attributes(within(ieee, ieeeApps)) { // struct dcb_app: selector, priority, protocol
		if typ == ieeeApp && len(v) >= 4 && v[0] == appIsDSCP && v[1] < 8 {
			if dscp := binary.NativeEndian.Uint16(v[2:]); dscp < 64 {
				q.DSCP[dscp] |= 1 << v[1]
			}
		}
	}
	return q, nil
}

// within returns the value of an attribute, nil if it is absent.
func within(b []byte, typ uint16) []byte {
	for t, v := range nlsock.Attributes(b) {
		if t == typ {
			return v
		}
	}
	return nil
}
