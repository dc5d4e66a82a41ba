// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
)

// function returns what kind of function of its NIC a link is: conf.Physical,
// conf.Virtual or conf.Scalable, or "" if it is on no PCI bus.
func (c candidate) function(sys fs.FS) conf.Function {
	dir, id := c.device(sys)
	if strings.Contains(id, ".sf.") { // mlx5_core.sf.4, on the auxiliary bus
		return conf.Scalable
	}
	if _, ok := parsePCI(id); ok {
		if _, err := fs.Stat(sys, dir+"/physfn"); err == nil {
			return conf.Virtual
		}
		return conf.Physical
	}
	if c.onBus(sys).none {
		return ""
	}
	return conf.Physical // for example, a virtio NIC
}

// passes refuses a virtual function (VF) that cannot carry a macvlan, because the NIC
// drops the frames that it sends with another MAC than its own. l is the parent, layers
// are those of plan.Link. The physical function (PF) has two settings for that:
//
//   - With the spoof check, mlx5 drops such frames in any case: the ingress ACL in
//     esw/acl/ingress_lgcy.c has one source MAC. Drivers of Intel let a VF register more
//     MACs, and the check passes these.
//   - Without trust, such a driver refuses more MACs if the PF has set the MAC of the VF
//     (ixgbe_set_vf_macvlan_msg), which nothing shows, or if they are too many.
//
// So passes refuses a VF with spoof check if mlx5 has it or it is not trusted. It refuses
// no other VF: the gateway is asked anyhow. If the PF has no interface in the host's
// namespace, the settings are unknown, and passes returns nil.
func (s search) passes(ctx context.Context, l rtnl.Link, layers [][]int32) error {
	below := []rtnl.Link{l}
	if len(layers) > 1 {
		links, err := s.links()
		if err != nil {
			return err
		}
		below = slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool {
			return !slices.ContainsFunc(layers, func(layer []int32) bool { return slices.Contains(layer, l.Index) })
		})
	}
	for _, l := range below {
		if pf, vf, ok := s.checked(ctx, l); ok {
			return refused(l, pf, vf)
		}
	}
	return nil
}

func refused(l rtnl.Link, pf string, vf rtnl.VF) error {
	fix, is := "spoofchk off", "with the spoof check on"
	if vf.Untrusted {
		fix, is = "trust on "+fix, "which is not trusted, "+is
	}
	return cnierr.New(cnierr.BadParent, using, l.Name, shell.Command("ip link set %s vf %d ", pf, vf.Number)+fix,
		"it is VF %d of %s, %s: the NIC drops the frames of a macvlan, which has a MAC of its own", vf.Number, pf, is)
}

// checked returns the settings of a link that is a VF with such settings.
func (s search) checked(ctx context.Context, l rtnl.Link) (pf string, vf rtnl.VF, ok bool) {
	dir, id := candidate{Link: l}.device(s.sys)
	mlx5 := func() bool { return linkBase(s.sys, dir+"/driver") == "mlx5_core" }
	physfn := dir + "/physfn"
	pfs, _ := fs.ReadDir(s.sys, physfn+"/net")
	if len(pfs) == 0 { // it is no VF, or its PF has no interface here
		return "", rtnl.VF{}, false
	}
	number, ok := s.number(physfn, id)
	if !ok {
		return "", rtnl.VF{}, false
	}
	for _, e := range pfs {
		if Representor(discover.Text(s.sys, path.Join(physfn, "net", e.Name(), "phys_port_name"))) {
			continue
		}
		for _, vf := range s.vfs(ctx, e.Name()) {
			if vf.Number == number && vf.SpoofCheck && (vf.Untrusted || mlx5()) {
				return e.Name(), vf, true
			}
		}
	}
	return "", rtnl.VF{}, false
}

// number returns the number of the VF with a PCI address. dir is the folder of its PF.
func (s search) number(dir, id string) (uint32, bool) {
	entries, _ := fs.ReadDir(s.sys, dir) // none if it is no VF
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "virtfn")
		if !ok || linkBase(s.sys, dir+"/"+e.Name()) != id {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 32)
		return uint32(n), err == nil
	}
	return 0, false
}

// vfs returns the VFs of a PF. It asks once for each PF. Without an answer, it returns
// none: for example, the list of all VFs of a NIC can be too long for one message.
func (s search) vfs(ctx context.Context, pf string) []rtnl.VF {
	if out, ok := s.asked[pf]; ok {
		return out
	}
	out, err := s.VFs(ctx, pf)
	if err != nil {
		out = nil
	}
	s.asked[pf] = out
	return out
}
