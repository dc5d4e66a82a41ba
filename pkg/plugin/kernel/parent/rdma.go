// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// System asks for the RDMA devices that the namespace of a Namespace sees.
type System func(context.Context) (nldev.System, error)

// ofDevice returns what through returns, or NoRDMA with nldev.ErrNoDevice when
// the device does not exist.
func (s search) ofDevice(links []rtnl.Link, device string) ([]int32, error) {
	known, err := s.devices()
	if err != nil {
		return nil, err
	}
	indexes := through(links, known, device, s.sys)
	if len(indexes) == 0 {
		return nil, cnierr.New(cnierr.NoRDMA, selecting, device,
			"correct master.rdma: rdma link show lists the devices and their interfaces, in exclusive mode only those that are in no pod",
			"%w of this name has a network interface here; there are: %s", nldev.ErrNoDevice, devices(known))
	}
	return indexes, nil
}

// through returns the indexes of the links that carry the frames of an RDMA
// device. These are the network interfaces of its ports, in the order of the
// ports. For ports in a bond it is the bond. through returns none if the device
// does not exist.
func through(links []rtnl.Link, known nldev.System, device string, sys fs.FS) []int32 {
	indexes := ports(known, device)
	if len(indexes) == 0 {
		indexes = siblings(links, device, sys)
	}
	for i := range indexes {
		indexes[i] = Top(links, indexes[i])
	}
	return indexes
}

// devices returns the RDMA devices that the kernel reports: none on a kernel
// without RDMA.
func (s search) devices() (nldev.System, error) {
	known, err := s.system()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		err = nil
	}
	return known, err
}

// ports returns the interfaces that the ports of a device name.
func ports(s nldev.System, device string) []int32 {
	var out []int32
	for _, p := range discover.Ports(s.Devices) {
		if p.Device.Name == device && p.NetdevIndex != 0 {
			out = append(out, p.NetdevIndex)
		}
	}
	return out
}

// siblings returns the network interfaces on the same PCI or auxiliary device
// as an RDMA device. In exclusive mode our tables do not have a device that a pod
// has, but the files that programs open are visible in every namespace.
func siblings(links []rtnl.Link, device string, sys fs.FS) []int32 {
	var out []int32
	for _, f := range discover.Files(sys) {
		if f.Device != device {
			continue
		}
		netdevs, _ := fs.ReadDir(sys, path.Join(f.Dir, "device/net")) // Soft-RoCE has no such folder
		for _, l := range links {
			if slices.ContainsFunc(netdevs, func(e fs.DirEntry) bool { return e.Name() == l.Name }) {
				out = append(out, l.Index)
			}
		}
	}
	return out
}

func devices(s nldev.System) string {
	var out []string
	for _, p := range discover.Ports(s.Devices) {
		if p.Netdev != "" {
			out = append(out, fmt.Sprintf("%s (%s)", p.Device.Name, p.Netdev))
		}
	}
	return list(out)
}

// list returns some of the names, sorted, numbers by value.
func list(names []string) string {
	slices.SortFunc(names, Natural)
	return cmp.Or(cnierr.Some(names), "none")
}

// Pod is a pod's namespace and its host's.
type Pod struct {
	Links, Host Namespace
	NSID        int32 // the number by which the pod knows the host
}

// Carrier returns the link with the RDMA device that the pod uses through l. l is
// a link of the pod that another plugin made. The result is l itself, or a link
// below it, in the pod or in the host. device is the name that the runtime gives
// for the device of l. The errors of Carrier are those of p.
func Carrier(ctx context.Context, p Pod, l rtnl.Link, device string) (plan.Link, error) {
	c, inPod := p.Links, true
	for range maxStack {
		if !child(l) || l.Lower.Index == 0 {
			break
		}
		if l.Lower.NSID != rtnl.NoNSID {
			if l.Lower.NSID != p.NSID {
				break // it is in a third namespace: we know no RDMA device there
			}
			c, inPod = p.Host, false
		}
		var err error
		if l, err = c.LinkByIndex(ctx, l.Lower.Index); err != nil {
			return plan.Link{}, err
		}
		if !inPod {
			break // Layers knows the way down from here
		}
	}
	layers, err := Layers(ctx, c, l)
	if err != nil {
		return plan.Link{}, err
	}
	if device == "" && inPod && (l.Bus == "pci" || l.Bus == "auxiliary") {
		device = l.Dev
	}
	return plan.Link{Name: conf.LinkName(l.Name), MAC: MAC(l), MTU: l.MTU, Layers: layers, Device: device, InPod: inPod}, nil
}

// maxStack bounds a walk down links that can change at the same time
// (MAX_NEST_DEV).
const maxStack = 8

// child says whether a link sends its frames through its lower link. A veth is
// no child: its lower link is its other end.
func child(l rtnl.Link) bool {
	return slices.Contains([]string{"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan"}, l.Kind)
}

// MAC returns the address of a link, zero if it has no Ethernet address.
func MAC(l rtnl.Link) conf.MAC {
	if len(l.Address) != len(conf.MAC{}) {
		return conf.MAC{}
	}
	return conf.MAC(l.Address)
}
