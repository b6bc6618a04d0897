package lockkeeper

import "time"

// limits say for how long a claim waits out an absence of the service, as the command line does.
type limits struct {
	withoutWait time.Duration // of a claim whose wait is over, or that does not wait: a restart takes less
	beforeLine  time.Duration // of one that never stood in line: a machine that starts has no network or names for so long
	first, next time.Duration // without an answer until the first warning, and from one warning or report of a wait to the next

	look, lookAgain time.Duration // in line until the first look at the key: most leases are granted before; and until the next
}

var usual = limits{withoutWait: 5 * time.Second, beforeLine: time.Minute, first: 5 * time.Second, next: time.Minute,
	look: time.Second, lookAgain: 5 * time.Second}

// atOnce is the time of an answer, unless the service has put the claim in line.
const atOnce = time.Second

// An absence is that of the service, as a claim sees it.
type absence struct {
	limits
	is, hasStood, isTold bool // hasStood in line
	since, told          time.Duration
}

// notes takes note of the answer at a moment to a request that asked to wait for so long: one of the service ends the
// absence.
func (a *absence) notes(e *Error, sent, wait, at time.Duration) {
	if e.Code != "" && e.Status < 500 {
		a.is, a.hasStood = false, true
		return
	}
	wasCut := at < sent+wait
	// A gateway cuts a wait by a 504, and an unreachable service is another status of it.
	isOfWait := e.Status == 0 && e.OutcomeUnknown || e.Status == 504
	a.hasStood = a.hasStood || isOfWait && wasCut && at >= sent+atOnce
	if !a.is {
		// Until it was cut, the service was there. A suspension of this process is no absence of the service.
		if a.is, a.since = true, at; !wasCut {
			a.since = longer(sent, at-wait-grace)
		}
	}
}

// end is the moment at which a claim is given up whose wait is over at this one.
func (a *absence) end(over time.Duration) time.Duration {
	if !a.is {
		return over
	}
	last := longer(over, a.since+a.withoutWait)
	if a.hasStood {
		return last
	}
	return shorter(last, a.since+a.beforeLine)
}

// isDue says whether to warn at this moment; then not again for a while.
func (a *absence) isDue(at time.Duration) bool {
	if !a.is || at < a.since+a.first || a.isTold && at < a.told+a.next {
		return false
	}
	a.isTold, a.told = true, at
	return true
}
