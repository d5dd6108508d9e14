package logs

import (
	"context"
	"time"

	"github.com/moby/moby/api/types/container"
)

// Some logging drivers hand messages to another program, such as systemd's journal. The engine
// then reports the end of a container before all of its output can be read. Looks for late messages
// follow each other after lateMin, then after twice as long. They end when lateQuiet has passed
// without one, or after lateMost at the latest.
const (
	lateMin   = 25 * time.Millisecond
	lateQuiet = 500 * time.Millisecond
	lateMost  = 10 * time.Second
)

// storesLater reports whether a container's output can be stored after its end. The drivers that
// write files of the engine's own have closed them before the engine reports the end.
func storesLater(host *container.HostConfig) bool {
	if host == nil {
		return false
	}
	switch host.LogConfig.Type {
	case "", "json-file", "local":
		return false
	}
	return true
}

// readLate reads messages that are stored after the end of a container, each look only what is
// newer than the log. An engine that cannot be read ends the looks: what it has stored was read
// before.
func (f *follower) readLate(ctx context.Context) (progressed bool) {
	last := time.Now().Add(lateMost)
	for pause, quiet := lateMin, time.Duration(0); quiet < lateQuiet && time.Now().Before(last); pause *= 2 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return progressed
		}
		quiet += pause
		found, err := f.readFrom(ctx, 0, false)
		if err != nil {
			f.failed(ctx, err)
			return progressed
		}
		if found {
			progressed, pause, quiet = true, lateMin/2, 0
		}
	}
	return progressed
}
