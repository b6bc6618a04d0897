//go:build !linux

package lockkeeper

import "time"

// now is a moment on Go's monotonic clock, which may stop while the machine is suspended.
func now() time.Duration { return time.Since(start) }
