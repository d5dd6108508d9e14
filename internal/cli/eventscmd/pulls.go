package eventscmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
)

// The events of a pull.
const (
	pulling    = "pulling"
	pulled     = "pulled"
	pullFailed = "pull-failed"
)

// pullKind begins the kinds of jobs that pull an image: for a request, and again because its content was damaged.
const pullKind = "pull image"

// pullEvent is an event of a pull.
type pullEvent struct {
	Pull pull `json:"pull"`
}

type pull struct {
	Type      string    `json:"type"`
	Image     string    `json:"image"`
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"createdAt"`
	// FetchedBytes, Duration and Error are those of a pull that has ended.
	FetchedBytes int64         `json:"fetchedBytes,omitempty"`
	Duration     time.Duration `json:"duration,omitempty"`
	Error        string        `json:"error,omitempty"`
}

// followPulls calls emit with the pulls that run, and then with the beginning and the end of each. Of another runtime
// there are none.
func followPulls(ctx context.Context, berth *berthapi.Client, which *filter, emit func(event any, line string) error) error {
	seen := map[string]bool{}
	err := berth.WatchJobs(ctx, func(u berthapi.JobUpdate) error {
		if !strings.HasPrefix(u.Kind, pullKind) {
			return nil
		}
		if u.Ended {
			delete(seen, u.ID)
		} else if seen[u.ID] {
			return nil // another stage
		} else {
			seen[u.ID] = true
		}
		event := pullEventOf(&u, time.Now())
		if !which.wantsPull(&event) {
			return nil
		}
		return emit(event, event.line())
	})
	if errors.Is(err, errs.Unsupported) || ctx.Err() != nil && !errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func pullEventOf(u *berthapi.JobUpdate, now time.Time) pullEvent {
	event := pull{Type: pulling, Image: u.Key, ID: u.ID, CreatedAt: now.Add(-u.Age)}
	if u.Ended {
		event.Type, event.CreatedAt = pulled, now
		event.FetchedBytes, event.Duration, event.Error = u.FetchedBytes, u.Age, u.Error
	}
	if u.Ended && u.Result != "ok" {
		event.Type = pullFailed
	}
	return pullEvent{event}
}

// pulls reports whether the filter wants events of pulls, which belong to no pod.
func (f *filter) pulls() bool {
	wanted := func(name string) bool { return name == pulling || name == pulled || name == pullFailed }
	return f.pod == "" && f.namespace == "" && f.container == "" && (len(f.types) == 0 || slices.ContainsFunc(f.types, wanted))
}

func (f *filter) wantsPull(event *pullEvent) bool {
	return strings.HasPrefix(event.Pull.ID, f.id) && (len(f.types) == 0 || slices.Contains(f.types, event.Pull.Type))
}

// line is an event for people.
func (e *pullEvent) line() string {
	p := &e.Pull
	text := fmt.Sprintf("%s  %-9s  %-7s  %s  %s", p.CreatedAt.Format(timeFormat), "image", p.Type, show.ID(p.ID), p.Image)
	if p.Type == pulling {
		return text
	}
	text += fmt.Sprintf("  %s in %s", show.Size(uint64(max(p.FetchedBytes, 0))), p.Duration.Round(time.Millisecond))
	if p.Error != "" {
		text += ": " + p.Error
	}
	return text
}
