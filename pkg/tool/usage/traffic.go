// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
)

// Rate is an amount for each second: of bytes if the driver counts them, else of packets.
type Rate struct {
	PerSecond float64 `json:"perSecond"`
	Unit      string  `json:"unit"` // "bytes" or "packets"
}

// String returns the rate with three digits, such as 1.25 GB/s; "" for nil.
func (r *Rate) String() string {
	if r == nil {
		return ""
	}
	unit := map[string]string{"bytes": "B/s", "packets": "packets/s"}[r.Unit]
	value := r.PerSecond
	for _, prefix := range []string{"", "k", "M"} {
		if value < 1000 {
			return fmt.Sprintf("%.3g %s%s", value, prefix, unit)
		}
		value /= 1000
	}
	return fmt.Sprintf("%.3g G%s", value, unit)
}

// Traffic is what was sent and received until a time.
type Traffic struct {
	At       time.Time `json:"at"`
	Sent     uint64    `json:"sent"`
	Received uint64    `json:"received"`
	Unit     string    `json:"unit"` // that of Rate; "": the driver does not count
}

// Source is what counts: a device or a port of it, for all users, or what the driver has bound
// to the programs of one user.
type Source struct {
	Device string
	Port   uint32 // zero: all
	User   User   // zero: all
}

// counters are the files below a port that count RDMA traffic, and how many bytes one stands
// for; 0 for packets. The first pair that a driver has counts. What it has bound to programs
// has the names of the files.
var counters = []struct { //nolint:gochecknoglobals // a table
	sent, received string
	bytes          uint64
}{
	{"hw_counters/rdma_tx_bytes", "hw_counters/rdma_rx_bytes", 1}, // mlx5 from Linux 6.15 on, only bound
	{"hw_counters/sent_bytes", "hw_counters/rcvd_bytes", 1},       // Soft-RoCE of Linux 7.3
	{"counters/port_xmit_data", "counters/port_rcv_data", 4},      // mlx5: words, as IBTA has them
	{"hw_counters/tx_bytes", "hw_counters/rx_bytes", 1},           // bnxt_re
	{"hw_counters/sent_pkts", "hw_counters/rcvd_pkts", 0},         // Soft-RoCE of Linux 6.1
}

// Traffic returns what the devices of the host and their ports have sent and received since they
// were made. The counters of a device that was moved to a pod are not seen.
func (n Node) Traffic(now time.Time) map[Source]Traffic {
	out := map[Source]Traffic{}
	ports, _ := fs.Glob(n.Sys, "class/infiniband/*/ports/*") // the pattern is correct
	for _, port := range ports {
		device := path.Base(path.Dir(path.Dir(port)))
		number, _ := strconv.ParseUint(path.Base(port), 10, 32) // the kernel writes a number
		t := Traffic{At: now}
		t.add(func(file string) (uint64, bool) {
			v, err := strconv.ParseUint(discover.Text(n.Sys, path.Join(port, file)), 10, 64) // a driver has some of them
			return v, err == nil
		})
		out[Source{Device: device, Port: uint32(number)}] = t
		all := Source{Device: device}
		t.Sent, t.Received, t.Unit = out[all].Sent+t.Sent, out[all].Received+t.Received, cmp.Or(t.Unit, out[all].Unit)
		out[all] = t
	}
	return out
}

// add adds what the first pair of counters says.
func (t *Traffic) add(value func(file string) (uint64, bool)) {
	for _, c := range counters {
		sent, ok := value(c.sent)
		received, ok2 := value(c.received)
		if !ok || !ok2 {
			continue
		}
		t.Unit = "packets"
		if c.bytes > 0 {
			t.Unit, sent, received = "bytes", sent*c.bytes, received*c.bytes
		}
		t.Sent, t.Received = t.Sent+sent, t.Received+received
		return
	}
}

// Since returns the rates between two looks; nil if they are not known. If a counter is
// smaller than before, the device was made again, or a program of the user has ended.
func (t Traffic) Since(before Traffic) (sent, received *Rate) {
	seconds := t.At.Sub(before.At).Seconds()
	if t.Unit == "" || t.Unit != before.Unit || seconds <= 0 || t.Sent < before.Sent || t.Received < before.Received {
		return nil, nil
	}
	return &Rate{float64(t.Sent-before.Sent) / seconds, t.Unit}, &Rate{float64(t.Received-before.Received) / seconds, t.Unit}
}

// AddRates gives each user its rates: those of the counters that are bound to it, which it
// adds to after, or else those of the device, if no other user has queue pairs there.
func AddRates(uses []Use, before, after map[Source]Traffic) {
	users := map[string]int{}
	for _, u := range uses {
		if u.Total() > 0 {
			users[u.Device]++
		}
	}
	for i := range uses {
		u := &uses[i]
		by := Source{Device: u.Device}
		switch {
		case u.Counted != nil:
			by.User = u.User
			after[by] = *u.Counted
		case u.Total() == 0 || users[u.Device] > 1:
			continue
		}
		u.Sent, u.Received = after[by].Since(before[by])
	}
}

// From include/uapi/rdma/rdma_netlink.h.
const (
	attrPID       = 28 // RDMA_NLDEV_ATTR_RES_PID
	attrValues    = 80 // RDMA_NLDEV_ATTR_STAT_HWCOUNTERS
	attrValueName = 82 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME
	attrValue     = 83 // RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE
)

// parseCounter reads what a driver counts for the queue pairs of one program on a port in the
// mode auto pid: values by the driver's names. The PID is 0 if the counter is bound in another
// mode.
func parseCounter(b []byte) (pid uint32, values map[string]uint64) {
	values = map[string]uint64{}
	for typ, v := range nlsock.Attributes(b) {
		switch typ {
		case attrPID:
			pid = nlsock.Number(v)
		case attrValues:
			for _, entry := range nlsock.Attributes(v) {
				name, value := "", uint64(0)
				for typ, v := range nlsock.Attributes(entry) {
					switch {
					case typ == attrValueName:
						name = nlsock.Text(v)
					case typ == attrValue && len(v) >= 8:
						value = binary.NativeEndian.Uint64(v)
					}
				}
				values[name] = value
			}
		}
	}
	return pid, values
}
