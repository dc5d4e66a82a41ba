// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnierr

// Code is a CNI error code: below 100 it means what the CNI specification
// says (SPEC.md, "Error"), from 100 on what the table below says.
type Code uint

// The codes that roce-cni returns.
const (
	Version       Code = 1
	Unsupported   Code = 2
	BadEnv        Code = 4
	IO            Code = 5
	Decode        Code = 6
	BadConfig     Code = 7
	BadNetns      Code = 8
	TryAgain      Code = 11
	NotAvailable  Code = 50
	Limited       Code = 51
	AddressTaken  Code = 100
	PoolExhausted Code = 101
	BadParent     Code = 102
	NoRDMA        Code = 103
	RDMAMode      Code = 104
	RouteTaken    Code = 105
	GatewaySilent Code = 106
	Unreadable    Code = 107
	NoGID         Code = 108
	RDMAHeld      Code = 109
	Damaged       Code = 110
	Bug           Code = 199
)

// Entry explains one code to an operator.
type Entry struct {
	Code Code
	// Summary completes the sentence "this error is returned when ...".
	Summary string
	// Remedy is what to do when the error itself carries no better hint.
	Remedy string
}

// Again is the hint of a temporary condition. It is true for a call of a runtime, which is
// repeated, and for a command of rocectl, such as repair, which is not.
const Again = "wait, and try again (a runtime does so by itself)"

// Table lists every code in ascending order. It is the source of
// docs/errors.md and of `rocectl explain`.
func Table() []Entry {
	return []Entry{
		{Version, "the plugin does not support the CNI version of the configuration", "set cniVersion to a version from 0.1.0 to 1.1.0; for several interfaces to 0.3.0 or newer"},
		{Unsupported, "this version of roce-cni cannot do what the configuration requests", "remove the key that the message names, or install a version that supports it"},
		{BadEnv, "an environment variable of the CNI call is missing or malformed", "check the CNI_ variable that the message names; the runtime, Multus or cnitool sets it"},
		{IO, "a file or a kernel interface of the node could not be read or written", "check the path in the message: space, permissions, read-only mounts; then try again (a runtime does so by itself)"},
		{Decode, "the configuration or a result is not JSON of the expected form", "correct it at the position or the JSON path that the message names; rocectl plan FILE checks a configuration without changes"},
		{BadConfig, "the configuration contradicts itself or the node", "correct the keys that the message names; rocectl plan FILE checks a configuration without changes, and kubectl describe railpool NAME shows the faults of a RailPool"},
		{BadNetns, "the namespace path is not a network namespace, or is that of the host", "check CNI_NETNS; pods with hostNetwork cannot have attachments"},
		{TryAgain, "a temporary condition prevents the call", Again + "; if the error stays, the message names what it waits for; with ipam.railPool that is rocectl agent: its log and http://NODE:9482/healthz name the problem"},
		{NotAvailable, "the plugin cannot serve ADD on this node now", "correct what the message names; until then pods that need this network cannot start on the node"},
		{Limited, "the plugin cannot serve ADD, and running pods may have lost their network", "check the NIC that the message names: cable, switch port, driver; if the message names a block or a host index of a RailPool, another node has those addresses: delete the pods that http://NODE:9482/healthz names"},
		{AddressTaken, "another host on the network uses the leased address", "find the machine with the MAC in the message, or exclude the address in ipam.subnets[].exclude"},
		{PoolExhausted, "every address of the pool is in use, in quarantine or excluded", "widen ipam.subnets[].ranges, shorten ipam.quarantine, or look for leaks with rocectl pool list; with ipam.railPool wait for the agent to claim a block, and widen ranges of the RailPool if kubectl get railpools shows that all are claimed"},
		{BadParent, "the master is missing, down, ambiguous, or cannot carry macvlan interfaces", "correct master; ip -d link shows the NICs of the node"},
		{NoRDMA, "the master has no RDMA device, its port is not active, or its link layer is InfiniBand", "load the NIC's RDMA driver and check rdma link; set rdma.mode to off if the pods need no RDMA"},
		{RDMAMode, "the namespace mode of the RDMA subsystem does not fit the request", "compare rdma.mode with rdma system show"},
		{RouteTaken, "the routing table, the rule or the default route already has another owner", "choose another routing.table, routing.priority or routing.metric; ip rule and ip route show table all in the pod show the owner"},
		{GatewaySilent, "the gateway does not answer ARP or neighbour discovery", "check the gateway's address, the switch port and the VLAN; set probe.gateway to warn to start pods without an answer"},
		{Unreadable, "a record or the lease database cannot be read", "for the lease database run rocectl repair on the node, which shows what it would rebuild; for a record delete the pod; keep the file that the message names for a bug report"},
		{NoGID, "no GID for the address appeared, or the GID table of the device is full", "run rdma link and check the device in the message; fewer pods or fewer addresses on each NIC free entries"},
		{RDMAHeld, "another namespace holds the RDMA device", "delete the pod that the message names, or use the shared RDMA mode"},
		{Damaged, "CHECK finds that an object of the attachment is missing or differs from its record", "run the command in the message, or delete the pod"},
		{Bug, "roce-cni met a state that should be impossible", "this is a bug of roce-cni: please report it with the message and the log"},
	}
}

// Explain returns the entry of a code. A code that is not in the table, such
// as one of a delegated plugin, gets an entry that says so.
func Explain(c Code) Entry {
	for _, e := range Table() {
		if e.Code == c {
			return e
		}
	}
	return Entry{Code: c, Summary: "a delegated plugin returned a code of its own", Remedy: "see that plugin's documentation"}
}
