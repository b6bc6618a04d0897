// Package lockkeeper is a client of the lock service lockkeeper: leases with fencing tokens over HTTP, which are
// renewed while the work goes on. [Client.WithLock] is what most programs need.
package lockkeeper

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
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

	other int64         // the number of the lease that the token has, if it is not the one that the request is about
	pause time.Duration // before the next request, if this one was superseded
}

// isNo says whether after this answer the token has no lease, for certain. A refusal says nothing of earlier requests.
func (e *Error) isNo() bool { return e.Code != "" && !e.OutcomeUnknown && e.Kind != ErrRequestRefused }

func (e *Error) Error() string {
	text := fmt.Sprintf("lockkeeper: %q: %v (%s)", e.Key, e.Kind, e.Detail)
	if e.Work != nil {
		text += "; the work ended with: " + e.Work.Error()
	}
	return text
}

// Is reports whether target is the kind of this error.
func (e *Error) Is(target error) bool { return target == e.Kind }

// Unwrap returns the error of the work.
func (e *Error) Unwrap() error { return e.Work }

// A Config says how to reach the service. What is empty comes from the environment, as for the command line.
type Config struct {
	URL        string // http://, https:// or unix:FILE; or LOCKKEEPER_URL; http://127.0.0.1:8080 if both are empty
	APIKey     string // or APIKeyFile, LOCKKEEPER_API_KEY_FILE, LOCKKEEPER_API_KEY, in this order
	APIKeyFile string // a file with the API key
	CA         string // a PEM file with the only authorities to trust; or LOCKKEEPER_CA
	Owner      string // the name of this client, shown to others; HOST:PID if empty

	// Logf hears of what no caller is told, such as a lease that could not be released; log.Printf if nil.
	Logf func(format string, values ...any)
}

// A Client reaches one service. Several goroutines may use it at once. A program needs one, and never closes it.
type Client struct {
	url, base, owner string // url is for messages
	http             *http.Client
	header           func() http.Header // a function, so that no dump of a client shows the API key
	logf             func(string, ...any)
}

var serviceURL = regexp.MustCompile(`^https?://[^/?#@\s]+(/[^?#\s]*)?$`)

