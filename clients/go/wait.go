package lockkeeper

import (
	"context"
	"time"
)

// A Wait is that of a claim in line, from a look at the key beside the waiting request, as the command line does it.
type Wait struct {
	Key     string
	Owner   string        // of the lease that has the key; empty if it is not known, as of several holders
	Ahead   int           // the number of claims ahead in line; -1 if it is not known, as of several claims with one owner
	Waiters int           // the number of claims in line, this one included
	Waited  time.Duration // by now
}

// report tells of a wait when it has begun and once a minute, until the context ends. A look that fails costs nothing else.
func (c *claim) report(ctx context.Context) {
	began, limits := now(), c.client.limits
	for pause := limits.look; sleep(ctx, pause); {
		var status struct {
			Status
			Queue []struct{ Owner string }
		}
		ask := request{path: c.path, query: "waiters=100", key: c.key} // as many as the service allows
		err := c.client.send(ctx, grace, ask, &status, func() bool { return status.Key == c.key })
		// Nobody is in line: the claim has not arrived yet, or was granted meanwhile.
		if pause = limits.lookAgain; ctx.Err() != nil || err != nil || !status.Held || status.Waiters == 0 {
			continue
		}
		wait := Wait{Key: c.key, Owner: status.Owner, Ahead: -1, Waiters: status.Waiters, Waited: now() - began}
		ours := 0
		for place, one := range status.Queue {
			if one.Owner == c.options.Owner { // Others may have given the same name.
				ours, wait.Ahead = ours+1, place
			}
		}
		if ours != 1 {
			wait.Ahead = -1
		}
		c.options.OnWait(wait)
		pause = limits.next
	}
}
