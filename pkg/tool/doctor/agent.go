// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// agentHealth asks whether the agent does its work, if the node has pools that need
// it.
func agentHealth() Check {
	return Check{
		Name: "agent",
		Asks: "does rocectl agent answer that all pools of the node are ready?",
		Why:  "without it the node gets no further block of a RailPool, and pods with sticky addresses do not start",
		look: func(ctx context.Context, n Node) []report.Finding {
			pools, err := n.Pools.Pools()
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read the state folder")}
			}
			health, err := n.health(ctx)
			switch {
			case err == nil && health == "":
				return []report.Finding{ok("healthy, %s on this node", count(len(pools), "pool"))}
			case err == nil:
				return []report.Finding{problem("it says: "+health, "kubectl -n roce-cni logs daemonset/roce-cni-agent --tail 20  # of the pod on this node")}
			case len(pools) == 0:
				return []report.Finding{ok("this node has no pool that needs it, and it does not answer at %s", n.AgentURL)}
			case ctx.Err() != nil:
				return []report.Finding{cannotTell("it did not answer in time", "more time")}
			}
			return []report.Finding{problem(fmt.Sprintf("the node has %s, and it does not answer: %v", count(len(pools), "pool"), err),
				"kubectl -n roce-cni get pods -o wide  # is there an agent on this node? kubectl apply -k conf-examples/deploy makes it")}
		},
	}
}

// health returns what the agent says is wrong, "" if nothing is.
func (n Node) health(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.AgentURL, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil || res.StatusCode == http.StatusOK {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "; "), nil
}
