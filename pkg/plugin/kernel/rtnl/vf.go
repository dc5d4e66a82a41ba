// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// VF is what the physical function (PF) of a NIC lets a virtual function (VF) do.
type VF struct {
	Number uint32 // of the VF, as ip link prints it
	// SpoofCheck says that the NIC drops frames that the VF sends with another MAC than
	// its own. Untrusted says that the PF does not trust the VF. Both are false if the
	// driver does not know the setting.
	SpoofCheck, Untrusted bool
}

// VFs returns the VFs of a PF. It returns none for a link that is no PF. ENODEV means
// that there is no such link.
func (c *Conn) VFs(ctx context.Context, pf string) ([]VF, error) {
	req := request(unix.RTM_GETLINK, 0, linkHeader(0))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, u32(skipStats|nl.RTEXT_FILTER_VF)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(pf)))
	b, err := c.get(ctx, req)
	if err != nil {
		return nil, err
	}
	return parseVFs(b), nil
}

func parseVFs(b []byte) []VF {
	var out []VF
	msg := nl.DeserializeIfInfomsg(b)
	for typ, list := range nlsock.Attributes(b[msg.Len():]) {
		if typ != unix.IFLA_VFINFO_LIST {
			continue
		}
		for typ, info := range nlsock.Attributes(list) {
			if typ == nl.IFLA_VF_INFO {
				out = append(out, parseVF(info))
			}
		}
	}
	return out
}

// parseVF reads struct ifla_vf_spoofchk and struct ifla_vf_trust: the number of the VF,
// and a setting. The setting is -1 if the driver does not know it (rtnl_fill_vfinfo).
func parseVF(b []byte) VF {
	var vf VF
	for typ, v := range nlsock.Attributes(b) {
		if len(v) != 8 {
			continue
		}
		setting := binary.NativeEndian.Uint32(v[4:])
		switch typ {
		case nl.IFLA_VF_SPOOFCHK:
			vf.Number, vf.SpoofCheck = nlsock.Number(v), setting == 1
		case nl.IFLA_VF_TRUST:
			vf.Number, vf.Untrusted = nlsock.Number(v), setting == 0
		}
	}
	return vf
}
