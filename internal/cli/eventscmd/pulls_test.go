package eventscmd

import (
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
)

// TestPullsBelongToNoPod: a filter for a pod leaves out pulls, one for types those of other types.
func TestPullsBelongToNoPod(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter filter
		wants  bool
	}{
		{"all", filter{}, true},
		{"a pod", filter{pod: "web"}, false},
		{"a namespace", filter{namespace: "default"}, false},
		{"a container", filter{container: "c"}, false},
		{"events of containers", filter{types: []string{"created", "deleted"}}, false},
		{"ends of pulls", filter{types: []string{"created", pulled}}, true},
		{"another type", filter{types: []string{pulling}}, false},
		{"its ID", filter{id: "ab"}, true},
		{"another ID", filter{id: "b"}, false},
	} {
		event := pullEvent{pull{Type: pulled, ID: "abc"}}
		if got := c.filter.pulls() && c.filter.wantsPull(&event); got != c.wants {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestLinesOfPulls(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	job := berthapi.Job{Kind: "pull image", Key: "example.org/app:1", ID: "abc", Age: 1500 * time.Millisecond, FetchedBytes: 3 << 20}
	for want, u := range map[string]berthapi.JobUpdate{
		"2026-01-02T03:04:03.500Z  image      pulling  abc  example.org/app:1":                              {Job: job},
		"2026-01-02T03:04:05.000Z  image      pulled   abc  example.org/app:1  3.15MB in 1.5s":              {Job: job, Ended: true, Result: "ok"},
		"2026-01-02T03:04:05.000Z  image      pull-failed  abc  example.org/app:1  3.15MB in 1.5s: no room": {Job: job, Ended: true, Result: "failed", Error: "no room"},
	} {
		event := pullEventOf(&u, now)
		if got := event.line(); strings.TrimSpace(got) != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
