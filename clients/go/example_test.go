package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	lockkeeper "lockkeeper.example/go"
)

func write(ctx context.Context, part int, fence int64) error { return ctx.Err() }

func Example() {
	client, err := lockkeeper.New(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	options := lockkeeper.Options{TTL: 30 * time.Second, Wait: time.Minute}
	err = client.WithLock(ctx, "report", options, func(ctx context.Context, l *lockkeeper.Lease) error {
		for part := 1; part <= 3; part++ {
			if err := write(ctx, part, l.FencingToken()); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil:
		fmt.Println("done")
	case errors.Is(err, lockkeeper.ErrLeaseLost):
		fmt.Println("another client may have been at work as well:", err)
	case errors.Is(err, lockkeeper.ErrLockBusy):
		fmt.Println("not now:", err)
	default:
		fmt.Println(err)
	}
	// Output: done
}

func ExampleClient_TryLock() {
	client, err := lockkeeper.New(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	lease, err := client.TryLock(ctx, "import", lockkeeper.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	_, err = client.TryLock(ctx, "import", lockkeeper.Options{})
	var busy *lockkeeper.Error
	if errors.As(err, &busy) && errors.Is(err, lockkeeper.ErrLockBusy) {
		fmt.Println("held by", busy.Owner)
	}
	// Output: held by web-1
}

func ExampleLease_StillMine() {
	client, err := lockkeeper.New(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = client.WithLock(context.Background(), "index", lockkeeper.Options{}, func(ctx context.Context, lease *lockkeeper.Lease) error {
		if !lease.StillMine(5 * time.Second) {
			return lease.Err() // a step that takes 5 seconds and cannot be stopped would not fit
		}
		fmt.Println("a long step")
		return nil
	})
	fmt.Println(err)
	// Output:
	// a long step
	// <nil>
}

func ExampleClient_Get() {
	client, err := lockkeeper.New(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	status, err := client.Get(context.Background(), "report")
	fmt.Println(status.Held, err)
	// Output: false <nil>
}
