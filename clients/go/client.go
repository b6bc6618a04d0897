// Package lockkeeper is a client of the lock service lockkeeper: leases with fencing tokens over HTTP, which are
// renewed while the work goes on. [Client.WithLock] is what most programs need.
package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Forever is a wait without an end; its context can still end it.
const Forever time.Duration = math.MaxInt64

// The kinds of failures, for errors.Is. A claim whose context ended is an error of the kind context.Canceled or
// context.DeadlineExceeded. With errors.As an [*Error] has the details.
var (
	ErrLockBusy           = errors.New("another client holds the key: give up, or wait longer")
	ErrLeaseLost          = errors.New("the lease was lost: stop, as another client may be at work")
	ErrServiceUnavailable = errors.New("the service is unavailable: retry later")
	ErrRequestRefused     = errors.New("the request is refused: correct it")
	ErrWaitCancelled      = errors.New("the claim was released or used elsewhere while it waited: stop waiting")
)

// An Error is what the methods of this package return. It never contains a token or an API key.
type Error struct {
	Kind       error         // one of the variables above, or the error of a context
	Key        string        // the key, or the prefix of a list
	Detail     string        // what happened, for people
	Status     int           // the HTTP status; 0 without an answer
	Code       string        // the code of the service's problem, such as lock_held; empty if it sent none
	Owner      string        // the holder of a busy key, as it named itself
	RetryAfter time.Duration // the time left of its lease
	Work       error         // the error of the work under a lost lease; errors.Is and errors.As see it

	// OutcomeUnknown: the request may have taken effect. Of a claim, what may be left ends by its TTL.
	OutcomeUnknown bool

	lost   []string      // of several keys those whose leases were lost
	others []namedLease  // the leases that the token has, if they are not those that the request is about; no key names the only one
	name   string        // of several keys
	pause  time.Duration // before the next request, if this one was superseded

	hasNotBegun bool // the work, before the lease was lost
}

// isNo says whether after this answer the token has no lease, for certain. A refusal says nothing of earlier requests.
func (e *Error) isNo() bool { return e.Code != "" && !e.OutcomeUnknown && e.Kind != ErrRequestRefused }

func (e *Error) Error() string { return "lockkeeper: " + e.text() }

func (e *Error) text() string {
	text := e.Detail
	switch e.Kind {
	case ErrLockBusy:
		text += "; retry later, or wait longer"
	case ErrServiceUnavailable:
		text += "; retry later"
	case ErrLeaseLost:
		then := "ended: %s; other work may overlap with yours"
		if e.hasNotBegun {
			then = "began: %s; nothing ran"
		}
		text = fmt.Sprintf("the lease on %s was lost before the work "+then, e.keys(), text)
	case ErrWaitCancelled:
		text = fmt.Sprintf("the claim on %s has ended elsewhere: %s; nothing is held", e.keys(), text)
	case context.Canceled, context.DeadlineExceeded:
		text = fmt.Sprintf("%s: %v", text, e.Kind)
	}
	if e.Work != nil {
		text += "; the work ended with: " + e.Work.Error()
	}
	return text
}

func (e *Error) keys() string { return setting(e.name, quoted([]string{e.Key})) }

// Is reports whether target is the kind of this error.
func (e *Error) Is(target error) bool { return target == e.Kind }

// Unwrap returns the error of the work.
func (e *Error) Unwrap() error { return e.Work }

// A Config says how to reach the service. What is empty comes from the environment, as for the command line.
type Config struct {
	URL        string // http://, https:// or unix:FILE; or LOCKKEEPER_URL; http://127.0.0.1:8080 if both are empty
	APIKey     string // or APIKeyFile, LOCKKEEPER_API_KEY_FILE, LOCKKEEPER_API_KEY, in this order
	APIKeyFile string // a file with the API key, which is read for each request
	CA         string // a PEM file with the only authorities to trust; or LOCKKEEPER_CA

	// PEM files of a client certificate and its key, read for each connection; or LOCKKEEPER_CERT and LOCKKEEPER_CERT_KEY.
	Cert, CertKey string

	// HTTP sends the requests, in place of a client of this package's own: with a proxy, say. It has its own settings of
	// TLS, and follows no redirects. A Timeout below 30 seconds cuts waits.
	HTTP *http.Client

	TokenPrefix string // for services with a redis.token_prefix; or LOCKKEEPER_TOKEN_PREFIX
	Owner       string // the name of this client, shown to others; HOST:PID if empty

	// Logf hears of what no caller is told, such as a lease that could not be released; log.Printf if nil.
	Logf func(format string, values ...any)
}

// Format prints the settings without the API key.
func (c Config) Format(f fmt.State, _ rune) {
	secret := ""
	if c.APIKey != "" {
		secret = "(secret)"
	}
	fmt.Fprintf(f, "{URL:%s APIKey:%s APIKeyFile:%s CA:%s Cert:%s CertKey:%s Owner:%s}", shown(c.URL), secret, c.APIKeyFile,
		c.CA, c.Cert, c.CertKey, c.Owner)
}

// A Client reaches one service. Several goroutines may use it at once. A program needs one, made by [New].
type Client struct {
	url, base, owner, prefix string // url is for messages, prefix that of the tokens
	http                     *http.Client
	header                   func() http.Header // a function, so that no dump of a client shows the API key
	logf                     func(string, ...any)
	limits                   limits
	ends                     int32 // the number of those that may go on behind their callers
}

