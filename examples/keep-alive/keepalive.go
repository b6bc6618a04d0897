// A lease that is renewed while the work goes on, with the standard library; Go 1.19.
//
//	service := lockService{URL: "http://localhost:8080"}
//	err := service.KeepAlive(ctx, "report", 30*time.Second, func(ctx context.Context, fence int64) error {
//		return write(ctx, fence)
//	})
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// The part of the TTL after which work without a renewal is stopped, in percent. The rest is for it
// to stop.
const usable = 80

// How long a request that was given up may still be on its way.
const onItsWay = time.Second

var (
	errHeld = errors.New("another client holds the key")
	errLost = errors.New("the lease is lost: another client may hold the key by now, or soon")
)

type lockService struct {
	URL    string
	APIKey string // may be empty
}

type grant struct {
	FencingToken int64 `json:"fencing_token"`
	TTL          int64 `json:"ttl_ms"`
}

// KeepAlive works while it holds the key. If the lease is lost, the work's context is cancelled
// before the lease ends, by this machine's clock; once the work has returned, the error is errLost.
func (s lockService) KeepAlive(
	ctx context.Context, key string, ttl time.Duration, work func(context.Context, int64) error,
) error {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	token := hex.EncodeToString(random)
	path := "/locks/" + strings.ReplaceAll(url.PathEscape(key), "+", "%2B")
	release := func() error { // after the end of ctx as well
		_, err := s.call(context.Background(), 5*time.Second, http.MethodDelete, path, token, nil)
		return err
	}
	sent := time.Now()
	lease, err := s.call(ctx, 10*time.Second, http.MethodPost, path, token, map[string]int64{"ttl_ms": ttl.Milliseconds()})
	if err != nil {
		if err != errHeld {
			// It may have been granted, or be on its way to the service, behind a proxy.
			for until := time.Now().Add(onItsWay); release() == errHeld && time.Now().Before(until); {
				time.Sleep(onItsWay / 4)
			}
		}
		return err
	}

	working, stop := context.WithCancel(ctx)
	defer stop()
	var lost atomic.Bool
	ends := time.AfterFunc(time.Until(sent.Add(lease.usable())), func() {
		lost.Store(true)
		stop()
	})
	defer ends.Stop()
	go func() {
		pause := ttl / 3
		for {
			select {
			case <-working.Done():
				return
			case <-time.After(pause):
			}
			sent := time.Now()
			again, err := s.call(working, ttl/3, http.MethodPut, path+"/refresh", token, map[string]int64{"fencing_token": lease.FencingToken})
			switch {
			case err == nil && ends.Stop(): // unless it has ended meanwhile
				ends.Reset(time.Until(sent.Add(again.usable())))
				pause = ttl / 3
			case err == errHeld:
				lost.Store(true)
				stop()
			default:
				pause = ttl / 20 // No answer, or no good one: again, until the end.
			}
		}
	}()
	err = work(working, lease.FencingToken)
	if lost.Load() || release() == errHeld && err == nil {
		return errLost
	}
	return err
}

func (g grant) usable() time.Duration {
	return time.Duration(g.TTL) * time.Millisecond * usable / 100
}

// call returns errHeld for every 409: the key is held, or the lease is lost.
func (s lockService) call(
	ctx context.Context, limit time.Duration, method, path, token string, options any,
) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body, err := json.Marshal(options)
	if err != nil {
		return grant{}, err
	}
	request, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return grant{}, err
	}
	request.Header.Set("Lock-Token", token)
	if s.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+s.APIKey)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return grant{}, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusNoContent:
		return grant{}, nil
	case http.StatusOK, http.StatusCreated:
		var given grant
		err := json.NewDecoder(answer.Body).Decode(&given)
		return given, err
	case http.StatusConflict:
		return grant{}, errHeld
	default:
		return grant{}, fmt.Errorf("%s %s: %s", method, path, answer.Status)
	}
}
