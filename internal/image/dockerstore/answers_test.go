package dockerstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/jsonstream"

	"github.com/berthrun/berth/internal/errs"
)

// TestAnswersOfPulls: engines send faults of registries as text in the stream.
func TestAnswersOfPulls(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		messages     int
		kind         error
	}{
		{"success", `{"status":"Pulling"}` + "\n\n" + `{"status":"done","id":"a"}`, 2, nil},
		{"an unknown field", `{"status":"x","new":{"a":[1]}}`, 1, nil},
		{"absent", `{"errorDetail":{"message":"manifest unknown: manifest unknown"},"error":"manifest unknown"}`, 0, errs.NotFound},
		{"denied", `{"status":"x"}` + "\n" + `{"errorDetail":{"message":"unauthorized: access denied"}}`, 1, errs.Denied},
		{"the registry is down", `{"errorDetail":{"message":"received unexpected HTTP status: 503 Service Unavailable"}}`, 0, errs.Unavailable},
		{"the disk is full", `{"errorDetail":{"message":"write /x: no space left on device"}}`, 0, errs.Exhausted},
		{"another platform", `{"errorDetail":{"message":"no matching manifest for linux/s390x in the manifest list entries"}}`, 0, errs.Unsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := 0
			err := readMessages(strings.NewReader(c.stream), func(jsonstream.Message) { seen++ })
			if seen != c.messages || c.kind == nil && err != nil || c.kind != nil && !errors.Is(err, c.kind) {
				t.Errorf("%d messages, error %v; want %d, %v", seen, err, c.messages, c.kind)
			}
		})
	}
}

func TestGarbageOfAnEngine(t *testing.T) {
	for _, stream := range []string{"<html>", `{"status":`, strings.Repeat("x", 2*maxMessage), "\x00\x01"} {
		if err := readMessages(strings.NewReader(stream), func(jsonstream.Message) {}); err == nil {
			t.Errorf("%.20q is read as messages", stream)
		}
	}
}

// TestDigestsAreNoTags: engines with the containerd image store list a digest as a tag.
func TestDigestsAreNoTags(t *testing.T) {
	digest := "busybox@sha256:" + strings.Repeat("a", 64)
	if got := fullTags([]string{"busybox:1", digest, "<none>:<none>"}); len(got) != 1 || got[0] != "docker.io/library/busybox:1" {
		t.Errorf("tags %v", got)
	}
	if got := fullNames([]string{digest}); len(got) != 1 {
		t.Errorf("digests %v", got)
	}
}
