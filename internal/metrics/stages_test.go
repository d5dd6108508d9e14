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
	got := m.Stages()
	if len(got) != 2 || got[0].Job != "create container" || got[1].Job != "run sandbox" || got[1].Name != "attach network" || got[1].Count != 100 {
		t.Fatalf("got %+v", got)
	}
	if s := got[1]; math.Abs(s.Mean-0.1694) > 1e-9 || s.Median < 0.025 || s.Median > 0.05 || s.Most < s.Median || s.Most > 0.05 {
		t.Errorf("got %+v", s)
	}
	if s := got[0]; s.Most != 120 || s.Mean != 300 {
		t.Errorf("beyond the last bucket: %+v", s)
	}
}
