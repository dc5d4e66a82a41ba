// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package others tests our files with the programs of other projects: the
// configuration of the RDMA device plugin with its own parser, and the Helm chart
// with Helm's own engine.
//
// It is a module of its own, because nothing that we ship may depend on these
// programs. It has no code but tests.
package others

// examples is the folder of what an operator applies.
const examples = "../../conf-examples/deploy"
