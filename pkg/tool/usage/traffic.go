// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// Rate is an amount for each second: of bytes if the driver counts them, else of packets.
type Rate struct {
	PerSecond float64 `json:"perSecond"`
	Unit      string  `json:"unit"` // "bytes" or "packets"
}

// String returns the rate with three digits, such as 1.25 GB/s.
func (r Rate) String() string {
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

// Traffic is what a device has sent and received since it was made, over all of its ports.
type Traffic struct {
	At             time.Time
	Sent, Received uint64
	Unit           string // that of Rate; "": the driver does not count
}

// counters are the files below a port that count RDMA traffic, and how many bytes one stands
// for; 0 for packets. The first pair that a driver has counts.
var counters = []struct { //nolint:gochecknoglobals // a table
	sent, received string
	bytes          uint64
}{
	{"hw_counters/sent_bytes", "hw_counters/rcvd_bytes", 1},  // Soft-RoCE of Linux 7.3
	{"counters/port_xmit_data", "counters/port_rcv_data", 4}, // mlx5: words, as IBTA has them
	{"hw_counters/tx_bytes", "hw_counters/rx_bytes", 1},      // bnxt_re
	{"hw_counters/sent_pkts", "hw_counters/rcvd_pkts", 0},    // Soft-RoCE of Linux 6.1
}

// Traffic returns what the devices of the host have sent and received, by their names. The
// counters of a device that was moved to a pod are not seen.
func (n Node) Traffic(now time.Time) map[string]Traffic {
	out := map[string]Traffic{}
	ports, _ := fs.Glob(n.Sys, "class/infiniband/*/ports/*") // the pattern is correct
	for _, port := range ports {
		device := path.Base(path.Dir(path.Dir(port)))
		t := out[device]
		t.At = now
		for _, c := range counters {
			sent, err := n.number(path.Join(port, c.sent))
			received, err2 := n.number(path.Join(port, c.received))
			if err != nil || err2 != nil {
				continue
			}
			t.Unit = "packets"
			if c.bytes > 0 {
				t.Unit, sent, received = "bytes", sent*c.bytes, received*c.bytes
			}
			t.Sent, t.Received = t.Sent+sent, t.Received+received
			break
		}
		out[device] = t
	}
	return out
}

func (n Node) number(file string) (uint64, error) {
	b, err := fs.ReadFile(n.Sys, file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// Since returns the rates of a device between two looks; nil if they are not known. A counter
// that is smaller than before began again: the device was made again.
func (t Traffic) Since(before Traffic) (sent, received *Rate) {
	seconds := t.At.Sub(before.At).Seconds()
	if t.Unit == "" || t.Unit != before.Unit || seconds <= 0 || t.Sent < before.Sent || t.Received < before.Received {
		return nil, nil
	}
	return &Rate{float64(t.Sent-before.Sent) / seconds, t.Unit}, &Rate{float64(t.Received-before.Received) / seconds, t.Unit}
}

// AddRates gives the rates of each device to the user that has all of its queue pairs, if
// there is only one.
func AddRates(uses []Use, before, after map[string]Traffic) {
	users := map[string]int{}
	for _, u := range uses {
		if u.Total() > 0 {
			users[u.Device]++
		}
	}
	for i := range uses {
		if u := &uses[i]; u.Total() > 0 && users[u.Device] == 1 {
			u.Sent, u.Received = after[u.Device].Since(before[u.Device])
		}
	}
}
