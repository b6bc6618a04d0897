package lockkeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	grace      = 5 * time.Second        // for an answer, besides a wait: then the connection counts as silent
	moment     = 250 * time.Millisecond // of an end that its caller does not wait for: a service that answers is told by then
	longestEnd = 8 * time.Second        // of all that goes on behind a caller
)

var start = time.Now()

// A request is a GET without a method. The key, or the prefix of a list, is for errors.
type request struct {
	method, path, query, key, token string
	options                         map[string]any
}

var segmentsToResolve = regexp.MustCompile(`(^|/)\.{0,2}(/|$)`)

// path is the path of a key, or empty for one that would become another key: JSON has UTF-8 alone, and a proxy resolves
// segments.
func path(under, key string) string {
	if !utf8.ValidString(key) || segmentsToResolve.MatchString(key) {
		return ""
	}
	return under + strings.NewReplacer("%2F", "/", "+", "%2B").Replace(url.PathEscape(key))
}

// send sends one request, and reads the answer: a 204 if into is nil. An answer that is not good is of a gateway, or
// to another request. The errors are of type *Error.
func (c *Client) send(ctx context.Context, within time.Duration, r request, into any, isGood func() bool) error {
	if c == nil || c.http == nil {
		return &Error{Kind: ErrRequestRefused, Key: r.key, Detail: "this Client has no settings: make it with New"}
	}
	if r.path == "" {
		return &Error{Kind: ErrRequestRefused, Key: r.key, Code: "invalid_key",
			Detail: fmt.Sprintf("%q is no key: it is a text in UTF-8, without segments that are empty, . or ..", r.key)}
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
	asked.Header = c.header()
	if r.token != "" {
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
		return problem(r.key, answer, asked.Header.Get("Authorization") != "", text)
	case ctx.Err() != nil:
		return &Error{Kind: ctx.Err(), Key: r.key, Detail: "no answer before that", OutcomeUnknown: true}
	case limited.Err() != nil:
		err = fmt.Errorf("timeout after %.1f s", within.Seconds())
	}
	c.http.CloseIdleConnections() // they may be as dead: the next attempt dials
	var network *net.OpError
	told, isFinal := inWords(err)
	e := &Error{Kind: ErrServiceUnavailable, Key: r.key, Detail: fmt.Sprintf("no answer from %s: %s", c.url, told)}
	if isFinal {
		e.Kind = ErrRequestRefused
	}
	e.OutcomeUnknown = !isFinal && !(errors.As(err, &network) && network.Op == "dial")
	return e
}

// kinds are those of the service's codes that have one of their own.
var kinds = map[string]error{"lock_held": ErrLockBusy, "lock_lost": ErrLeaseLost, "wait_cancelled": ErrWaitCancelled,
	"too_many_waiters": ErrLockBusy} // The key is held, and its line is full.

// problem is the error in an answer. A gateway's answer has no type of the service, and proves nothing.
func problem(key string, answer *http.Response, hasAPIKey bool, text []byte) error {
	var p struct {
		Type, Code, Detail, Owner, Outcome string
		RetryAfter                         time.Duration `json:"retry_after_ms"`
		Mine                               bool
		namedLease
		Lost []namedLease
	}
	status := answer.StatusCode
	isOurs := json.Unmarshal(text, &p) == nil && p.Code != "" && p.Type == "urn:lockkeeper:"+p.Code
	e := &Error{Kind: ErrRequestRefused, Key: key, Status: status, OutcomeUnknown: true}
	if status < 300 || status >= 500 || status == 429 || !isOurs && (status == 408 || status == 409) {
		e.Kind = ErrServiceUnavailable
	}
	if !isOurs {
		e.Detail = fmt.Sprintf("the answer is %d and not from lockkeeper", status)
		if e.Kind == ErrRequestRefused {
			e.Detail += "; check the URL, " + answer.Request.URL.Scheme + "://" + answer.Request.URL.Host
		}
		return e
	}
	e.Detail, e.Code, e.Owner, e.RetryAfter = p.Detail, p.Code, p.Owner, p.RetryAfter*time.Millisecond
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && p.Code == "superseded" {
		e.pause = time.Duration(seconds) * time.Second
	}
	if kind := kinds[p.Code]; kind != nil {
		e.Kind = kind
	}
	if p.Key != "" { // Of several the one that it is about.
		e.Key = p.Key
	}
	if p.Mine || p.Code == "lock_lost" {
		e.others = append(e.others, p.namedLease)
	}
	for place, one := range p.Lost {
		if e.lost, e.others = append(e.lost, one.Key), append(e.others, one); place == 0 {
			e.Key = one.Key
		}
	}
	if p.Mine || p.Code == "superseded" { // Another request of the token has a lease, or its place in line.
		e.Kind = ErrServiceUnavailable
	}
	if e.Kind != ErrLockBusy {
		e.Detail = fmt.Sprintf("%s (%d %s)", p.Detail, status, p.Code)
	}
	if e.Kind == ErrRequestRefused {
		e.Detail = refusal(p.Code, e.Detail, hasAPIKey)
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
	return longer(time.Second/2, shorter(left/3*2, grace))
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
