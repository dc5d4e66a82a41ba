// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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

// dcbHeader is struct dcbmsg.
type dcbHeader struct{ cmd uint8 }

func (dcbHeader) Len() int { return 4 }

func (h dcbHeader) Serialize() []byte { return []byte{unix.AF_UNSPEC, h.cmd, 0, 0} }

// readQoS asks the kernel for the settings of an interface.
func readQoS(netdev string) (QoS, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETDCB, 0)
	req.AddData(dcbHeader{dcbCmdIEEEGet})
	req.AddData(nl.NewRtAttr(dcbAttrIfname, nl.ZeroTerminated(netdev)))
	replies, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return QoS{}, err
	}
	header := dcbHeader{}.Len()
	if len(replies) == 0 || len(replies[0]) < header {
		return QoS{}, unix.ENODATA
	}
	return parseQoS(replies[0][header:])
}

func parseQoS(b []byte) (q QoS, err error) {
	ieee, err := within(b, dcbAttrIEEE)
	if err != nil {
		return q, err
	}
	pfc, err := within(ieee, ieeePFC)
	if err != nil {
		return q, err
	}
	if len(pfc) <= pfcEnabledByte {
		return q, unix.EOPNOTSUPP // the driver has no PFC
	}
	q.PFC = pfc[pfcEnabledByte]
	table, err := within(ieee, ieeeApps)
	if err != nil {
		return q, err
	}
	apps, err := nl.ParseRouteAttr(table)
	if err != nil {
		return q, err
	}
	for _, a := range apps { // struct dcb_app: selector, priority, protocol
		q.DSCP = q.DSCP || a.Attr.Type == ieeeApp && len(a.Value) > 0 && a.Value[0] == appIsDSCP
	}
	return q, nil
}

// within returns the value of an attribute, nil if it is absent.
func within(b []byte, typ uint16) ([]byte, error) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == typ {
			return a.Value, nil
		}
	}
	return nil, nil
}
