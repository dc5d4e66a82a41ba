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

// Table lists every code in ascending order. It is the source of
// docs/errors.md and of `rocectl explain`.
func Table() []Entry {
	return []Entry{
		{Version, "the configuration asks for a CNI version that the plugin does not speak", "set cniVersion to 0.3.1, 0.4.0, 1.0.0 or 1.1.0"},
		{Unsupported, "the configuration asks for something that this version of roce-cni cannot do", "remove the key that the message names, or install a version that has it"},
		{BadEnv, "an environment variable of the CNI call is missing or malformed", "look at the CNI_ variable that the message names; runtimes set it, Multus and cnitool included"},
		{IO, "a file or a kernel interface of the node could not be read or written", "check the path in the message: space, permissions, read-only mounts; then let the runtime try again"},
		{Decode, "the configuration or a result is not JSON of the expected form", "run rocectl plan on the network configuration; it names the place"},
		{BadConfig, "the configuration contradicts itself or the node", "correct the keys that the message names; rocectl plan FILE checks a configuration without touching anything, and kubectl describe railpool NAME shows what is wrong with a RailPool"},
		{BadNetns, "the namespace path is not a network namespace, or is the host's own", "check CNI_NETNS; pods with hostNetwork cannot have attachments"},
		{TryAgain, "something that is expected to pass stands in the way", "wait: the runtime tries again by itself; if it lasts, the message names what it waits for; with ipam.railPool that is rocectl agent: its log and http://NODE:9482/healthz say what is in its way"},
		{NotAvailable, "the plugin cannot serve ADD on this node now", "correct what the message names; pods that need this network cannot start on the node until then"},
		{Limited, "the plugin cannot serve ADD, and running pods may have lost their network", "look at the NIC that the message names: cable, switch port, driver; if the message names a block or a slot of a RailPool, delete the pods that http://NODE:9482/healthz names: another node has their addresses"},
		{AddressTaken, "the leased address answers on the wire: somebody else uses it", "find the machine with the MAC in the message, or exclude the address in ipam.subnets[].exclude"},
		{PoolExhausted, "every address of the pool is used, resting or excluded", "widen ipam.subnets[].ranges, shorten ipam.quarantine, or look for leaks with rocectl pool list; with ipam.railPool wait for the agent to claim a block, and widen ranges of the RailPool if kubectl get railpools shows that all are claimed"},
		{BadParent, "the master is missing, down, ambiguous, or of a kind that cannot carry macvlan", "correct master; ip -d link shows the NICs of the node"},
		{NoRDMA, "the master has no RDMA device, its port is not active, or its link layer is InfiniBand", "load the NIC's RDMA driver and check rdma link; set rdma.mode to off if the pods need no RDMA"},
		{RDMAMode, "the RDMA subsystem's namespace mode does not fit the request", "compare rdma.mode with rdma system show"},
		{RouteTaken, "the routing table, the rule or the default route is taken by someone else", "choose another routing.table, routing.priority or routing.metric; ip rule and ip route show table all in the pod tell who has it"},
		{GatewaySilent, "the gateway does not answer ARP or neighbour discovery", "check the gateway's address, the switch port and the VLAN; set probe.gateway to warn to start pods all the same"},
		{Unreadable, "a record or the lease database cannot be read", "for the lease database run rocectl repair on the node, which shows what it would rebuild; for a record delete the pod; keep the file that the message names for a bug report"},
		{NoGID, "no GID for the address appeared, or the GID table of the device is full", "run rdma link and look at the device in the message; fewer pods or fewer addresses for each NIC free slots"},
		{RDMAHeld, "the RDMA device is held by another namespace", "delete the pod that the message names, or use the shared RDMA mode"},
		{Damaged, "CHECK finds that something of the attachment is missing or is not as ADD made it", "run the command in the message, or delete the pod"},
		{Bug, "roce-cni met a state that it holds to be impossible", "please report it with the message and the log: it is a bug of roce-cni"},
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
