// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"encoding/json"
	"fmt"
	"strings"
)

// macvlanNetwork converts a network of NVIDIA's network operator.
func (c *converter) macvlanNetwork(o object) error {
	var d Document
	d.note("%s: roce replaces macvlan. The operator made the NetworkAttachmentDefinition; now it is yours.", o)
	ipam, err := c.nvidiaIPAM(&d, o)
	if err != nil {
		return err
	}
	config := ordered{{"cniVersion", cniVersion}, {"name", o.Metadata.Name}, {"type", "roce"}}
	for _, key := range []string{"master", "mode"} {
		if v := o.spec.str(key); v != "" {
			config = append(config, member{key, v})
		}
	}
	if mtu := o.spec.number("mtu"); mtu != 0 {
		config = append(config, member{"mtu", mtu})
	}
	if ipam != nil {
		config = append(config, member{"ipam", ipam})
	}
	namespace := o.spec.str("networkNamespace")
	o.spec.rest(&d)
	return c.addNetwork(d, o, namespace, "", config)
}

// hostDeviceNetwork converts a network with whole devices: host-device stays, and roce
// follows it.
func (c *converter) hostDeviceNetwork(o object) error {
	var d Document
	d.note("%s: host-device stays the plugin that moves the device into the pod, and roce adopts it: table and rules, gateway check, RDMA device. "+
		"It needs Ethernet: a device of InfiniBand must stay with the operator.", o)
	ipam, err := c.nvidiaIPAM(&d, o)
	if err != nil {
		return err
	}
	resource := o.spec.str("resourceName")
	if resource != "" && !strings.HasPrefix(resource, "nvidia.com/") { // as the operator does
		resource = "nvidia.com/" + resource
	}
	namespace := o.spec.str("networkNamespace")
	o.spec.rest(&d)
	return c.addNetwork(d, o, namespace, resource, ordered{
		{"cniVersion", cniVersion}, {"name", o.Metadata.Name}, {"plugins", []ordered{vf("host-device", 0, ipam), {{"type", "roce"}}}},
	})
}

// nvidiaIPAM converts the ipam object, which is a text.
func (c *converter) nvidiaIPAM(d *Document, o object) (any, error) {
	var in map[string]any
	if text := o.spec.str("ipam"); text != "" {
		if err := json.Unmarshal([]byte(text), &in); err != nil {
			return nil, fmt.Errorf("spec.ipam: %w", err)
		}
	}
	ipam := newFields("spec.ipam.", in)
	out, err := c.ipam(d, o, ipam)
	ipam.rest(d)
	return out, err
}
