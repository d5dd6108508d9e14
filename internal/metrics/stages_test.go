package metrics

import (
	"math"
	"testing"
	"time"
)

func TestStages(t *testing.T) {
	m := New("1", "2")
	if got := m.Stages(); len(got) != 0 {
		t.Errorf("before any job there are %+v", got)
	}
	for range 98 {
		m.StageEnded("run sandbox", "attach network", 30*time.Millisecond)
	}
	for range 2 {
		m.StageEnded("run sandbox", "attach network", 7*time.Second)
	}
	m.StageEnded("create container", "prepare", 5*time.Minute)
	for range 2 {
		m.StageEnded("stop", "quick", 80*time.Microsecond)
		m.StageEnded("stop", "short", 200*time.Microsecond)
	}
	got := m.Stages()
	// The estimates of stages below a millisecond are no worse than those of longer ones.
	if s := got[len(got)-2:]; s[0].Name != "quick" || s[0].Median > 0.0001 || s[1].Name != "short" || s[1].Median < 0.0001 || s[1].Most > 0.00025 {
		t.Errorf("got %+v", s)
	}
	if len(got) != 4 || got[0].Job != "create container" || got[1].Job != "run sandbox" || got[1].Name != "attach network" || got[1].Count != 100 {
		t.Fatalf("got %+v", got)
	}
	if s := got[1]; math.Abs(s.Mean-0.1694) > 1e-9 || s.Median < 0.025 || s.Median > 0.05 || s.Most < s.Median || s.Most > 0.05 {
		t.Errorf("got %+v", s)
	}
	if s := got[0]; s.Most != 120 || s.Mean != 300 {
		t.Errorf("beyond the last bucket: %+v", s)
	}
}
