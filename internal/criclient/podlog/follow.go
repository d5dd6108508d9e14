package podlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// endPoll is how often AwaitEnd asks for the container's state.
const endPoll = 200 * time.Millisecond

// AwaitEnd returns a channel for Options.Ended. It is closed when the container has
// ended, when the runtime does not know it any more, or when ctx ends. A runtime that
// cannot answer, as while it restarts, is asked again: the container runs on.
func AwaitEnd(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, id string) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(endPoll)
		defer tick.Stop()
		for {
			resp, err := runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			if errors.Is(err, errs.NotFound) || resp.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended
}

// ParseSince reads the value of a flag --since: a duration before now, seconds of Unix
// time, or a time in RFC 3339 or one of its shorter forms. A time without a zone is in
// that of now. "" is the zero time. Invalid for anything else.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if before, err := time.ParseDuration(text); err == nil {
		return now.Add(-before), nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		return time.UnixMilli(int64(seconds * 1000)), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02T15", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %q is neither a duration (42m) nor a time (2006-01-02T15:04:05Z): %w", text, errs.Invalid)
}
