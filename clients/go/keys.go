package lockkeeper

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const (
	mostBytes     = 32768     // of a body that the service reads
	longestNumber = 1<<53 - 1 // of a lease
)

// A Key is one of several, with its share. Without one its lease is exclusive.
type Key struct {
	Name   string `json:"key"`
	Slots  int    `json:"slots,omitempty"`  // as in Options
	Units  int    `json:"units,omitempty"`  // as in Options
	Shared bool   `json:"shared,omitempty"` // as in Options
}

// Keys are several keys with these names, each for itself alone.
func Keys(names ...string) (keys []Key) {
	for _, name := range names {
		keys = append(keys, Key{Name: name})
	}
	return keys
}

// LockAll is [Client.Lock] for several keys: a lease of each, or none. Clients that name the same keys in other orders
// do not wait for each other for ever. The leases are renewed together, lost with the first of them, and released
// together. The Key of [ErrLockBusy] is that which another client holds, that of [ErrLeaseLost] the one that was lost.
func (c *Client) LockAll(ctx context.Context, keys []Key, options Options) (*Lease, error) {
	several := wanted{claimed: append([]Key{}, keys...)}
	for _, key := range keys {
		several.names = append(several.names, key.Name)
	}
	return c.lock(ctx, several, options)
}

// TryLockAll is [Client.LockAll] without a wait.
func (c *Client) TryLockAll(ctx context.Context, keys []Key, options Options) (*Lease, error) {
	options.Wait = 0
	return c.LockAll(ctx, keys, options)
}

// WithLockAll is [Client.WithLock] for several keys: it works while it holds all of them, as [Client.LockAll] says.
func (c *Client) WithLockAll(ctx context.Context, keys []Key, options Options, work func(context.Context, *Lease) error) error {
	return with(ctx, work, func() (*Lease, error) { return c.LockAll(ctx, keys, options) })
}

// wanted are the keys of a claim: one, or with claimed several at once.
type wanted struct {
	names   []string
	claimed []Key
}

// A namedLease is one of several in a request or an answer.
type namedLease struct {
	Key    string `json:"key"`
	Number int64  `json:"fencing_token,omitempty"`
}

func (w wanted) isSeveral() bool { return w.claimed != nil }

// first is the key for errors.
func (w wanted) first() string {
	if len(w.names) == 0 {
		return ""
	}
	return w.names[0]
}

func quoted(names []string) string { return "'" + strings.Join(names, "', '") + "'" }

// wrong returns why no request could be about these keys, with these options, or nil.
func (w wanted) wrong(options Options) error {
	refused := func(code, text string) error {
		return &Error{Kind: ErrRequestRefused, Key: w.first(), Code: code, Detail: text}
	}
	for _, name := range w.names {
		if path("", name) == "" {
			e := refused("invalid_key", fmt.Sprintf("%q is no key: it is a text in UTF-8, without segments that are empty, . or ..", name)).(*Error)
			e.Key = name
			return e
		}
	}
	if w.isSeveral() && (options.Slots != 0 || options.Units != 0 || options.Shared) {
		return refused("", "each of several keys has its own share: set it in its Key")
	}
	numbers := map[string]int64{}
	for _, name := range w.names {
		numbers[name] = longestNumber
	}
	ask := w.refresh(numbers, map[string]any{"ttl_ms": longestNumber})
	if text, _ := json.Marshal(ask.options); w.isSeveral() && len(text) > mostBytes {
		// They could be acquired, and neither renewed nor released.
		return refused("", fmt.Sprintf("the %d keys are too long together: a request has at most %d bytes", len(w.names), mostBytes))
	}
	return nil
}

func (w wanted) acquire(options map[string]any) request {
	ask := request{method: http.MethodPost, path: path("/locks/", w.first()), key: w.first(), options: options}
	if w.isSeveral() {
		ask.path, options["keys"] = "/locks", w.claimed
	}
	return ask
}

func (w wanted) refresh(numbers map[string]int64, options map[string]any) request {
	ask := request{method: http.MethodPut, path: path("/locks/", w.first()) + "/refresh", key: w.first(), options: options}
	if w.isSeveral() {
		ask.path, options["leases"] = "/locks/refresh", w.leases(numbers)
	} else {
		options["fencing_token"] = numbers[w.first()]
	}
	return ask
}

// release ends the leases with these numbers, or without them whatever the token has.
func (w wanted) release(numbers map[string]int64) request {
	ask := request{method: http.MethodDelete, path: path("/locks/", w.first()), key: w.first()}
	if w.isSeveral() {
		ask.path, ask.options = "/locks", map[string]any{"leases": w.leases(numbers)}
	} else if number := numbers[w.first()]; number != 0 {
		ask.query = fmt.Sprintf("fencing_token=%d", number)
	}
	return ask
}

func (w wanted) leases(numbers map[string]int64) []namedLease {
	all := []namedLease{}
	for _, name := range w.names {
		all = append(all, namedLease{name, numbers[name]})
	}
	return all
}

// A keyGrant is a lease in a grant.
type keyGrant struct {
	Key          string
	FencingToken int64 `json:"fencing_token"`
	Capped       bool  // The max_hold of the key has shortened the TTL.
	Slot         int
}

// of returns the leases of a grant, or nil if they are not those of these keys; with numbers those with these numbers.
func (g *grant) of(w wanted, numbers map[string]int64) []keyGrant {
	leases := g.Leases
	if !w.isSeveral() {
		leases = []keyGrant{g.keyGrant}
	}
	has := map[string]bool{}
	for _, one := range leases {
		if one.FencingToken <= 0 || numbers != nil && numbers[one.Key] != one.FencingToken {
			return nil
		}
		has[one.Key] = true
	}
	for _, name := range w.names {
		if !has[name] {
			return nil
		}
	}
	if len(leases) != len(w.names) {
		return nil
	}
	return leases
}
