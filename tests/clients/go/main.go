// The driver of the Go client for tests/clients/situations.py: clients/SITUATIONS.md has its words.
//
// Usage: driver MODE KEY [ttl=30s] [wait=10s] [seconds=2] [after=300ms]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	lockkeeper "lockkeeper.example/go"
)

var errOfWork = errors.New("the work failed")

type settings struct {
	mode, key string
	also      string // the second of two keys, with the share of the options
	options   lockkeeper.Options
	seconds   time.Duration
	after     time.Duration
}

func main() {
	set, err := read(os.Args[1:])
	if err != nil {
		fatal(err)
	}
	client, err := lockkeeper.New(lockkeeper.Config{})
	if err != nil {
		fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var cancel context.CancelFunc
	switch set.mode {
	case "cancel":
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(set.after, cancel)
	case "exit":
		time.AfterFunc(set.after, func() { os.Exit(0) })
	}
	word, err := run(ctx, client, set)
	client.Close()
	if err != nil {
		fatal(err)
	}
	fmt.Println(word)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func read(arguments []string) (settings, error) {
	if len(arguments) < 2 {
		return settings{}, errors.New("usage: driver MODE KEY [name=value...]")
	}
	set := settings{mode: arguments[0], key: arguments[1], seconds: 2 * time.Second, after: 300 * time.Millisecond}
	for _, argument := range arguments[2:] {
		name, value, _ := strings.Cut(argument, "=")
		var err error
		switch name {
		case "ttl":
			set.options.TTL, err = time.ParseDuration(value)
		case "wait":
			set.options.Wait, err = time.ParseDuration(value)
		case "also":
			set.also = value
		case "slots":
			set.options.Slots, err = strconv.Atoi(value)
		case "units":
			set.options.Units, err = strconv.Atoi(value)
		case "after":
			set.after, err = time.ParseDuration(value)
		case "seconds":
			var seconds float64
			seconds, err = strconv.ParseFloat(value, 64)
			set.seconds = time.Duration(seconds * float64(time.Second))
		default:
			err = fmt.Errorf("unknown option %s", name)
		}
		if err != nil {
			return set, err
		}
	}
	return set, nil
}

// run returns the outcome, or an error that has no word.
func run(ctx context.Context, client *lockkeeper.Client, set settings) (string, error) {
	switch set.mode {
	case "fork":
		return "done", nil
	case "get":
		status, err := client.Get(ctx, set.key)
		if err == nil && status.Held {
			return "held", nil
		} else if err == nil {
			return "free", nil
		}
		return outcome(err)
	case "twice":
		first := set
		first.seconds = 0
		if err := once(ctx, client, first); err != nil {
			return outcome(err)
		}
	}
	err := once(ctx, client, set)
	if set.mode == "throw" && errors.Is(err, errOfWork) && !errors.Is(err, lockkeeper.ErrLeaseLost) {
		err = nil
	}
	return outcome(err)
}

func once(ctx context.Context, client *lockkeeper.Client, set settings) error {
	lock := func(work func(context.Context, *lockkeeper.Lease) error) error {
		if set.also == "" {
			return client.WithLock(ctx, set.key, set.options, work)
		}
		second := lockkeeper.Key{Name: set.also, Slots: set.options.Slots, Units: set.options.Units}
		set.options.Slots, set.options.Units = 0, 0
		return client.WithLockAll(ctx, append(lockkeeper.Keys(set.key), second), set.options, work)
	}
	return lock(func(ctx context.Context, lease *lockkeeper.Lease) error {
		fmt.Println("acquired", lease.FencingTokenOf(set.key))
		switch set.mode {
		case "throw":
			return errOfWork
		case "odd":
			status, err := client.Get(ctx, set.key)
			if err == nil && (!status.Held || status.FencingToken != lease.FencingTokenOf(set.key)) {
				return fmt.Errorf("another key is held: %+v", status)
			}
			return err
		case "block":
			time.Sleep(set.seconds)
			return nil
		}
		return work(ctx, lease, set.seconds)
	})
}

// work goes on in small steps until it is told to stop.
func work(ctx context.Context, lease *lockkeeper.Lease, seconds time.Duration) error {
	for end := time.Now().Add(seconds); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			if lease.Err() != nil {
				fmt.Println("told")
			}
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func outcome(err error) (string, error) {
	words := []struct {
		kind error
		word string
	}{
		{lockkeeper.ErrLeaseLost, "lost"},
		{lockkeeper.ErrLockBusy, "busy"},
		{lockkeeper.ErrServiceUnavailable, "unavailable"},
		{lockkeeper.ErrRequestRefused, "refused"},
		{lockkeeper.ErrWaitCancelled, "cancelled"},
		{context.Canceled, "cancelled"},
		{nil, "done"},
	}
	for _, row := range words {
		if errors.Is(err, row.kind) {
			return row.word, nil
		}
	}
	return "", err
}
