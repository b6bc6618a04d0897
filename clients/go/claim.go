package lockkeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	slice     = 25 * time.Second       // the longest wait of one request: the service's default limit
	lookAgain = 250 * time.Millisecond // the least time between two requests that are answered with a no
	lastWords = 2 * time.Second        // for what may be left of a claim
)

// Options say which lease to acquire. The zero value is an exclusive lease, without a wait.
type Options struct {
	TTL    time.Duration // how long the lease lasts if this process dies; 30 seconds if 0
	Wait   time.Duration // how long to wait in line; Forever is allowed
	Slots  int           // share the key with so many leases in all, which have the slots 1 to Slots
	Shared bool          // share the key with all who share it, as readers do
	Owner  string        // the name of the holder, shown to others; that of the client if empty
}

// A claim is a token's wish for a key. All its requests have this token, so a repeat gets the lease or the place in
// line that it has. The next claim has another token: nothing that is late can touch it.
type claim struct {
	client           *Client
	key, path, token string
	options          Options
}

// A grant says that a token has a lease.
type grant struct {
	Key, Token   string
	FencingToken int64         `json:"fencing_token"`
	TTL          time.Duration `json:"ttl_ms"`
	Waited       time.Duration `json:"waited_ms"`
	Capped       bool          // The max_hold of the key has shortened the TTL.
	Slot         int
	end          time.Duration // One can rely on it until then.
}

type answer struct {
	grant grant
	err   error
}

func (c *Client) newClaim(key string, options Options) (*claim, error) {
	where, err := path(key)
	random := make([]byte, 16)
	if err == nil {
		_, err = rand.Read(random)
	}
	if options.TTL == 0 {
		options.TTL = 30 * time.Second
	}
	options.Owner = setting(options.Owner, c.owner)
	return &claim{c, key, where, hex.EncodeToString(random), options}, err
}

// acquire repeats the request until it is granted, refused, or the wait and the grace are over. After an error the
// claim has nothing at the service, as far as the service can be reached.
func (c *claim) acquire(ctx context.Context) (grant, error) {
	until := now() + shorter(longer(0, c.options.Wait), Forever-now()-grace)
	isDoubtful := false // A request whose outcome is unknown may have been granted.
	for failures, late := 0, 0; ; failures++ {
		sent := now()
		got := c.ask(ctx, shorter(longer(0, until-sent), slice), until+grace-sent)
		e, isAnswered := got.err.(*Error)
		if !isAnswered && (got.grant.Capped || got.grant.end-now() >= c.options.TTL/2) {
			return got.grant, nil
		} else if !isAnswered { // Asked again, the lease lasts longer.
			late++
			e = &Error{Kind: ErrServiceUnavailable, Key: c.key, OutcomeUnknown: true,
				Detail: "the answers take longer than half of the TTL"}
		}
		isOver, pause := now() >= until, backoff(failures, e)
		isDoubtful = !e.isNo && (isDoubtful || e.OutcomeUnknown) // A no is definite, whatever happened before.
		isFull := e.Status == http.StatusTooManyRequests && e.isNo
		switch {
		case e.Kind == ErrLockBusy && !isOver: // The service cut the wait.
			failures, pause = 0, longer(0, sent+lookAgain-now())
		case e.Kind != ErrServiceUnavailable || now()+pause >= until+grace || isOver && isFull || late > 2:
			if e.OutcomeUnknown = isDoubtful; isDoubtful {
				c.leave(nil)
			}
			return grant{}, e
		}
		sleep(ctx, pause)
	}
}

// ask sends one request that waits in line. If ctx ends, it hears the request out, and leaves nothing.
func (c *claim) ask(ctx context.Context, wait, left time.Duration) answer {
	options := map[string]any{"wait_ms": wait.Milliseconds(), "owner": c.options.Owner}
	if c.options.Slots != 0 {
		options["slots"] = c.options.Slots
	}
	if c.options.Shared {
		options["shared"] = true
	}
	open, abort := context.WithCancel(context.Background())
	defer abort()
	asked := make(chan answer, 1)
	go func() { asked <- c.granted(open, wait+patience(left-wait), http.MethodPost, c.path, options) }()
	select {
	case got := <-asked:
		if got.err != nil || ctx.Err() == nil {
			return got
		}
		c.leave(nil)
	case <-ctx.Done():
		c.leave(asked)
	}
	return answer{err: &Error{Kind: ctx.Err(), Key: c.key, Detail: "the claim is withdrawn", isNo: true}}
}

// granted sends a request that is answered by a grant of this claim.
func (c *claim) granted(ctx context.Context, within time.Duration, method, path string, options map[string]any) answer {
	var g grant
	options["ttl_ms"] = c.options.TTL.Milliseconds()
	sent, number := now(), options["fencing_token"]
	err := c.client.send(ctx, within, request{method, path, c.key, c.token, options}, &g, func() bool {
		return g.Key == c.key && g.Token == c.token && g.FencingToken > 0 && (number == nil || number == g.FencingToken)
	})
	// Counted from the sending: the service's own end is later, by the time on the way.
	g.end = sent + (g.Waited+g.TTL)*time.Millisecond
	return answer{g, err}
}

// leave gives up the lease and the place in line that the token may have, also by a request that is still on its
// way: it hears out the open request, if there is one, and repeats the release until one comes after the grant.
func (c *claim) leave(asked <-chan answer) {
	for until, isHeard := now()+lastWords, false; ; {
		err := c.end(0, longer(lookAgain, until-now()))
		if err == nil && asked == nil || isHeard && errors.Is(err, ErrLeaseLost) {
			return
		}
		if now() >= until {
			c.client.logf("lockkeeper: %q: what may be left of a claim ends by its TTL of %v", c.key, c.options.TTL)
			return
		}
		select {
		case got := <-asked:
			if e, isAnswered := got.err.(*Error); isAnswered && e.isNo {
				return
			}
			asked, isHeard = nil, got.err == nil
		case <-time.After(lookAgain):
		}
	}
}

// end releases the lease with this fencing token, or with 0 whatever the token has.
func (c *claim) end(number int64, within time.Duration) error {
	where := c.path
	if number != 0 {
		where += fmt.Sprintf("?fencing_token=%d", number)
	}
	return c.client.send(context.Background(), within, request{http.MethodDelete, where, c.key, c.token, nil}, nil, nil)
}

// release releases the lease with this fencing token, with repeats.
func (c *claim) release(number int64) error {
	isDoubtful := false
	return c.client.insist(context.Background(), func(within time.Duration) error {
		err := c.end(number, within)
		if isDoubtful && errors.Is(err, ErrLeaseLost) {
			return nil // An earlier request, whose answer was lost, has released it.
		}
		e, isAnswered := err.(*Error)
		isDoubtful = isDoubtful || isAnswered && e.OutcomeUnknown
		return err
	})
}