// New makes a client, and sends nothing. The error says which setting is wrong.
func New(config Config) (*Client, error) {
	address := strings.TrimRight(setting(config.URL, os.Getenv("LOCKKEEPER_URL"), "http://127.0.0.1:8080"), "/")
	if wrong := wrongURL(address); wrong != "" {
		return nil, fmt.Errorf("lockkeeper: `%s` is not the URL of a service: %s", shown(address), wrong)
	}
	dial, base := newAddresses().connect, address
	if file := strings.TrimPrefix(address, "unix:"); file != address {
		base = "http://localhost"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", file)
		}
	}
	header, err := headerOf(config)
	if err != nil {
		return nil, err
	}
	trust, err := trustOf(config)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	client := &Client{url: address, base: base, header: header, logf: config.Logf, limits: usual,
		prefix: setting(config.TokenPrefix, os.Getenv("LOCKKEEPER_TOKEN_PREFIX")),
		owner:  setting(config.Owner, fmt.Sprintf("%s:%d", host, os.Getpid()))}
	if client.logf == nil {
		client.logf = log.Printf
	}
	client.http = &http.Client{ // Idle for less than the service allows. No proxy: it would see the tokens.
		Transport: &http.Transport{DialContext: dial, TLSClientConfig: trust, MaxIdleConnsPerHost: 32,
			IdleConnTimeout: 20 * time.Second, TLSHandshakeTimeout: 5 * time.Second}}
	if config.HTTP != nil {
		if base != address || config.CA != "" || config.Cert != "" || config.CertKey != "" {
			return nil, errors.New("lockkeeper: Config.HTTP has settings of its own: leave out unix:, CA, Cert and CertKey")
		}
		copied := *config.HTTP
		client.http = &copied
	}
	client.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client, nil
}

// Close waits for what goes on behind callers whose contexts have ended: claims are withdrawn, and leases released. That
// takes no time with a service that answers, and 8 seconds at most. A program defers it in main.
func (c *Client) Close() {
	for end := now() + longestEnd; atomic.LoadInt32(&c.ends) > 0 && now() < end; {
		time.Sleep(5 * time.Millisecond)
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// behind does what ends a claim or a lease, and goes on with it behind a caller that is in a hurry.
func (c *Client) behind(end func()) {
	done := make(chan struct{})
	atomic.AddInt32(&c.ends, 1)
	go func() {
		defer atomic.AddInt32(&c.ends, -1)
		defer close(done)
		end()
	}()
	select {
	case <-done:
	case <-time.After(moment):
	}
}

func (c *Client) warn(format string, values ...any) {
	if c.logf != nil {
		c.logf("lockkeeper: "+format, values...)
	}
}

// setting returns the first text that is not empty.
func setting(texts ...string) string {
	if len(texts) > 1 && texts[0] == "" {
		return setting(texts[1:]...)
	}
	return texts[0]
}

// A Status is the state of a key.
type Status struct {
	Key            string
	Held           bool
	Owner          string        // of the holder, if it named itself
	FencingToken   int64         `json:"fencing_token"` // of the lease; 0 if there is none, or the key is shared
	TTL            time.Duration `json:"ttl_ms"`        // the time left of the lease
	Waiters        int           // the number of requests in line
	Holders, Slots int           // of a shared key: how many leases share it, and how many all of them allow
}

// Get returns the state of a key, held or not. Its errors are [ErrRequestRefused], [ErrServiceUnavailable] after
// 5 seconds without a good answer, or the error of ctx.
func (c *Client) Get(ctx context.Context, key string) (Status, error) {
	return get(ctx, c, request{path: path("/locks/", key), key: key}, func(read *Status) bool {
		read.TTL *= time.Millisecond
		return read.Key == key
	})
}

// List returns the held keys that begin with prefix. Its errors are those of [Client.Get]. The API key needs the
// permission read.
func (c *Client) List(ctx context.Context, prefix string) (all []Status, err error) {
	type page struct {
		Locks  []Status
		Cursor string
	}
	for query := (url.Values{"limit": {"1000"}, "prefix": {prefix}}); ; {
		ask := request{path: "/locks", query: query.Encode(), key: prefix}
		read, err := get(ctx, c, ask, func(read *page) bool { return read.Locks != nil })
		if err != nil {
			return nil, err
		}
		for _, status := range read.Locks {
			status.TTL *= time.Millisecond
			all = append(all, status)
		}
		if query.Set("cursor", read.Cursor); read.Cursor == "" {
			return all, nil
		}
	}
}

// get reads an answer, with repeats.
func get[T any](ctx context.Context, c *Client, ask request, isGood func(*T) bool) (read T, err error) {
	err = c.insist(ctx, func(within time.Duration) error {
		read = *new(T) // nothing of an answer that was not good
		return c.send(ctx, within, ask, &read, func() bool { return isGood(&read) })
	})
	return read, err
}

// ForceRelease ends the leases of a key, whoever holds them, and returns false if nobody did. The service logs the
// reason. The API key needs the permission admin. It asks once, as a repeat could end the lease of the next client.
// Its errors are [ErrRequestRefused], or, after which it may have happened, [ErrServiceUnavailable] or that of ctx.
func (c *Client) ForceRelease(ctx context.Context, key, reason string) (bool, error) {
	ask := request{method: http.MethodDelete, path: path("/admin/locks/", key), key: key}
	if reason != "" {
		ask.query = url.Values{"reason": {reason}}.Encode()
	}
	var ended struct{ Key string }
	err := c.send(ctx, grace, ask, &ended, func() bool { return ended.Key == key })
	if errors.Is(err, ErrLeaseLost) {
		return false, nil
	}
	return err == nil, err
}
