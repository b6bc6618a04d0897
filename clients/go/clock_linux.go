package lockkeeper

import (
	"syscall"
	"time"
	"unsafe"
)

// now is a moment on CLOCK_BOOTTIME (7), which runs on while the machine is suspended, unlike Go's clock.
func now() time.Duration {
	var read syscall.Timespec
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 7, uintptr(unsafe.Pointer(&read)), 0); failed != 0 {
		return time.Since(start) // a sandbox that forbids the call
	}
	return time.Duration(read.Nano())
}