// New makes a client, and sends nothing. The error says which setting is wrong.
func New(config Config) (*Client, error) {
	address := strings.TrimRight(setting(config.URL, os.Getenv("LOCKKEEPER_URL"), "http://127.0.0.1:8080"), "/")
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	dial, base := dialer.DialContext, address
	if file := strings.TrimPrefix(address, "unix:"); file != address && file != "" {
		base = "http://localhost"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", file) }
	}
	if _, err := url.Parse(base); err != nil || !serviceURL.MatchString(base) || strings.HasSuffix(base, "/locks") {
		return nil, errors.New("lockkeeper: the URL has to be like http://host:8080 or unix:/run/lockkeeper.sock, " +
			"without a user, a query and /locks")
	}
	secret := config.APIKey
	if file := setting(config.APIKeyFile, os.Getenv("LOCKKEEPER_API_KEY_FILE")); secret == "" && file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("lockkeeper: the API key: %w", err)
		}
		if secret = strings.TrimRight(string(text), "\r\n"); secret == "" {
			return nil, fmt.Errorf("lockkeeper: %s has no API key", file)
		}
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if secret = setting(secret, os.Getenv("LOCKKEEPER_API_KEY")); strings.ContainsAny(secret, "\r\n\x00") {
		return nil, errors.New("lockkeeper: the API key has a line break")
	} else if secret != "" {
		header.Set("Authorization", "Bearer "+secret)
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := setting(config.CA, os.Getenv("LOCKKEEPER_CA")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("lockkeeper: the authorities: %w", err)
		}
		if trust.RootCAs = x509.NewCertPool(); !trust.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("lockkeeper: %s has no certificate in PEM", file)
		}
	}
	host, _ := os.Hostname()
	client := &Client{url: address, base: base, header: header.Clone, logf: config.Logf,
		owner: setting(config.Owner, fmt.Sprintf("%s:%d", host, os.Getpid()))}
	if client.logf == nil {
		client.logf = log.Printf
	}
	client.http = &http.Client{ // Idle for less than the service allows. No proxy: it would see the tokens.
		Transport: &http.Transport{DialContext: dial, TLSClientConfig: trust, MaxIdleConnsPerHost: 32,
			IdleConnTimeout: 20 * time.Second, TLSHandshakeTimeout: 5 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return client, nil
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

// How long to go on with a service that does not answer, besides a wait.
const grace = 5 * time.Second

var start = time.Now()

// A request is a GET without a method. The key, or the prefix of a list, is for errors.
type request struct {
	method, path, query, key, token string
	options                         map[string]any
}

var segmentsToResolve = regexp.MustCompile(`(^|/)\.{0,2}(/|$)`)

// path is the path of a key, or empty for one whose segments a proxy would resolve, to another key.
func path(under, key string) string {
	if segmentsToResolve.MatchString(key) {
		return ""
	}
	return under + strings.NewReplacer("%2F", "/", "+", "%2B").Replace(url.PathEscape(key))
}

// send sends one request, and reads the answer: a 204 if into is nil. An answer that is not good is of a gateway, or
// to another request. The errors are of type *Error.
func (c *Client) send(ctx context.Context, within time.Duration, r request, into any, isGood func() bool) error {
	if r.path == "" {
		return &Error{Kind: ErrRequestRefused, Key: r.key, Code: "invalid_key", Detail: "a segment is empty, . or .."}
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var body bytes.Buffer
	if r.options != nil {
		json.NewEncoder(&body).Encode(r.options)
	}
	asked, err := http.NewRequestWithContext(limited, r.method, c.base+r.path, &body)
	if err != nil {
		return &Error{Kind: ErrRequestRefused, Key: r.key, Detail: err.Error()}
	}
	asked.URL.RawQuery = r.query
	if asked.Header = c.header(); r.token != "" {
		asked.Header.Set("Lock-Token", r.token)
	}
	var text []byte
	answer, err := c.http.Do(asked)
	if err == nil {
		defer answer.Body.Close()
		text, err = io.ReadAll(io.LimitReader(answer.Body, 8<<20))
	}
	switch {
	case err == nil && into == nil && answer.StatusCode == http.StatusNoContent:
		return nil
	case err == nil && into != nil && answer.StatusCode/100 == 2 && json.Unmarshal(text, into) == nil && isGood():
		return nil
	case err == nil:
		return problem(r.key, answer.StatusCode, answer.Header.Get("Retry-After"), text)
	case ctx.Err() != nil:
		return &Error{Kind: ctx.Err(), Key: r.key, Detail: "no answer before that", OutcomeUnknown: true}
	case limited.Err() != nil:
		err = fmt.Errorf("timeout after %v", within.Round(time.Millisecond))
	case errors.Unwrap(err) != nil: // without the URL, which repeats the key
		err = errors.Unwrap(err)
	}
	c.http.CloseIdleConnections() // they may be as dead: the next attempt dials
	var network *net.OpError
	isUnsent := errors.As(err, &network) && network.Op == "dial"
	detail := fmt.Sprintf("no answer from %s: %v", c.url, err)
	if strings.Contains(detail, "x509: ") { // The certificate is not trusted.
		return &Error{Kind: ErrRequestRefused, Key: r.key, Detail: detail + "; see Config.CA"}
	}
	return &Error{Kind: ErrServiceUnavailable, Key: r.key, Detail: detail, OutcomeUnknown: !isUnsent}
}

// kinds are those of the service's codes that have one of their own.
var kinds = map[string]error{"lock_held": ErrLockBusy, "lock_lost": ErrLeaseLost, "wait_cancelled": ErrWaitCancelled,
	"too_many_waiters": ErrLockBusy} // The key is held, and its line is full.

// problem is the error in an answer. A gateway's answer has no type of the service, and proves nothing.
func problem(key string, status int, after string, text []byte) error {
	var p struct {
		Type, Code, Detail, Owner, Outcome string
		RetryAfter                         time.Duration `json:"retry_after_ms"`
		Mine                               bool
		FencingToken                       int64 `json:"fencing_token"`
	}
	isOurs := json.Unmarshal(text, &p) == nil && p.Code != "" && p.Type == "urn:lockkeeper:"+p.Code
	e := &Error{Kind: ErrRequestRefused, Key: key, Status: status, OutcomeUnknown: true}
	if status < 300 || status >= 500 || status == 429 || !isOurs && (status == 408 || status == 409) {
		e.Kind = ErrServiceUnavailable
	}
	if !isOurs {
		e.Detail = fmt.Sprintf("the answer, a %d, is not from lockkeeper or to another request", status)
		return e
	}
	e.Detail, e.Code, e.Owner, e.RetryAfter = p.Detail, p.Code, p.Owner, p.RetryAfter*time.Millisecond
	if seconds, err := strconv.Atoi(after); err == nil && p.Code == "superseded" {
		e.pause = time.Duration(seconds) * time.Second
	}
	if kind := kinds[p.Code]; kind != nil {
		e.Kind = kind
	}
	if p.Mine || p.Code == "lock_lost" {
		e.other = p.FencingToken
	}
	if p.Mine || p.Code == "superseded" { // Another request of the token has a lease, or its place in line.
		e.Kind = ErrServiceUnavailable
	}
	isCertain := status == 429 || p.Outcome == "not_acquired" || p.Code == "draining" || p.Code == "not_ready"
	e.OutcomeUnknown = e.Kind == ErrServiceUnavailable && !isCertain
	return e
}

// insist repeats a request that may be repeated, while the service is unavailable.
func (c *Client) insist(ctx context.Context, request func(within time.Duration) error) error {
	until := now() + grace
	for failures := 0; ; failures++ {
		err := request(patience(until - now()))
		pause := backoff(failures)
		if !errors.Is(err, ErrServiceUnavailable) || now()+pause >= until || !sleep(ctx, pause) {
			return err
		}
	}
}

// patience is the limit of a request. It leaves time for a repeat, because only the answer may have been lost.
func patience(left time.Duration) time.Duration {
	return longer(time.Second/2, shorter(left/3*2, 10*time.Second))
}

// backoff is the pause after so many failures, with jitter from the clock: shorter than the service keeps a place in
// line.
func backoff(failures int) time.Duration {
	pause := shorter(25*time.Millisecond<<shorter(time.Duration(failures), 5), time.Second/2)
	return pause + now()%pause
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
	return ctx.Err() == nil
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func longer(a, b time.Duration) time.Duration { return a + b - shorter(a, b) }
