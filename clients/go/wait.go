package lockkeeper

import (
	"context"
	"sort"
	"time"
)

// A Wait is that of a claim in line, from a look at the key beside the waiting request, as the command line does it.
type Wait struct {
	Key     string        // of several that which is awaited
	Owner   string        // of the lease that has the key; empty if it is not known, as of several holders
	Ahead   int           // the number of claims ahead in line; -1 if it is not known, as of several claims with one owner
	Waiters int           // the number of claims in line, this one included
	Waited  time.Duration // by now
}

// report tells of a wait when it has begun and once a minute, until the context ends. A look that fails costs nothing else.
func (c *claim) report(ctx context.Context) {
	began, limits := now(), c.client.limits
	inOrder := append([]string{}, c.keys.names...)
	sort.Strings(inOrder)
	for pause := limits.look; sleep(ctx, pause); {
		wait := Wait{}
		for _, key := range inOrder {
			found, ours := c.look(ctx, key)
			if wait.Key == "" || ours > 0 {
				wait = found
			}
			if ours > 0 {
				break
			}
		}
		// Nobody is in line: the claim has not arrived yet, or was granted meanwhile.
		if pause = limits.lookAgain; ctx.Err() != nil || wait.Key == "" {
			continue
		}
		wait.Waited = now() - began
		c.options.OnWait(wait)
		pause = limits.next
	}
}

// look returns the wait for a key, if anybody is in its line, and how many claims there have the owner of this one.
func (c *claim) look(ctx context.Context, key string) (wait Wait, ours int) {
	var status struct {
		Status
		Queue []struct{ Owner string }
	}
	ask := request{path: path("/locks/", key), query: "waiters=100", key: key} // as many as the service allows
	err := c.client.send(ctx, grace, ask, &status, func() bool { return status.Key == key })
	if err != nil || !status.Held || status.Waiters == 0 {
		return Wait{}, 0
	}
	wait = Wait{Key: key, Owner: status.Owner, Ahead: -1, Waiters: status.Waiters}
	for place, one := range status.Queue {
		if one.Owner == c.options.Owner { // Others may have given the same name.
			ours, wait.Ahead = ours+1, place
		}
	}
	if ours != 1 {
		wait.Ahead = -1
	}
	return wait, ours
}
