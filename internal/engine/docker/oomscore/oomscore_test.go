package oomscore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// fit is the score that a container gets.
func fit(t *testing.T, s *Scores, kind string, requested int) int {
	t.Helper()
	if raised := s.Fit(t.Context(), kind, requested); raised != nil {
		return *raised
	}
	return requested
}

// over returns Scores of an engine that can do what limit says when it is looked at, and its log.
func over(limit *sysproc.OOMScoreLimit, err error) (*Scores, *bytes.Buffer) {
	lines := &bytes.Buffer{}
	return New(func(context.Context) (sysproc.OOMScoreLimit, error) { return *limit, err },
		slog.New(slog.NewTextHandler(lines, nil))), lines
}

func TestFit(t *testing.T) {
	limited := func(own int) sysproc.OOMScoreLimit { return sysproc.OOMScoreLimit{Own: own, Why: "has none"} }
	for name, c := range map[string]struct {
		limit           sysproc.OOMScoreLimit
		err             error
		requested, want int
	}{
		"an engine that lowers":        {sysproc.OOMScoreLimit{Own: 0, Lowers: true}, nil, -998, -998},
		"one that cannot":              {limited(0), nil, -998, 0},
		"a higher score":               {limited(0), nil, 1000, 1000},
		"its own score":                {limited(0), nil, 0, 0},
		"an engine that is spared":     {limited(-500), nil, -998, -500},
		"above a spared engine":        {limited(-500), nil, -499, -499},
		"an engine that is not spared": {limited(300), nil, 2, 300},
		"an engine that is not found":  {sysproc.OOMScoreLimit{}, errors.New("in another namespace"), -998, -998},
	} {
		s, lines := over(&c.limit, c.err)
		if got := fit(t, s, Pause, c.requested); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if warned := strings.Contains(lines.String(), "level=WARN"); warned != (c.want != c.requested) {
			t.Errorf("%s: logged %q", name, lines)
		}
		if warning := s.Warning(t.Context()); (warning == "") != (c.limit.Lowers || c.err != nil) {
			t.Errorf("%s: warning %q", name, warning)
		}
	}
}

// TestWarningOfEachKind: the log has one line for pause containers, and one for containers.
func TestWarningOfEachKind(t *testing.T) {
	s, lines := over(&sysproc.OOMScoreLimit{Why: "has none"}, nil)
	for range 3 {
		fit(t, s, Pause, -998)
		fit(t, s, Containers, -997)
		fit(t, s, Containers, -5)
	}
	if got := strings.Count(lines.String(), "\n"); got != 2 {
		t.Errorf("%d lines:\n%s", got, lines)
	}
	for _, want := range []string{
		`of="pause containers" requested=-998 applied=0 reason="has none"`, "of=containers requested=-997 applied=0",
	} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("no %q in:\n%s", want, lines)
		}
	}
}

// TestLearn: what a start has shown holds until the engine is looked at again.
func TestLearn(t *testing.T) {
	limit := sysproc.OOMScoreLimit{Own: -500, Lowers: true}
	s, lines := over(&limit, nil)
	if got := fit(t, s, Pause, -998); got != -998 {
		t.Fatalf("%d before a start", got)
	}
	score := s.Sure(t.Context())
	if score != 0 {
		t.Errorf("after a failed start: %d", score)
	}
	s.Learn(Pause, -998, score)
	if pause, container := fit(t, s, Pause, -998), fit(t, s, Containers, -5); pause != 0 || container != 0 {
		t.Errorf("after that: %d and %d, want 0", pause, container)
	}
	if got := strings.Count(lines.String(), "did not start a container with -998, and started one with 0"); got != 2 {
		t.Errorf("%d lines have the reason:\n%s", got, lines)
	}
	s.Confirm()
	if !s.Confirmed() {
		t.Error("not confirmed")
	}
	s.Look(t.Context())
	if s.Confirmed() {
		t.Error("what an engine could is confirmed for the next one")
	}
	if got := fit(t, s, Pause, -998); got != -998 {
		t.Errorf("with an engine that was started again: %d", got)
	}
}
