package lockkeeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	grace     = 5 * time.Second // how long to go on with a service that does not answer, besides a wait
	maxAnswer = 8 << 20         // bytes; above the largest page of a list
)

var start = time.Now()

type request struct {
	method, path, key, token string
	options                  map[string]any
}

// path is the path of a key. It refuses segments that a proxy would resolve, to another key.
func path(key string) (string, error) {
	segments := strings.Split(key, "/")
	for i, segment := range segments {
		if segment == "" || segment == "." || segment == ".." {
			return "", &Error{Kind: ErrRequestRefused, Key: key, Code: "invalid_key", Detail: "a segment is empty, . or .."}
		}
		segments[i] = strings.ReplaceAll(url.PathEscape(segment), "+", "%2B")
	}
	return "/locks/" + strings.Join(segments, "/"), nil
}

// send sends one request, and reads the answer: a 204 if into is nil. An answer that is not good is of a gateway, or
// to another request. The errors are of type *Error.
func (c *Client) send(ctx context.Context, within time.Duration, r request, into any, isGood func() bool) error {
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
	asked.Header.Set("Content-Type", "application/json")
	if r.token != "" {
		asked.Header.Set("Lock-Token", r.token)
	}
	if *c.apiKey != "" {
		asked.Header.Set("Authorization", "Bearer "+*c.apiKey)
	}
	var text []byte
	answer, err := c.http.Do(asked)
	if err == nil {
		defer answer.Body.Close()
		text, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	}
	var onTheWay *url.Error
	switch {
	case err == nil && into == nil && answer.StatusCode == http.StatusNoContent:
		return nil
	case err == nil && into != nil && answer.StatusCode/100 == 2 && json.Unmarshal(text, into) == nil && isGood():
		return nil
	case err == nil:
		return problem(r.key, answer, text)
	case ctx.Err() != nil:
		return &Error{Kind: ctx.Err(), Key: r.key, Detail: "no answer before that", OutcomeUnknown: true}
	case limited.Err() != nil:
		err = fmt.Errorf("timeout after %v", within.Round(time.Millisecond))
	case errors.As(err, &onTheWay):
		err = onTheWay.Err
	}
	c.http.CloseIdleConnections() // they may be as dead: the next attempt dials
	var network *net.OpError
	isUnsent := errors.As(err, &network) && network.Op == "dial"
	detail := fmt.Sprintf("no answer from %s: %v", c.url, err)
	return &Error{Kind: ErrServiceUnavailable, Key: r.key, Detail: detail, OutcomeUnknown: !isUnsent}
}

// problem is the error in an answer. A gateway's answer has no type of the service, and proves nothing.
func problem(key string, answer *http.Response, text []byte) error {
	var p struct {
		Type, Code, Detail, Owner, Outcome string
		RetryAfter                         time.Duration `json:"retry_after_ms"`
	}
	status := answer.StatusCode
	isTemporary := status < 300 || status >= 500 || status == 429
	pause, _ := time.ParseDuration(answer.Header.Get("Retry-After") + "s")
	e := &Error{Kind: ErrRequestRefused, Key: key, Status: status, RetryAfter: pause, OutcomeUnknown: true}
	if json.Unmarshal(text, &p) != nil || p.Code == "" || p.Type != "urn:lockkeeper:"+p.Code {
		e.Detail = fmt.Sprintf("the answer, a %d, is not from lockkeeper or to another request", status)
		if isTemporary || status == 408 || status == 409 {
			e.Kind = ErrServiceUnavailable
		}
		return e
	}
	e.Detail, e.Code, e.Owner = p.Detail, p.Code, p.Owner
	e.RetryAfter = longer(pause, p.RetryAfter*time.Millisecond)
	kinds := map[string]error{"lock_held": ErrLockBusy, "lock_lost": ErrLeaseLost, "wait_cancelled": ErrWaitCancelled}
	if e.Kind = kinds[p.Code]; e.Kind == nil && isTemporary {
		e.Kind = ErrServiceUnavailable
	} else if e.Kind == nil {
		e.Kind = ErrRequestRefused
	}
	isCertain := status == 429 || p.Outcome == "not_acquired" || p.Code == "draining" || p.Code == "not_ready"
	e.OutcomeUnknown = e.Kind == ErrServiceUnavailable && !isCertain
	e.isNo = !e.OutcomeUnknown && e.Kind != ErrRequestRefused // which says nothing of earlier requests
	return e
}

// insist repeats a request that may be repeated, while the service is unavailable.
func (c *Client) insist(ctx context.Context, request func(within time.Duration) error) error {
	until := now() + grace
	for failures := 0; ; failures++ {
		err := request(patience(until - now()))
		pause := backoff(failures, err)
		if !errors.Is(err, ErrServiceUnavailable) || now()+pause >= until || !sleep(ctx, pause) {
			return err
		}
	}
}

// patience is the limit of a request. It leaves time for a repeat, because only the answer may have been lost.
func patience(left time.Duration) time.Duration {
	return longer(time.Second/2, shorter(left/3*2, 10*time.Second))
}

// backoff is the pause after so many failures, with jitter: shorter than the service keeps a place in line.
func backoff(failures int, err error) time.Duration {
	random := []byte{0}
	rand.Read(random)
	pause := shorter(25*time.Millisecond<<shorter(time.Duration(failures), 5), time.Second/2)
	pause += pause * time.Duration(random[0]) / 255
	var e *Error
	if errors.As(err, &e) {
		pause = longer(pause, shorter(e.RetryAfter, 2*time.Second))
	}
	return pause
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
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
