// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

type env struct {
	Attachment
	netns string
	mac   string   // CNI_ARGS MAC, as it came in
	ips   []string // CNI_ARGS IP, as they came in
	pod   Pod
}

// maxID leaves room in a file name (255 bytes) and in a link's alias (256).
const maxID = 200

func readEnv(in Input, f *strict.Faults) env {
	if in.Command == "STATUS" {
		return env{}
	}
	checkAttachment(in, ifNameProblem, f)
	if !filepath.IsAbs(in.Netns) || !printable(in.Netns) {
		f.Add(cnierr.BadEnv, "CNI_NETNS", "", "%q is not an absolute path", in.Netns)
	}
	e := readArgs(in.Args, f)
	e.Attachment, e.netns = Attachment{ContainerID(in.ContainerID), LinkName(in.IfName)}, in.Netns
	return e
}

// checkAttachment checks the values that become names of files, links and marks.
func checkAttachment(in Input, problemOf func(ifName string) string, f *strict.Faults) {
	switch {
	case !plainName(in.ContainerID):
		f.Add(cnierr.BadEnv, "CNI_CONTAINERID", "", "%q is not a letter or digit followed by letters, digits and _.-", in.ContainerID)
	case len(in.ContainerID) > maxID:
		f.Add(cnierr.BadEnv, "CNI_CONTAINERID", "", "%d characters, at most %d can be used", len(in.ContainerID), maxID)
	}
	if problem := problemOf(in.IfName); problem != "" {
		hint := ""
		if problem == isLoopback {
			hint = "choose another interface name in the pod's networks annotation"
		}
		f.Add(cnierr.BadEnv, "CNI_IFNAME", hint, "%q %s", in.IfName, problem)
	}
}

// readArgs reads CNI_ARGS like types.LoadArgs, but reads all of it.
func readArgs(args string, f *strict.Faults) env {
	var e env
	if args == "" {
		return e
	}
	known := map[string]string{
		"IgnoreUnknown": "false", "MAC": "", "IP": "",
		"K8S_POD_NAMESPACE": "", "K8S_POD_NAME": "", "K8S_POD_UID": "", "K8S_POD_INFRA_CONTAINER_ID": "",
	}
	var unknown []string
	given := map[string]bool{}
	for pair := range strings.SplitSeq(args, ";") {
		key, val, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(val, "=") || !printable(pair) {
			f.Add(cnierr.BadEnv, "CNI_ARGS", "write it as KEY=VALUE;KEY=VALUE", "%q is not a pair KEY=VALUE", pair)
			continue
		}
		if _, ok := known[key]; !ok {
			unknown = append(unknown, key)
			continue
		}
		// The policy of a namespace must not depend on which one counts. Multus adds all keys
		// of the pod to those of the runtime, and its own IgnoreUnknown=true.
		if given[key] && known[key] != val && key != "IgnoreUnknown" {
			f.Add(cnierr.BadEnv, "CNI_ARGS "+key, "give it once", "it has two values")
		}
		known[key], given[key] = val, true
	}
	var ignore types.UnmarshallableBool
	if err := ignore.UnmarshalText([]byte(known["IgnoreUnknown"])); err != nil {
		f.Add(cnierr.BadEnv, "CNI_ARGS IgnoreUnknown", "", "%q is none of true, false, 1, 0", known["IgnoreUnknown"])
	}
	if len(unknown) > 0 && !bool(ignore) {
		f.Add(cnierr.BadEnv, "CNI_ARGS", "remove the keys, or add IgnoreUnknown=true to ignore them", "unknown keys %q", unknown)
	}
	e.mac = known["MAC"]
	if known["IP"] != "" {
		e.ips = strings.Split(known["IP"], ",")
	}
	e.pod = Pod{Namespace: known["K8S_POD_NAMESPACE"], Name: known["K8S_POD_NAME"], UID: known["K8S_POD_UID"]}
	return e
}

// plainName says whether s is a name that CNI accepts for container IDs and
// networks (utils.ValidateContainerID, utils.ValidateNetworkName).
func plainName(s string) bool {
	return strings.Trim(s, nameChars) == "" && s != "" && !strings.ContainsRune("_.-", rune(s[0]))
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

// linkNameProblem says why a link cannot have the name s, or "" if it can
// (dev_valid_name; utils.ValidateInterfaceName).
func linkNameProblem(s string, longest int) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > longest:
		return "is too long for the name of a link"
	case s == "." || s == "..":
		return "is not the name of a link"
	case strings.ContainsAny(s, "/:") || strings.ContainsFunc(s, unicode.IsSpace) || !printable(s):
		return "has a character that the name of a link cannot have"
	}
	return ""
}

const longestIfName = 15

const isLoopback = "is the loopback interface of every pod"

// oldNameProblem says why no ADD has ever made an interface with the name s, or "" if one
// may have. The kernel refuses "all" and "default" (sysctl_dev_name_is_allowed), but only
// after we would have written the settings of all links of the pod.
func oldNameProblem(s string) string {
	if s == "all" || s == "default" {
		return "is reserved: the kernel uses it for the settings of several links"
	}
	return linkNameProblem(s, longestIfName)
}

func ifNameProblem(s string) string {
	problem := oldNameProblem(s)
	switch {
	case problem != "":
		return problem
	case !plainLink(s):
		return notPlain
	case s == "lo":
		return isLoopback
	}
	return ""
}

const notPlain = "has a character other than letters, digits and _.@-, or begins with -"

// plainLink says whether a shell reads the name of a link unchanged: we print
// commands that operators paste as root. DEL does not check this, because no
// ADD succeeded with such a name.
func plainLink(s string) bool {
	return !strings.HasPrefix(s, "-") && !strings.ContainsFunc(s, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.@-", r)
	})
}

// printable says whether s can appear in one line of a log unchanged.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
